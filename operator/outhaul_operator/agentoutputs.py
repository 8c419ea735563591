"""What an agent says of its outputs, and what it then sends of them. Pure, and the agent is not believed.

`agents` puts in what comes, piece by piece, and gets the outputs out. What no honest agent says is refused as soon as
that is clear: nothing is kept beyond what was announced, and no error shows any of it.
"""

import codecs
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from outhaul_api.vocabulary import OutputType
from outhaul_grpc import protocol
from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_operator.agentstates import printable

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ENCLOSED = {OutputType.OBJECT: (b"{", b"}"), OutputType.ARRAY: (b"[", b"]")}
_SHOWN = 64
"""Characters of an output's name that a message shows."""


@dataclass(frozen=True)
class OutputInfo:
    """One output without its value, as an agent lists it."""

    name: str
    type: OutputType
    sensitive: bool
    size: int
    """Of the value, in bytes."""
    sha256: str
    """Of the value, in hex."""


@dataclass(frozen=True)
class Output:
    """One output."""

    name: str
    type: OutputType
    sensitive: bool
    data: bytes = field(repr=False)
    """The value: raw for strings and bytes, compact JSON for the other types."""


@dataclass(frozen=True)
class Source:
    """The copy of what a run was made from."""

    data: bytes = field(repr=False)
    """Packed by the agent, for agents; empty where there is none."""
    too_large: bool
    """Whether there is none since it would be too large."""


class Listing:
    """The outputs that an agent lists, page by page.

    Args:
        count: The most that it may list.
        size: The most bytes that they may have together.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._room = size
        self.found: list[OutputInfo] = []
        """Sorted by the UTF-8 bytes of their names."""

    def add(self, page: Iterable[pb.OutputInfo]) -> None:
        """Takes in a page.

        Raises:
            ValueError: No honest agent lists this; the text says why.
        """
        for one in page:
            info = _info(one)
            if self.found and info.name.encode() <= self.found[-1].name.encode():
                raise ValueError("it lists outputs twice or out of order")
            self._room -= info.size
            if len(self.found) == self._count or self._room < 0:
                raise ValueError("it lists more outputs than it may hold, or than it has announced")
            self.found.append(info)


def _info(info: pb.OutputInfo) -> OutputInfo:
    if len(info.name.encode()) > protocol.MAX_NAME_BYTES:
        raise ValueError("it lists an output with a name that is too long")
    if info.type not in OutputType.__members__.values():
        raise ValueError("it lists an output of a type that nobody knows")
    if not _SHA256.fullmatch(info.sha256):
        raise ValueError("it lists an output without a digest")
    return OutputInfo(info.name, OutputType(info.type), info.sensitive, info.size, info.sha256)


class Arriving:
    """Something that comes in pieces.

    Args:
        what: What it is, for messages.
        size: How many bytes it has, by its agent's account.
        sha256: Its digest in hex, by its agent's account.
    """

    def __init__(self, what: str, size: int, sha256: str) -> None:
        self._what = what
        self._size = size
        self._sha256 = sha256
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Takes in a piece.

        Raises:
            ValueError: It is none of this.
        """
        if not 0 < len(chunk) <= protocol.MAX_CHUNK_BYTES:
            raise ValueError(f"it sends pieces of {self._what} of a size that none may have")
        if len(self._data) + len(chunk) > self._size:
            raise ValueError(f"it sends more of {self._what} than it has listed")
        self._data += chunk

    def finish(self) -> bytes:
        """Returns all of it.

        Raises:
            ValueError: It is not what was said of it.
        """
        if len(self._data) != self._size:
            raise ValueError(f"it sends less of {self._what} than it has listed")
        if hashlib.sha256(self._data).hexdigest() != self._sha256:
            raise ValueError(f"it sends {self._what} with another digest than it has listed")
        return bytes(self._data)


def arriving_output(info: OutputInfo) -> Arriving:
    """Returns where an output's value is put together."""
    return Arriving(f"output {printable(info.name, _SHOWN)!r}", info.size, info.sha256)


def arrived_output(info: OutputInfo, data: bytes) -> Output:
    """Returns an output with its value.

    Raises:
        ValueError: The value is not of the type that was listed.
    """
    if not _has_type(info.type, data):
        name = printable(info.name, _SHOWN)
        raise ValueError(f"it sends output {name!r}, which is not of the type {info.type} that it has listed")
    return Output(info.name, info.type, info.sensitive, data)


def arriving_source(first: pb.ReadSourceResponse) -> Arriving:
    """Returns where the copy of a run's source is put together, by what an agent says of it first.

    Raises:
        ValueError: No honest agent says this.
    """
    info = first.info
    if not first.HasField("info") or info.size > protocol.MAX_SOURCE_BYTES or (info.size and info.too_large):
        raise ValueError("it does not say what there is of its source, or more than it may hold")
    return Arriving("its source", info.size, info.sha256)


def _has_type(kind: OutputType, data: bytes) -> bool:
    """Tells whether a value looks like one of its type, without taking it apart: JSON can be a bomb.

    Who reads inside of an object or an array is careful: see `encoding.inline` and `contents`.
    """
    match kind:
        case OutputType.BYTES:
            return True
        case OutputType.NUMBER:
            return _NUMBER.fullmatch(data) is not None
        case OutputType.BOOLEAN:
            return data in {b"true", b"false"}
        case OutputType.NULL:
            return data == b"null"
        case OutputType.STRING:
            return _is_text(data)
        case _:
            opening, closing = _ENCLOSED[kind]
            return len(data) > 1 and data.startswith(opening) and data.endswith(closing) and _is_text(data)


def _is_text(data: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), protocol.MAX_CHUNK_BYTES):
            decoder.decode(data[start : start + protocol.MAX_CHUNK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
