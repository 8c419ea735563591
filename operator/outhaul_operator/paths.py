"""Paths in a run's working directory, as specs give them: what is wrong with them. Pure.

The agent checks them again, and takes care of what only it can see: what is mounted, and what an archive holds.
"""

from collections.abc import Iterable
from pathlib import PurePosixPath


def is_within(path: str) -> bool:
    """Tells whether a path is relative, names something, and leads nowhere else."""
    pure = PurePosixPath(path)
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts and not has_control(path)


def has_control(text: str) -> bool:
    """Tells whether a text has a character that no name should have: NUL, a line's end, an escape for terminals."""
    return any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text)  # noqa: PLR2004


def clash(paths: Iterable[str]) -> tuple[str, str] | None:
    """Returns two paths that cannot both be files: they are one, or the first is the other's directory."""
    seen: dict[PurePosixPath, str] = {}
    for path in sorted(paths, key=lambda one: len(PurePosixPath(one).parts)):
        pure = PurePosixPath(path)
        for above in (pure, *pure.parents):
            if above in seen:
                return seen[above], path
        seen[pure] = path
    return None
