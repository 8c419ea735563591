"""The program that gets a run's archive: downloads it, checks its digest, and unpacks it into the working directory.

`archives` starts it as a child, so that whatever a server or an archive does, it can be stopped in time and takes no
memory of the agent's. It finds its instructions where the agent finds them. Problems go to standard output as JSON. Its
argument is a path for a copy of the archive, where the run is to hand one back.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from outhaul_grpc.layout import KEPT_FILE
from outhaul_grpc.paths import parts_of
from outhaul_grpc.protocol import MAX_SOURCE_BYTES
from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent import downloads, keeping, tarballs
from outhaul_agent.reasons import Reason, RunError, quoted
from outhaul_agent.settings import Settings
from outhaul_agent.spec import read_spec
from outhaul_agent.trees import Tree

_log = logging.getLogger(__name__)


def main() -> int:
    """Gets the archive; returns the exit code, 1 after a problem was told."""
    # Standard output is for the problem alone.
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="outhaul-agent: %(message)s")
    try:
        _fetch(Settings.from_environment(), Path(sys.argv[1]))
    except RunError as error:
        json.dump({"reason": error.problem.reason, "message": error.problem.message}, sys.stdout)
        return 1
    return 0


def _fetch(settings: Settings, copy: Path) -> None:
    spec = read_spec(settings.run_dir)
    archive = spec.archive
    where = downloads.shown(archive.url)
    try:
        with tempfile.TemporaryFile() as file:
            size = _get(spec, settings, file)
            if spec.HasField("keep") and size <= min(spec.keep.max_bytes, MAX_SOURCE_BYTES):
                file.seek(0)
                copy.write_bytes(file.read())
            file.seek(0)
            settings.work_dir.mkdir(parents=True, exist_ok=True)
            with Tree(settings.work_dir) as tree:
                tarballs.unpack(file, tree, tarballs.Limits())
                found = tree.has_directory(parts_of(archive.path))
    except tarballs.BadArchive as error:
        raise RunError(Reason.BAD_SOURCE, f"the archive {where}: {error}") from None
    except OSError as error:
        message = f"the archive {where} cannot be stored in the pod: {error.strerror}"
        raise RunError(Reason.RUN_FAILED, message) from None
    if not found:
        message = f"the archive {where}: it has no directory {quoted(archive.path)}: correct source.archive.path"
        raise RunError(Reason.BAD_SOURCE, message)


def _get(spec: pb.RunSpec, settings: Settings, file: BinaryIO) -> int:
    """Writes the archive to a file, from the copy of an earlier run where that has it; returns its size."""
    archive, where = spec.archive, downloads.shown(spec.archive.url)
    kept = keeping.unpack(settings.kept_dir / KEPT_FILE) if spec.HasField("kept") else None
    data = kept.archives.get(archive.sha256.lower()) if kept is not None else None
    if data is not None:
        _log.info("the archive %s was kept by an earlier run", where)
        return file.write(data)
    size = downloads.download(archive.url, archive.sha256, file)
    _log.info("the archive %s has %d bytes, and the digest that it should have", where, size)
    return size


if __name__ == "__main__":
    sys.exit(main())
