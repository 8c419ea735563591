"""The run's working directory: what is put into it before the first command, and paths within it."""

import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from outhaul_grpc.paths import BadPath, Parts, parts_of

from outhaul_agent.keeping import File
from outhaul_agent.reasons import Reason, RunError, quoted
from outhaul_agent.trees import Tree

_CHUNK = 1024 * 1024
_NONE_KEPT: Mapping[str, Mapping[str, File]] = {}

_log = logging.getLogger(__name__)


def prepare(
    root: Path,
    base: str,
    *,
    files: Mapping[str, bytes],
    copy_from: Sequence[str],
    kept: Mapping[str, Mapping[str, File]] = _NONE_KEPT,
    required: Sequence[str] = (),
) -> dict[str, list[str]]:
    """Copies directories to the working directory, then writes files over them.

    Args:
        root: where an archive was unpacked, or nothing is; made where it is missing.
        base: the working directory below that; empty: `root` itself.
        files: relative paths, which `spec` has checked, with their contents.
        copy_from: directories, usually mounted volumes; links in them are followed.
        kept: by directory, what an earlier run found there: it stands in where the directory is empty now.
        required: directories of which there must be something, here or kept.

    Returns:
        By directory, which files of the working directory came from it.

    Raises:
        RunError: a directory is missing, one thing is in another's way, or something cannot be written.
    """
    origins: dict[str, str] = {}
    try:
        root.mkdir(parents=True, exist_ok=True)
        with Tree(root) as tree:
            target = _Target(root, tree, parts_of(base))
            for directory in copy_from:
                made = target.fill(Path(directory), kept.get(directory), is_required=directory in required)
                origins |= dict.fromkeys(made, directory)
            for path, content in sorted(files.items()):
                tree.write((*parts_of(base), *parts_of(path)), [content])
                origins.pop("/".join(parts_of(path)), None)
    except BadPath as error:
        raise RunError(Reason.BAD_SOURCE, f"the working directory cannot be prepared: {error}; rename it") from None
    except OSError as error:
        path = quoted(os.fsdecode(error.filename)) if error.filename else "a file"
        message = f"the working directory cannot be prepared: {path}: {error.strerror}"
        raise RunError(Reason.RUN_FAILED, message) from None
    return {one: [path for path, origin in origins.items() if origin == one] for one in copy_from}


def resolve(work_dir: Path, path: str) -> Path:
    """Returns a path of the spec: relative to the working directory, which empty stands for, or absolute."""
    return work_dir / path


class _Target:
    """The working directory, which directories are copied to."""

    def __init__(self, root: Path, tree: Tree, base: Parts) -> None:
        self._root = root
        self._tree = tree
        self._base = base

    def fill(self, directory: Path, kept: Mapping[str, File] | None, *, is_required: bool) -> list[str]:
        """Puts into the working directory what a directory has, or what was kept of it; returns the files."""
        copied = self._copy_tree(directory)
        if copied or (kept is None and not is_required):
            return copied
        if kept is None:
            raise RunError(
                Reason.SOURCE_MISSING,
                f"the source is gone, and no copy of it was kept: {quoted(str(directory))} is empty; "
                "bring back what spec.source names",
            )
        _log.info("%s is empty: what an earlier run found there stands in", directory)
        for path, file in sorted(kept.items()):
            self._tree.write((*self._base, *parts_of(path)), [file.content], executable=file.runs)
        return list(kept)

    def _copy_tree(self, source: Path) -> list[str]:
        if not source.is_dir():
            raise RunError(Reason.INVALID_SPEC, f"copyFrom {quoted(str(source))} is not a directory of the pod")
        if self._root.resolve().is_relative_to(source.resolve()):
            message = f"copyFrom {quoted(str(source))} contains the working directory itself"
            raise RunError(Reason.INVALID_SPEC, message)
        return ["/".join(made) for made in self._copy_directory(source, (), parents=(source.resolve(),))]

    def _copy_directory(self, source: Path, target: Parts, *, parents: tuple[Path, ...]) -> list[Parts]:
        """Returns the files that were made."""
        made: list[Parts] = []
        self._tree.make_directory((*self._base, *target))
        for entry in sorted(source.iterdir()):
            # Mounted ConfigMaps and Secrets keep their versions in names like these and show them through links.
            if entry.name.startswith(".."):
                continue
            mode = _mode(entry)
            there = (*target, entry.name)
            if stat.S_ISDIR(mode):
                real = entry.resolve()
                if real in parents:
                    raise RunError(Reason.INVALID_SPEC, f"copyFrom: the link {quoted(str(entry))} leads to itself")
                made += self._copy_directory(entry, there, parents=(*parents, real))
            elif stat.S_ISREG(mode):
                self._copy_file(entry, there, executable=bool(mode & stat.S_IXUSR))
                made.append(there)
        return made

    def _copy_file(self, source: Path, target: Parts, *, executable: bool) -> None:
        with source.open("rb") as file:
            chunks = iter(lambda: file.read(_CHUNK), b"")
            self._tree.write((*self._base, *target), chunks, executable=executable)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:  # a link to nowhere
        return 0
