"""Outputs as Kubernetes stores them: keys, the split over several Secrets, and values in JSON. Pure."""

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outhaul_api.installationoutput import Output, SecretKeyReference
from outhaul_api.vocabulary import OutputType

from outhaul_operator.agentoutputs import Output as AgentOutput
from outhaul_operator.agentstates import printable

MAX_SECRET_BYTES = 1024 * 1024
"""What the API server takes as the sum of a Secret's values (core/v1 MaxSecretSize)."""
_MAX_KEY_BYTES = 256 * 1024
MAX_INLINE_BYTES = 4096
MAX_INLINE_TOTAL_BYTES = 256 * 1024
_MAX_INLINE_DEPTH = 64
"""Deeper values are valid, but pydantic cannot write them."""
_MAX_NAMES = 1024

_VALID_KEY = re.compile(r"(?!\.\.)(?!\.$)[-._a-zA-Z0-9]{1,253}")
_ENCODED = "enc_"
_HASHED = "sha256_"
_EXACT_INT = re.compile(r"-?[1-9][0-9]{0,18}|0")
_EXACT_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]*[1-9]")


def key_for(name: str) -> str:
    """Returns the Secret key of an output: its name where Kubernetes accepts it, else an encoding of it.

    `enc_` begins an encoding that can be undone: each byte of UTF-8 but letters, digits, `-` and `.` becomes `_` and
    two hex digits. `sha256_` begins the digest of a name that is too long for that. A valid name that begins with
    either is encoded too, so no two names share a key.
    """
    if _VALID_KEY.fullmatch(name) and not name.startswith((_ENCODED, _HASHED)):
        return name
    raw = name.encode()
    encoded = _ENCODED + "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "-.") else f"_{byte:02X}"
        for byte in raw
    )
    return encoded if len(encoded) <= 253 else _HASHED + hashlib.sha256(raw).hexdigest()  # noqa: PLR2004


def name_of(key: str) -> str | None:
    """Returns the output's name for a key of `key_for`; None for a digest, whose name only the record knows."""
    if key.startswith(_HASHED):
        return None
    if not key.startswith(_ENCODED):
        return key
    escaped = key.removeprefix(_ENCODED)
    return re.sub(rb"_([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), escaped.encode()).decode()


def pack(data: Mapping[str, bytes]) -> tuple[list[dict[str, bytes]], set[str]]:
    """Distributes values over as few Secrets as first-fit by falling size finds; equal values, equal result.

    Returns:
        The data of each Secret (at least one, perhaps empty), and the keys whose values fit into none.
    """
    shards: list[dict[str, bytes]] = [{}]
    left = [(MAX_SECRET_BYTES, _MAX_KEY_BYTES)]
    too_large = set()
    for key, value in sorted(data.items(), key=lambda one: (-len(one[1]), one[0])):
        if len(value) > MAX_SECRET_BYTES:
            too_large.add(key)
            continue
        fitting = (index for index, (values, keys) in enumerate(left) if len(value) <= values and len(key) <= keys)
        index = next(fitting, len(shards))
        if index == len(shards):
            shards.append({})
            left.append((MAX_SECRET_BYTES, _MAX_KEY_BYTES))
        shards[index][key] = value
        left[index] = (left[index][0] - len(value), left[index][1] - len(key))
    return shards, too_large


def split(outputs: Sequence[AgentOutput]) -> tuple[list[dict[str, bytes]], list[AgentOutput]]:
    """Distributes a run's outputs over its Secrets.

    Returns:
        The data of each Secret, and the outputs that fit into none.
    """
    shards, too_large = pack({key_for(output.name): output.data for output in outputs})
    ordered = sorted(outputs, key=lambda one: one.name.encode())
    return shards, [output for output in ordered if key_for(output.name) in too_large]


class _InexactError(ValueError):
    """A value that JSON in Kubernetes (numbers are int64 or float64) would not keep as it was written."""


def _exact_int(text: str) -> int:
    if _EXACT_INT.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    raise _InexactError


def _exact_float(text: str) -> float:
    # A literal of this form that Python's shortest form equals is written the same way by Go's encoder.
    if _EXACT_FLOAT.fullmatch(text) and repr(float(text)) == text:
        return float(text)
    raise _InexactError


def _exact_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(members)
    if len(result) < len(members):
        raise _InexactError
    return result


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


@dataclass(frozen=True)
class Inline:
    """A value that a record can show."""

    value: Any
    size: int


def inline(output: AgentOutput) -> Inline | None:
    """Returns an output's value as JSON; None where it is sensitive, large, binary, or would not stay exact.

    An agent is not believed: a value that is not what its type says is not shown either.
    """
    if output.sensitive or output.type == OutputType.BYTES or len(output.data) > MAX_INLINE_BYTES:
        return None
    try:
        value: Any = output.data.decode()
        if output.type != OutputType.STRING:
            value = json.loads(
                value,
                parse_int=_exact_int,
                parse_float=_exact_float,
                parse_constant=_exact_float,
                object_pairs_hook=_exact_object,
            )
            # Half a surrogate pair can be written in JSON, and nowhere else.
            json.dumps(value, ensure_ascii=False).encode()
        if _depth(value) > _MAX_INLINE_DEPTH:
            return None
    except (ValueError, RecursionError):
        return None
    return Inline(value, len(output.data))


@dataclass(frozen=True)
class Encoded:
    """All outputs of a run, ready to be written."""

    secrets: list[tuple[str, dict[str, bytes]]]
    """Name and data of each output Secret; the first is the one to mount."""
    outputs: list[Output]
    """For the record, ordered by name."""
    too_large: list[AgentOutput]
    """What no Secret can hold."""


def encode(
    outputs: Sequence[AgentOutput], secret_names: Sequence[str], fingerprint: Callable[[AgentOutput], str]
) -> Encoded:
    """Encodes the outputs of a run.

    Args:
        outputs: What the agent holds.
        secret_names: The names that the Secrets get, as many as could be needed.
        fingerprint: Returns the keyed digest of a sensitive output.
    """
    shards, too_large = split(outputs)
    secrets = list(zip(secret_names, shards, strict=False))
    place = {key: name for name, data in secrets for key in data}
    records, total = [], 0
    for output in sorted(outputs, key=lambda one: one.name.encode()):
        key = key_for(output.name)
        shown = inline(output)
        if shown is not None and total + shown.size > MAX_INLINE_TOTAL_BYTES:
            shown = None
        total += shown.size if shown is not None else 0
        where = place.get(key)
        records.append(
            Output(
                name=output.name,
                type=OutputType(output.type),
                sensitive=output.sensitive,
                value=shown.value if shown is not None else None,
                secret_key_ref=SecretKeyReference(name=where, key=key) if where is not None else None,
                size=len(output.data),
                sha256=None if output.sensitive else hashlib.sha256(output.data).hexdigest(),
                fingerprint=fingerprint(output) if output.sensitive else None,
            )
        )
    return Encoded(secrets=secrets, outputs=records, too_large=too_large)


def joined_names(names: Iterable[str]) -> str:
    """Returns names for people, and for `kubectl get`: without control characters, cut where they are too many."""
    return printable(",".join(itertools.islice(names, _MAX_NAMES)), _MAX_NAMES)


def encoded_data(data: Mapping[str, bytes]) -> dict[str, str]:
    """Returns a Secret's `data`."""
    return {key: base64.b64encode(value).decode() for key, value in data.items()}
