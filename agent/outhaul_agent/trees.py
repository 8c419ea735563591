"""A directory below which files are made, and nowhere else, whatever their names and whatever is there already.

`workspace` and `tarballs` write through it. Paths are taken apart into their parts, and each part is opened from the
directory before it without following a link, so nothing that is there, or appears meanwhile, leads out.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from outhaul_grpc.paths import BadPath, Parts, check_text

from outhaul_agent.reasons import quoted

_SCRIPT = b"#!"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree:
    """Makes files below a directory. What is there is replaced, but for directories.

    Args:
        root: the directory; it exists, and links on the way to it are followed.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.made = 0
        """How many files, links and directories were made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._root)

    def make_directory(self, path: Parts) -> None:
        """Makes a directory, and those above it, unless they are there."""
        with self._opened(path):
            pass

    def has_directory(self, path: Parts) -> bool:
        """Tells whether a directory is there, without a link on the way."""
        try:
            with self._opened(path, make=False):
                return True
        except (BadPath, FileNotFoundError):
            return False

    def write(self, path: Parts, content: Iterable[bytes], *, executable: bool = False) -> None:
        """Makes a file. It can be run where that is wanted, and where it begins with `#!`.

        Raises:
            BadPath: a directory is there, or something else than a directory is above.
            OSError: it cannot be written.
        """
        with self._place(path) as parent:
            descriptor = os.open(path[-1], _NEW_FILE, 0o600, dir_fd=parent)
        head = b""
        # Buffered: without that a full disk may take a part of a chunk, and not say so.
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            for chunk in content:
                head = (head + chunk)[: len(_SCRIPT)] if len(head) < len(_SCRIPT) else head
                file.write(chunk)
            # No other mode is taken over: it may be set-uid, or not let the directory be removed.
            os.fchmod(descriptor, 0o755 if executable or head == _SCRIPT else 0o644)

    def link(self, path: Parts, target: str) -> None:
        """Makes a symbolic link; `links_within` has been asked about its target."""
        with self._place(path) as parent:
            os.symlink(target, path[-1], dir_fd=parent)

    def share(self, path: Parts, existing: Parts) -> None:
        """Makes a second name of a file of the tree (a hard link)."""
        with self._place(path) as parent, self._opened(existing[:-1], make=False) as source:
            os.link(existing[-1], path[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    @contextmanager
    def _place(self, path: Parts) -> Iterator[int]:
        """Opens the directory that something is to be made in, and removes what is there of its name."""
        with self._opened(path[:-1]) as parent:
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(path[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                    raise BadPath(f"{_shown(path)} cannot be a file: a directory is there")
                os.unlink(path[-1], dir_fd=parent)
            self.made += 1
            yield parent

    @contextmanager
    def _opened(self, path: Parts, *, make: bool = True) -> Iterator[int]:
        descriptor = self._open(path, make=make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, path: Parts, *, make: bool = True) -> int:
        """Opens a directory; the caller closes it."""
        here = os.dup(self._root)
        for index, part in enumerate(path):
            try:
                below = self._enter(here, part, make=make)
            except NotADirectoryError:
                raise _blocked(here, path[: index + 1]) from None
            finally:
                os.close(here)
            here = below
        return here

    def _enter(self, here: int, part: str, *, make: bool) -> int:
        try:
            return os.open(part, _DIRECTORY, dir_fd=here)
        except FileNotFoundError:
            if not make:
                raise
        os.mkdir(part, 0o700, dir_fd=here)
        self.made += 1
        below = os.open(part, _DIRECTORY, dir_fd=here)
        os.fchmod(below, 0o755)
        return below


def _blocked(here: int, path: Parts) -> BadPath:
    mode = os.stat(path[-1], dir_fd=here, follow_symlinks=False).st_mode
    what = "a link" if stat.S_ISLNK(mode) else "a file"
    return BadPath(f"{_shown(path)} cannot be a directory: {what} is there")


def links_within(path: Parts, target: str) -> bool:
    """Tells whether a link at `path` can lead nowhere but into its tree, whatever else the tree comes to hold.

    It does where the target first goes up, at most to the tree's root, and then only down: the directories above the
    link are real ones, and every link that it meets further down is such a link itself. A `..` after a name could
    lead anywhere, since the name may be a link's.
    """
    try:
        check_text(target)
    except BadPath:
        return False
    parts = [part for part in target.split("/") if part not in {"", "."}]
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and not target.startswith("/") and up < len(path) and ".." not in parts[up:]


def _shown(path: Parts) -> str:
    return quoted("/".join(path))
