"""JSON in, bytes out, nothing lost: numbers stay as they were written, keys keep their order.

A parsed value is None, a bool, a str, a `Number`, or a `Compact` array or object; where a caller wants to look into
the outer levels, they are lists and `Object`s. `encode` gives a value's type and the bytes that are stored: a
string's own, compact JSON for everything else. No error shows any of the input.
"""

import codecs
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

MAX_DEPTH = 200
"""Arrays and objects within each other."""

_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_KEY_TWICE = "it contains an object that has a key twice"
_HALF_PAIR = "it contains half of a surrogate pair, which is no text"

_CLOSING = {"[": "]", "{": "}"}
_WHITE = r"[ \t\n\r]*"
_WORD = r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)"
_PLAIN = r'[^"\\\x00-\x1f]*'
_SPACE = re.compile(_WHITE)
_MARK = re.compile(rf"{_WHITE}([],}}]?){_WHITE}")
# Not possessive (`+` at its end): in Python 3.11.2, which Debian 12 has, that takes a comma too many.
_WORDS = re.compile(rf"{_WORD}(?:{_WHITE},{_WHITE}{_WORD}){{0,1000}}")
"""Numbers and the like, as many as an array has in a row."""
_MEMBER = re.compile(rf'"({_PLAIN})"{_WHITE}:{_WHITE}({_WORD}|"{_PLAIN}")?')
"""A key without escapes, and its value where that is simple."""
_quote = json.JSONEncoder(ensure_ascii=False).encode


class OutputType(StrEnum):
    """The API's types of an output; a test compares."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    OBJECT = "object"
    ARRAY = "array"
    BYTES = "bytes"


class BadValue(Exception):  # noqa: N818 - it is a value that is bad, whoever is to blame
    """Something is no JSON, or no JSON that can be kept; the message shows none of it."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class Object(list[tuple[str, Any]]):
    """The members of an object in their order. A key may be there twice: who reads names says which."""

    __slots__ = ()


@dataclass(frozen=True)
class Compact:
    """An array or an object as compact JSON. As Python's objects it would take up to seventy times the room."""

    type: OutputType
    data: bytes = field(repr=False)
    fault: str
    """Why it cannot be kept although it is JSON; empty: it can."""


def parse(data: bytes, levels: int = 0) -> Any:
    """Returns the one JSON value that `data` holds.

    Args:
        data: JSON.
        levels: how many levels of arrays and objects are taken apart; those below become `Compact`.

    Raises:
        BadValue: it holds anything else; the message says where.
    """
    try:
        # Some tools on some systems begin their output with a byte order mark.
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"it is not UTF-8 text (byte {error.start})") from None
    start = _skip(text, 0)
    if start == len(text):
        raise BadValue("it is empty")
    try:
        value, end = _value(text, start, levels)
        _expect_end(text, end)
    except json.JSONDecodeError as error:
        raise BadValue(f"it is no JSON at line {error.lineno}, column {error.colno}") from None
    return value


def encode(value: Any) -> tuple[OutputType, bytes]:
    """Returns the type of a parsed value that was not taken apart, and the bytes that are stored for it.

    Raises:
        BadValue: it holds half a surrogate pair, an object with a key twice, or is nested too deeply.
    """
    match value:
        case Compact():
            if value.fault:
                raise BadValue(value.fault)
            return value.type, value.data
        case str():
            try:
                return type_of(value), value.encode()
            except UnicodeEncodeError:
                raise BadValue(_HALF_PAIR) from None
        case _:
            return type_of(value), {None: b"null", True: b"true", False: b"false"}[value]


def from_bytes(data: bytes) -> OutputType:
    """Returns the type of bytes of unknown origin: a string where they are UTF-8 text without NUL."""
    if b"\0" in data:
        return OutputType.BYTES
    try:
        data.decode()
    except UnicodeDecodeError:
        return OutputType.BYTES
    return OutputType.STRING


def type_of(value: Any) -> OutputType:
    """Returns the type of a parsed value that was not taken apart."""
    match value:
        case None:
            return OutputType.NULL
        case bool():
            return OutputType.BOOLEAN
        case Number():
            return OutputType.NUMBER
        case str():
            return OutputType.STRING
        case _:
            kind: OutputType = value.type
            return kind


def _value(text: str, at: int, levels: int) -> tuple[Any, int]:
    """Reads the value at a place; returns it, and the place behind it."""
    opening = text[at : at + 1]
    if opening not in _CLOSING:
        return _scalars.raw_decode(text, at)
    if levels == 0:
        walk = _Walk(text, at)
        walk.walk()
        kind = OutputType.ARRAY if opening == "[" else OutputType.OBJECT
        return Compact(kind, bytes(walk.data), walk.fault), walk.at
    items: list[Any] = [] if opening == "[" else Object()
    at = _skip(text, at + 1)
    while not text.startswith(_CLOSING[opening], at):
        if items:
            at = _expect(",", text, at)
        if opening == "{":
            key, at = _key(text, at)
            value, at = _value(text, at, levels - 1)
            items.append((key, value))
        else:
            value, at = _value(text, at, levels - 1)
            items.append(value)
        at = _skip(text, at)
    return items, at + 1


class _Walk:
    """One walk through an array or an object, which writes it compactly as it goes."""

    def __init__(self, text: str, at: int) -> None:
        self.at = at
        self.data = bytearray()
        self.fault = ""
        self._text = text
        self._open: list[set[str] | None] = []
        """What is open here, the innermost last: the keys of an object, None for an array."""
        self._fresh = True
        """Whether what was opened last has nothing in it yet."""

    def walk(self) -> None:
        """Goes from its opening to its closing."""
        self._enter()
        while self._open:
            keys = self._open[-1]
            mark, self.at = _mark(self._text, self.at)
            if mark == ("]" if keys is None else "}"):
                self.data += mark.encode()
                self._open.pop()
                self._fresh = False
            elif mark == ("" if self._fresh else ","):
                self.data += mark.encode()
                self._fresh = False
                if keys is None:
                    self._items()
                else:
                    self._member(keys)
            else:
                raise json.JSONDecodeError("another mark is expected", self._text, self.at)

    def _enter(self) -> None:
        opening = self._text[self.at]
        self.data += opening.encode()
        self.at += 1
        self._open.append(set() if opening == "{" else None)
        self._fresh = True
        if len(self._open) > MAX_DEPTH:
            self.fault = _TOO_DEEP

    def _items(self) -> None:
        if found := _WORDS.match(self._text, self.at):
            self.data += found[0].encode().translate(None, b" \t\n\r")
            self.at = found.end()
        else:
            self._value()

    def _member(self, keys: set[str]) -> None:
        if found := _MEMBER.match(self._text, self.at):
            key, value = found.groups()
            self.data += f'"{key}":{value or ""}'.encode()
            self.at = found.end()
        else:
            value = None
            key, self.at = _key(self._text, self.at)
            self._string(key)
            self.data += b":"
        if key in keys:
            self.fault = _KEY_TWICE
        keys.add(key)
        if value is None:
            self._value()

    def _value(self) -> None:
        if self._text[self.at : self.at + 1] in _CLOSING:
            self._enter()
        else:
            value, self.at = _scalars.raw_decode(self._text, self.at)
            if type(value) is str:
                self._string(value)
            else:
                self.data += encode(value)[1]

    def _string(self, value: str) -> None:
        try:
            self.data += _quote(value).encode()
        except UnicodeEncodeError:
            self.fault = _HALF_PAIR


def _key(text: str, at: int) -> tuple[str, int]:
    """Reads a key and its colon; returns it, and the place of the value."""
    if not text.startswith('"', at):
        raise json.JSONDecodeError("a key is expected", text, at)
    key, at = _scalars.raw_decode(text, at)
    return key, _expect(":", text, _skip(text, at))


def _mark(text: str, at: int) -> tuple[str, int]:
    found = _MARK.match(text, at)
    assert found is not None  # noqa: S101 - it matches nothing at all, too
    return found[1], found.end()


def _expect(mark: str, text: str, at: int) -> int:
    if not text.startswith(mark, at):
        raise json.JSONDecodeError("a mark is missing", text, at)
    return _skip(text, at + 1)


def _expect_end(text: str, at: int) -> None:
    end = _skip(text, at)
    if end != len(text):
        raise json.JSONDecodeError("nothing more is expected", text, end)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse_constant(_text: str) -> NoReturn:
    raise BadValue("it contains NaN or Infinity, which JSON does not know")


_scalars = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refuse_constant)
"""Reads what is neither array nor object."""
