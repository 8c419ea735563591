"""Unpacks a tar.gz into a tree. `fetch` calls `unpack`; the archive may be anybody's.

Only headers are left to `tarfile`. Its `extract` needs a filter, which the Python of Debian 12 lacks and which could be
got round more than once, and it reads extended headers into memory whatever their size. Here everything is read as a
stream, counted as it comes, and written through `trees`, so no header has to be believed.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from outhaul_grpc.paths import BadPath, parts_of

from outhaul_agent.reasons import quoted
from outhaul_agent.trees import Tree, links_within

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 128 * _BLOCK
_EXTENDED = {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE}
_SPARSE = "is a sparse file, which is not supported: pack it without `--sparse`"
_MAX_EXTENSION = 1024 * 1024
"""Bytes of an extended header: it holds names, and perhaps attributes of files."""


class BadArchive(Exception):  # noqa: N818 - an archive is
    """It cannot be unpacked; the text says why, and names the member."""


@dataclass(frozen=True)
class Limits:
    """What an archive may take."""

    unpacked: int = 2 * 1024**3
    """Bytes once it is decompressed."""
    files: int = 100_000
    """Files, links and directories, those among them that only a longer path names."""


@dataclass
class _Extension:
    """What extended headers say about the member after them."""

    path: str | None = None
    target: str | None = None
    size: int | None = None


class _Stream:
    """The members of a tar.gz, one after the other."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._file = gzip.GzipFile(fileobj=file, mode="rb")
        self._limits = limits
        self._left = limits.unpacked
        self._rest = 0
        """Bytes of the newest member, with what fills up its last block, that have not been read."""

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yields each member; what of its data was not read is skipped."""
        found = _Extension()
        while header := self._read_header():
            if header.type in _EXTENDED:
                self._read_extended(header, found)
            elif header.type == tarfile.XGLTYPE:
                self._read_global(header)
            elif header.type == tarfile.GNUTYPE_LONGNAME:
                found.path = self._read_name(header)
            elif header.type == tarfile.GNUTYPE_LONGLINK:
                found.target = self._read_name(header)
            else:
                yield self._begin(header, found)
                self._skip()
                found = _Extension()

    def data(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Yields the data of the member that was yielded last."""
        left = member.size
        while left:
            chunk = self._read(min(left, _CHUNK))
            self._rest -= len(chunk)
            left -= len(chunk)
            yield chunk

    def _begin(self, header: tarfile.TarInfo, found: _Extension) -> tarfile.TarInfo:
        header.name = found.path if found.path is not None else header.name
        header.linkname = found.target if found.target is not None else header.linkname
        if header.isreg():
            header.size = found.size if found.size is not None else header.size
            self._check_size(header.size)
            self._rest = _padded(header.size)
        return header

    def _read_header(self) -> tarfile.TarInfo | None:
        """Reads one header; None at the archive's end."""
        block = self._read(_BLOCK, at_end=True)
        if not any(block):
            return None
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            is_first = self._left == self._limits.unpacked - len(block)
            raise BadArchive("what is in it is no tar" if is_first else "one of its headers is damaged") from None
        if header.size < 0:
            raise BadArchive("one of its headers is damaged")
        return header

    def _read_extended(self, header: tarfile.TarInfo, found: _Extension) -> None:
        for key, value in _records(self._read_extension(header)):
            match key:
                case "path":
                    found.path = value
                case "linkpath":
                    found.target = value
                case "size":
                    if not (value.isascii() and value.isdigit()) or len(value) > 20:  # noqa: PLR2004 - of 64 bits
                        raise BadArchive("an extended header is damaged")
                    found.size = int(value)
                case _ if key.startswith("GNU.sparse."):
                    raise BadArchive(f"one of its members {_SPARSE}")

    def _read_global(self, header: tarfile.TarInfo) -> None:
        # Git notes its commit in one. What would be said about members is said about each, or not at all.
        for key, _ in _records(self._read_extension(header)):
            if key in {"path", "linkpath", "size"} or key.startswith("GNU.sparse."):
                raise BadArchive(f"its global header sets {key} for all members, which is not supported")

    def _read_name(self, header: tarfile.TarInfo) -> str:
        return self._read_extension(header).split(b"\0")[0].decode("utf-8", "surrogateescape")

    def _read_extension(self, header: tarfile.TarInfo) -> bytes:
        if header.size > _MAX_EXTENSION:
            raise BadArchive(f"it has an extended header of {header.size:,} bytes, more than {_MAX_EXTENSION:,}")
        return self._read(_padded(header.size))[: header.size]

    def _skip(self) -> None:
        while self._rest:
            self._rest -= len(self._read(min(self._rest, _CHUNK)))

    def _check_size(self, size: int) -> None:
        if size > self._left:
            raise BadArchive(f"it has more than {self._limits.unpacked:,} bytes once it is unpacked")

    def _read(self, size: int, *, at_end: bool = False) -> bytes:
        """Reads exactly so many bytes; none only where the archive may end."""
        self._check_size(size)
        try:
            data = self._file.read(size)
        except gzip.BadGzipFile:
            raise BadArchive("it is no gzip, or damaged: a tar.gz is expected") from None
        except zlib.error:
            raise BadArchive("its compressed data is damaged") from None
        except EOFError:
            raise BadArchive("it ends too early") from None
        self._left -= len(data)
        if len(data) < size and not (at_end and not data):
            raise BadArchive("it ends too early")
        return data


def unpack(file: BinaryIO, tree: Tree, limits: Limits) -> None:
    """Makes the files of an archive.

    Raises:
        BadArchive: it is no tar.gz, it takes more than it may, or a member is none that may be made.
        OSError: something cannot be written.
    """
    stream = _Stream(file, limits)
    made: dict[str, bytes] = {}
    for member in stream.members():
        try:
            _make(stream, member, tree, made)
        except BadPath as error:
            raise BadArchive(f"its member {error}") from None
        if tree.made > limits.files:
            raise BadArchive(f"it has more than {limits.files:,} files and directories")
    if not tree.made:
        raise BadArchive("there is nothing in it")


def _make(stream: _Stream, member: tarfile.TarInfo, tree: Tree, made: dict[str, bytes]) -> None:
    """Makes what a member is; `made` has the types of the files and links before it."""
    path = parts_of(member.name)
    if member.isdir():
        tree.make_directory(path)
        return
    if not path:
        raise BadPath(f"{quoted(member.name)} has no name")
    name = "/".join(path)
    if name in made:
        raise BadPath(f"{quoted(member.name)} is there twice")
    if member.issym():
        if not links_within(path, member.linkname):
            message = f"{quoted(member.name)} is a link that may lead out of the archive, to {quoted(member.linkname)}"
            raise BadPath(message)
        tree.link(path, member.linkname)
    elif member.islnk():
        existing = parts_of(member.linkname)
        if made.get("/".join(existing)) != tarfile.REGTYPE:
            raise BadPath(f"{quoted(member.name)} is a hard link to {quoted(member.linkname)}, no file before it")
        tree.share(path, existing)
    elif member.type == tarfile.GNUTYPE_SPARSE:
        raise BadPath(f"{quoted(member.name)} {_SPARSE}")
    elif member.isreg():
        tree.write(path, stream.data(member), executable=bool(member.mode & 0o100))
    else:
        raise BadPath(f"{quoted(member.name)} is neither file nor directory nor link")
    made[name] = tarfile.SYMTYPE if member.issym() else tarfile.REGTYPE


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """Yields the records of an extended header, each `length key=value` and a line's end."""
    start = 0
    while start < len(data) and data[start]:
        space = data.find(b" ", start, start + 9)
        digits = data[start:space]
        if space < 0 or not digits.isdigit():
            raise BadArchive("an extended header is damaged")
        end = start + int(digits)
        key, sign, value = data[space + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= space + 1 or not sign or data[end - 1 : end] != b"\n":
            raise BadArchive("an extended header is damaged")
        yield key.decode("utf-8", "replace"), value.decode("utf-8", "surrogateescape")
        start = end
