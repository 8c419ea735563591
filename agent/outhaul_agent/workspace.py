"""The run's working directory: what is put into it before the first command, and paths within it."""

import logging
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from outhaul_agent.keeping import File
from outhaul_agent.reasons import Reason, RunError, quoted

_SCRIPT = b"#!"
_NONE_KEPT: Mapping[str, Mapping[str, File]] = {}

_log = logging.getLogger(__name__)


def prepare(
    work_dir: Path,
    *,
    files: Mapping[str, bytes],
    copy_from: Sequence[str],
    kept: Mapping[str, Mapping[str, File]] = _NONE_KEPT,
    required: Sequence[str] = (),
) -> dict[str, list[str]]:
    """Copies directories to the working directory, then writes files over them.

    Args:
        work_dir: exists, or is made.
        files: relative paths, which `spec` has checked, with their contents.
        copy_from: directories, usually mounted volumes; links in them are followed.
        kept: by directory, what an earlier run found there: it stands in where the directory is empty now.
        required: directories of which there must be something, here or kept.

    Returns:
        By directory, which files of the working directory came from it.

    Raises:
        RunError: a directory is missing, or something cannot be written.
    """
    origins: dict[str, str] = {}
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
        for directory in copy_from:
            made = _fill(Path(directory), work_dir, kept.get(directory), is_required=directory in required)
            origins |= {str(file.relative_to(work_dir)): directory for file in made}
        for path, content in sorted(files.items()):
            _write(work_dir / path, content)
            origins.pop(str(PurePosixPath(path)), None)
    except OSError as error:
        path = quoted(os.fsdecode(error.filename)) if error.filename else "a file"
        message = f"the working directory cannot be prepared: {path}: {error.strerror}"
        raise RunError(Reason.RUN_FAILED, message) from None
    return {one: [path for path, origin in origins.items() if origin == one] for one in copy_from}


def _fill(directory: Path, work_dir: Path, kept: Mapping[str, File] | None, *, is_required: bool) -> list[Path]:
    """Puts into the working directory what a directory has, or what was kept of it; returns the files."""
    copied = _copy_tree(directory, work_dir)
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
        _write(work_dir / path, file.content, runs=file.runs)
    return [work_dir / path for path in kept]


def resolve(work_dir: Path, path: str) -> Path:
    """Returns a path of the spec: relative to the working directory, which empty stands for, or absolute."""
    return work_dir / path


def _copy_tree(source: Path, work_dir: Path) -> list[Path]:
    if not source.is_dir():
        raise RunError(Reason.INVALID_SPEC, f"copyFrom {quoted(str(source))} is not a directory of the pod")
    if work_dir.resolve().is_relative_to(source.resolve()):
        message = f"copyFrom {quoted(str(source))} contains the working directory itself"
        raise RunError(Reason.INVALID_SPEC, message)
    return _copy_directory(source, work_dir, parents=(source.resolve(),))


def _copy_directory(source: Path, target: Path, *, parents: tuple[Path, ...]) -> list[Path]:
    """Returns the files that were made."""
    made = []
    target.mkdir(exist_ok=True)
    for entry in sorted(source.iterdir()):
        # Mounted ConfigMaps and Secrets keep their versions in names like these and show them through links.
        if entry.name.startswith(".."):
            continue
        kind = _kind(entry)
        if kind == stat.S_IFDIR:
            real = entry.resolve()
            if real in parents:
                raise RunError(Reason.INVALID_SPEC, f"copyFrom: the link {quoted(str(entry))} leads to itself")
            made += _copy_directory(entry, target / entry.name, parents=(*parents, real))
        elif kind == stat.S_IFREG:
            _copy_file(entry, target / entry.name)
            made.append(target / entry.name)
    return made


def _kind(path: Path) -> int | None:
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:  # a link to nowhere
        return None


def _copy_file(source: Path, target: Path) -> None:
    _make_way(target)
    shutil.copyfile(source, target)
    with source.open("rb") as file:
        script = file.read(len(_SCRIPT)) == _SCRIPT
    _set_mode(target, runs=script or bool(source.stat().st_mode & stat.S_IXUSR))


def _write(target: Path, content: bytes, *, runs: bool = False) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    _make_way(target)
    target.write_bytes(content)
    _set_mode(target, runs=runs or content.startswith(_SCRIPT))


def _make_way(target: Path) -> None:
    # A volume may hold a file of a former container that cannot be written, only replaced.
    if target.is_symlink() or target.is_file():
        target.unlink()


def _set_mode(path: Path, *, runs: bool) -> None:
    # No mode of a volume is taken over: they are read-only, or another user's.
    path.chmod(0o755 if runs else 0o644)
