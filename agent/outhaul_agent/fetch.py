"""The program that gets a run's archive: downloads it, checks its digest, and unpacks it into the working directory.

`archives` starts it as a child, so that whatever a server or an archive does, it can be stopped in time and takes no
memory of the agent's. It finds its instructions where the agent finds them. Problems go to standard output as JSON.
"""

import json
import logging
import sys
import tempfile

from outhaul_grpc.paths import parts_of

from outhaul_agent import downloads, tarballs
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
        _fetch(Settings.from_environment())
    except RunError as error:
        json.dump({"reason": error.problem.reason, "message": error.problem.message}, sys.stdout)
        return 1
    return 0


def _fetch(settings: Settings) -> None:
    archive = read_spec(settings.run_dir).archive
    where = downloads.shown(archive.url)
    try:
        with tempfile.TemporaryFile() as file:
            size = downloads.download(archive.url, archive.sha256, file)
            _log.info("the archive %s has %d bytes, and the digest that it should have", where, size)
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


if __name__ == "__main__":
    sys.exit(main())
