"""Derived names: every object that the operator makes can be named without looking anything up. Pure."""

import hashlib
import json
from collections.abc import Mapping

_NAME_LIMIT = 253
_LABEL_LIMIT = 63
_POD_LIMIT = 63
_RUN_LIMIT = _NAME_LIMIT - 32
"""What is left for an Installation's name: the hash comes after it, and `-outputs-127` after that."""


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]


def _shortened(name: str, limit: int) -> str:
    """Returns the name, or where it is too long its beginning and a hash, so that it stays unique."""
    if len(name) <= limit:
        return name
    return f"{name[: limit - 11].rstrip('-.')}-{_hash(name)}"


def run_name(installation: str, *, uid: str, number: int) -> str:
    """Returns the name of an Installation's run of this number.

    To dispatch is to create, and *exists* means adopt: of two operators that want to start the next run, whatever each
    of them has seen of the Installation, one does.
    """
    return f"{_shortened(installation, _RUN_LIMIT)}-{_hash(uid, str(number))}"


def pod_name(run: str) -> str:
    """Returns the name of a run's pod, short enough to be the pod's host name."""
    return _shortened(run, _POD_LIMIT)


def run_secret_name(run: str) -> str:
    """Returns the name of the Secret that a run's agent reads."""
    return f"{run}-run"


def source_secret_name(run: str) -> str:
    """Returns the name of the Secret with the copy of what a run was made from."""
    return f"{run}-source"


def output_secret_name(run: str, shard: int) -> str:
    """Returns the name of a run's output Secret: what does not fit into the first goes on in `-1`, `-2` and so on."""
    return f"{run}-outputs" + (f"-{shard}" if shard else "")


def latest_secret_name(installation: str, chosen: str | None) -> str:
    """Returns the name of an Installation's latest Secret."""
    return chosen or f"{_shortened(installation, _NAME_LIMIT - 32)}-outputs"


def label_value(name: str) -> str:
    """Returns a name as a label's value."""
    return _shortened(name, _LABEL_LIMIT)


def share(name: str) -> float:
    """Returns a number from 0 to 1 that is always the same for a name, and evenly spread over names."""
    return int(_hash(name), 16) / 16.0**10


def digest(document: Mapping[str, object]) -> str:
    """Returns the SHA-256 (hex) of a JSON document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
