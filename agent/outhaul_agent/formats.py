"""What outputs look like in each format that commands print, and in a manifest. Reads no files itself.

Each function reads the data of one source into a `Collection`: what is wrong with one output leaves the
others alone, what is wrong with the whole raises `BadValue`.
"""

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent import values
from outhaul_agent.outputs import Collection, Output
from outhaul_agent.reasons import quoted
from outhaul_agent.values import BadValue, Number, Object, OutputType

NAMES = {
    pb.OUTPUT_FORMAT_TERRAFORM: "terraform",
    pb.OUTPUT_FORMAT_PORTER: "porter",
    pb.OUTPUT_FORMAT_JSON: "json",
    pb.OUTPUT_FORMAT_TEXT: "text",
}

_PORTER_JSON = {
    "integer": OutputType.NUMBER,
    "number": OutputType.NUMBER,
    "boolean": OutputType.BOOLEAN,
    "null": OutputType.NULL,
    "object": OutputType.OBJECT,
    "array": OutputType.ARRAY,
}
"""Types of a Porter bundle whose values, which Porter prints as strings, are JSON."""


def read_terraform(data: bytes, origin: str, found: Collection) -> None:
    """Reads `terraform output -json`: an object of `{value, type, sensitive}`."""
    for name, entry in _members(values.parse(data, levels=2)):
        members = _dict(entry)
        sensitive = members.get("sensitive", True)
        if "value" not in members or not isinstance(sensitive, bool):
            if found.claim(name, origin):
                found.add_bad(
                    f'output {quoted(name)} of {origin} is not of the form {{"value": ..., "sensitive": true or false}}'
                )
            continue
        _add(name, members["value"], origin, found, sensitive=sensitive, flagged="sensitive" in members)


def read_json(data: bytes, origin: str, found: Collection) -> None:
    """Reads a JSON object: a member an output, all of them sensitive."""
    for name, value in _members(values.parse(data, levels=1)):
        _add(name, value, origin, found, flagged=False)


def read_porter(data: bytes, origin: str, found: Collection) -> None:
    """Reads `porter installation outputs list --output json`: a list of `{name, type, value, sensitive}`.

    Porter prints every value as a string and says the type that the bundle declares. A value that is JSON of
    its declared type gets that type; every other one is the string that Porter printed.
    """
    for entry in _items(values.parse(data, levels=2)):
        members = _dict(entry)
        name = members.get("name")
        sensitive = members.get("sensitive", True)
        if not _is_text(name) or "value" not in members or not isinstance(sensitive, bool):
            found.add_bad(f'an output of {origin} is not of the form {{"name", "value", "sensitive"}}')
            continue
        value = _porter_value(members["value"], members.get("type"))
        flagged = "sensitive" in members
        _add(name, value, origin, found, sensitive=sensitive, typed=not _is_text(value), flagged=flagged)


def read_text(data: bytes, name: str, origin: str, found: Collection) -> None:
    """Reads bytes as they are: one output."""
    found.add(plain(name, data), origin)


def plain(name: str, data: bytes) -> Output:
    """Returns the output that a file holds, or what a command printed: text or bytes as they are, sensitive."""
    return Output(name, values.from_bytes(data), sensitive=True, data=data, typed=False, flagged=False)


def encode_as(value: Any, declared: str | None) -> tuple[OutputType, bytes]:
    """Returns the type of a parsed value and the bytes that are stored for it.

    Args:
        value: the value; base64 text where bytes are declared.
        declared: the type that it has to have; None: any.

    Raises:
        BadValue: it is of another type, or cannot be kept.
    """
    if declared != OutputType.BYTES:
        kind, data = values.encode(value)
        _check_type(kind, declared)
        return kind, data
    try:
        return OutputType.BYTES, base64.b64decode(value if _is_text(value) else "!", validate=True)
    except (binascii.Error, ValueError):
        raise BadValue("its type is declared as bytes, so its value has to be base64 text") from None


def read_manifest(data: bytes, origin: str, found: Collection, read: Callable[[Path], bytes]) -> None:
    """Reads a manifest: a list of `{name, type, sensitive, and value or path}`.

    Args:
        data: the manifest.
        origin: what it is called in messages.
        found: takes the outputs.
        read: reads the file at a path that the manifest names.
    """
    for index, entry in enumerate(_items(values.parse(data, levels=2))):
        members = _dict(entry)
        name = members.get("name")
        if not _is_text(name):
            found.add_bad(f"entry {index} of {origin} has no name")
        elif found.claim(name, origin):
            try:
                found.add_claimed(_manifest_output(name, members, read), origin)
            except BadValue as error:
                found.add_bad(f"output {quoted(name)} of {origin}: {error}")


def _manifest_output(name: str, members: dict[str, Any], read: Callable[[Path], bytes]) -> Output:
    sensitive = members.get("sensitive", True)
    if not isinstance(sensitive, bool):
        raise BadValue("its sensitive is neither true nor false")
    declared = members.get("type")
    if declared is not None and (not _is_text(declared) or declared not in set(OutputType)):
        raise BadValue(f"its type is none of {', '.join(OutputType)}")
    if ("value" in members) == ("path" in members):
        raise BadValue("it has to have a value or a path, and not both")
    flagged = "sensitive" in members
    if "value" in members:
        kind, data = encode_as(members["value"], declared)
        return Output(name, kind, sensitive, data, flagged=flagged)
    path = members["path"]
    if not _is_text(path) or not path or "\0" in path:
        raise BadValue("its path is no path")
    kind, data = _manifest_file(read(Path(path)), declared)
    return Output(name, kind, sensitive, data, typed=declared is not None, flagged=flagged)


def _manifest_file(data: bytes, declared: str | None) -> tuple[OutputType, bytes]:
    if declared == OutputType.BYTES:
        return OutputType.BYTES, data
    if declared is None or declared == OutputType.STRING:
        kind = values.from_bytes(data)
    else:
        kind, data = values.encode(values.parse(data))
    _check_type(kind, declared)
    return kind, data


def _check_type(kind: OutputType, declared: str | None) -> None:
    if declared is not None and kind != declared:
        raise BadValue(f"its type is declared as {declared}, but it is of type {kind}")


def _porter_value(value: Any, declared: Any) -> Any:
    wanted = _PORTER_JSON.get(declared) if _is_text(declared) else None
    if wanted is None or not _is_text(value):
        return value
    try:
        parsed = values.parse(value.encode())
    except (BadValue, UnicodeEncodeError):
        return value
    return parsed if values.type_of(parsed) == wanted else value


def _add(
    name: str,
    value: Any,
    origin: str,
    found: Collection,
    *,
    sensitive: bool = True,
    typed: bool = True,
    flagged: bool = True,
) -> None:
    if not found.claim(name, origin):
        return
    try:
        kind, data = values.encode(value)
    except BadValue as error:
        found.add_bad(f"output {quoted(name)} of {origin}: {error}")
    else:
        found.add_claimed(Output(name, kind, sensitive, data, typed, flagged), origin)


def _members(value: Any) -> Object:
    if not isinstance(value, Object):
        raise BadValue("it is no JSON object")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list) or isinstance(value, Object):
        raise BadValue("it is no JSON list")
    return value


def _dict(value: Any) -> dict[str, Any]:
    members = dict(value) if isinstance(value, Object) else {}
    # With a key twice it is of no form at all.
    return members if members and len(members) == len(value) else {}


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and not isinstance(value, Number)
