"""Paths in a run's working directory, as specs give them: what is wrong with them. Pure.

The agent checks them again, and takes care of what only it can see: what is mounted, and what an archive holds.
"""

from collections.abc import Iterable

from outhaul_grpc.paths import BadPath, Parts, parts_of


def file_fault(path: str) -> str | None:
    """Returns what is wrong with a file's path, which it names; None where nothing is."""
    try:
        return None if parts_of(path) else f"{path!r} names no file"
    except BadPath as error:
        return str(error)


def directory_fault(path: str | None) -> str | None:
    """Returns what is wrong with a directory's path, which it names; None where nothing is, or there is none."""
    try:
        parts_of(path or "")
    except BadPath as error:
        return str(error)
    return None


def clash(paths: Iterable[str]) -> tuple[str, str] | None:
    """Returns two paths, which are right, that cannot both be files: one is the other, or the other's directory."""
    seen: dict[Parts, str] = {}
    for parts, path in sorted((parts_of(path), path) for path in paths):
        for length in range(1, len(parts) + 1):
            if parts[:length] in seen:
                return seen[parts[:length]], path
        seen[parts] = path
    return None
