"""JSON in, bytes out, nothing lost: numbers stay as they were written, keys keep their order.

A parsed value is None, a bool, a str, a `Number`, a list or an `Object`; `encode` gives its type and the
bytes that are stored: a string's own, compact JSON for everything else. No error shows any of the input.
"""

import codecs
import json
from enum import StrEnum
from typing import Any, NoReturn

MAX_DEPTH = 200
"""Arrays and objects within each other."""

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


def parse(data: bytes) -> Any:
    """Returns the one JSON value that `data` holds.

    Raises:
        BadValue: it holds anything else; the message says where.
    """
    try:
        # Some tools on some systems begin their output with a byte order mark.
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"it is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise BadValue("it is empty")
    try:
        return json.loads(
            text,
            object_pairs_hook=Object,
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise BadValue(f"it is no JSON at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise BadValue(_TOO_DEEP) from None


def encode(value: Any) -> tuple[OutputType, bytes]:
    """Returns the type of a parsed value and the bytes that are stored for it.

    Raises:
        BadValue: it holds half a surrogate pair, an object with a key twice, or is nested too deeply.
    """
    try:
        if type(value) is str:
            return OutputType.STRING, value.encode()
        parts: list[str] = []
        _write(value, parts, MAX_DEPTH)
        return type_of(value), "".join(parts).encode()
    except UnicodeEncodeError:
        raise BadValue("it contains half of a surrogate pair, which is no text") from None


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
    """Returns the type of a parsed value."""
    match value:
        case None:
            return OutputType.NULL
        case bool():
            return OutputType.BOOLEAN
        case Number():
            return OutputType.NUMBER
        case str():
            return OutputType.STRING
        case Object():
            return OutputType.OBJECT
        case _:
            return OutputType.ARRAY


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def _write(value: Any, parts: list[str], levels: int) -> None:
    match value:
        case None:
            parts.append("null")
        case bool():
            parts.append("true" if value else "false")
        case Number():
            parts.append(value)
        case str():
            parts.append(_quote(value))
        case _ if levels == 0:
            raise BadValue(_TOO_DEEP)
        case Object():
            _write_object(value, parts, levels - 1)
        case _:
            _write_array(value, parts, levels - 1)


def _write_object(value: Object, parts: list[str], levels: int) -> None:
    if len(dict(value)) != len(value):
        raise BadValue("it contains an object that has a key twice")
    separator = "{"
    for key, member in value:
        parts += (separator, _quote(key), ":")
        _write(member, parts, levels)
        separator = ","
    parts.append("}" if value else "{}")


def _write_array(value: list[Any], parts: list[str], levels: int) -> None:
    separator = "["
    for item in value:
        parts.append(separator)
        _write(item, parts, levels)
        separator = ","
    parts.append("]" if value else "[]")


def _refuse_constant(_text: str) -> NoReturn:
    raise BadValue("it contains NaN or Infinity, which JSON does not know")
