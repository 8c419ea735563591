"""The copy of what a run is made from: packed before its first command, unpacked by the uninstall that finds it gone.

`runs` calls it. What is packed came from outside of the run's own spec: its archive as it came, the files of its
directories, and variables.
It is a gzipped tar, so that a person can read it as well; see SourceInfo in the proto.
"""

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

from outhaul_grpc.protocol import MAX_SOURCE_UNPACKED_BYTES

from outhaul_agent.reasons import Reason, RunError

_ARCHIVE, _FILES, _VARIABLES = "archive", "files", "variables"
_MAX_MEMBERS = 100_000


@dataclass(frozen=True)
class File:
    """A file's content, and whether it is a program."""

    content: bytes = field(repr=False)
    runs: bool


@dataclass(frozen=True)
class Source:
    """What a run is made from beside its own spec."""

    directories: Mapping[str, Mapping[str, File]] = field(default_factory=dict)
    """By directory of `copy_from`: relative path to file."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    archives: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By SHA-256, which is that of the content."""


class TooLarge(Exception):  # noqa: N818 - the copy is
    """The copy would have more bytes than it may have."""


def pack(
    work_dir: Path, origins: Mapping[str, list[str]], variables: Mapping[str, str], archive: bytes, limit: int
) -> bytes:
    """Returns the copy: equal bytes for equal content. Empty where there is nothing to keep.

    Args:
        work_dir: the working directory, before the first command.
        origins: which of its files came from which directory: see `workspace.prepare`.
        variables: the variables to keep.
        archive: the archive as it came; empty where there was none.
        limit: the most bytes that the copy may have.

    Raises:
        TooLarge: it would have more, or what it is made of is too large.
    """
    if not (origins or variables or archive):
        return b""
    packed = _Bounded(limit)
    left = MAX_SOURCE_UNPACKED_BYTES
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|") as packing,
    ):
        for directory, paths in sorted(origins.items()):
            root = f"{_FILES}/{quote(directory, safe='')}"
            # So that a directory without files is told from one that nobody has seen.
            packing.addfile(_member(root, type_=tarfile.DIRTYPE))
            for path in sorted(paths):
                with (work_dir / path).open("rb") as file:
                    status = os.fstat(file.fileno())
                    left -= status.st_size
                    if left < 0:
                        raise TooLarge
                    runs = bool(status.st_mode & stat.S_IXUSR)
                    packing.addfile(_member(f"{root}/{path}", size=status.st_size, runs=runs), file)
        for name, value in sorted(variables.items()):
            _add(packing, f"{_VARIABLES}/{name}", os.fsencode(value))
        if archive:
            _add(packing, f"{_ARCHIVE}/{hashlib.sha256(archive).hexdigest()}", archive)
    return packed.getvalue()


def _add(packing: tarfile.TarFile, name: str, content: bytes) -> None:
    packing.addfile(_member(name, size=len(content)), io.BytesIO(content))


def _member(name: str, *, size: int = 0, runs: bool = False, type_: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size = type_, size
    member.mode = 0o755 if runs or type_ == tarfile.DIRTYPE else 0o644
    return member


class _Bounded(io.BytesIO):
    """Takes so many bytes and no more."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._limit:
            raise TooLarge
        return super().write(data)


def unpack(file: Path) -> Source | None:
    """Returns what a copy holds; None where there is no copy.

    Raises:
        RunError: it cannot be read, or is none that an agent has packed.
    """
    try:
        packed = file.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(error.strerror or "") from None
    with packed:
        try:
            return _read(gzip.GzipFile(fileobj=packed))
        except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
            # Not the error's own text, which may quote what is in the copy.
            raise _unreadable(type(error).__name__) from None


def _read(zipped: gzip.GzipFile) -> Source:
    found = _Found()
    # With the room that the members' headers need.
    limited = _Limited(zipped, MAX_SOURCE_UNPACKED_BYTES + 1024 * _MAX_MEMBERS)
    with tarfile.open(fileobj=limited, mode="r|") as archive:
        for count, member in enumerate(archive):
            if count == _MAX_MEMBERS:
                raise ValueError("it has too many members")
            found.take(archive, member)
    return Source(found.directories, found.variables, found.archives)


class _Found:
    """What was read of a copy so far."""

    def __init__(self) -> None:
        self.directories: dict[str, dict[str, File]] = {}
        self.variables: dict[str, str] = {}
        self.archives: dict[str, bytes] = {}

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Takes a member in."""
        parts = PurePosixPath(member.name).parts
        if member.isdir() and len(parts) == 2 and parts[0] == _FILES:  # noqa: PLR2004
            self.directories[unquote(parts[1])] = {}
            return
        file = archive.extractfile(member) if member.isreg() else None
        if file is None or ".." in parts:
            raise ValueError("it has something that an agent does not pack")
        content = file.read()
        match parts:
            case (str(kind), str(name)) if kind == _VARIABLES:
                self.variables[name] = os.fsdecode(content)
            case (str(kind), str(digest)) if kind == _ARCHIVE and digest == hashlib.sha256(content).hexdigest():
                self.archives[digest] = content
            case (str(kind), str(directory), *path) if kind == _FILES and path:
                found = self.directories.setdefault(unquote(directory), {})
                found["/".join(path)] = File(content, runs=bool(member.mode & stat.S_IXUSR))
            case _:
                raise ValueError("it has something that an agent does not pack")


class _Limited(io.RawIOBase):
    """Reads so many bytes and no more, however much they were packed."""

    def __init__(self, inner: gzip.GzipFile, limit: int) -> None:
        self._inner = inner
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it is too large")
        return data


def _unreadable(why: str) -> RunError:
    message = f"the copy of what an earlier run was made from cannot be read ({why})"
    return RunError(Reason.SOURCE_MISSING, message)
