"""What a Lease says, and what it says to us. Pure.

Times within a Lease are for people: nobody's clock is compared with somebody else's. A Lease has expired when whoever
looks at it has not seen it change for as long as it says.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outhaul_operator.kinds import Object

_MOST_SECONDS = 3600


@dataclass(frozen=True)
class Sighting:
    """One state of a Lease, and when it was first seen."""

    version: str
    at: float
    """By the loop's clock."""


def sighted(lease: Object, before: Sighting | None, now: float) -> Sighting:
    """Returns since when a Lease has been as it is.

    Args:
        lease: As it is now.
        before: How it was seen last.
        now: The time, by the loop's clock.
    """
    version = str(lease["metadata"]["resourceVersion"])
    return before if before is not None and before.version == version else Sighting(version, now)


def is_free(lease: Object, identity: str, sighting: Sighting, now: float) -> bool:
    """Tells whether a Lease may be taken: it is released or ours already, or has expired.

    Ours already: an identity is that of a pod, whose former process has ended before the next one starts.
    """
    if holder(lease) in {"", identity}:
        return True
    return now - sighting.at > seconds(lease)


def holder(lease: Object) -> str:
    """Returns who holds a Lease; empty: nobody."""
    return str(_spec(lease).get("holderIdentity") or "")


def seconds(lease: Object) -> float:
    """Returns for how long a Lease counts after its holder was last heard of."""
    given = _spec(lease).get("leaseDurationSeconds")
    return float(min(given, _MOST_SECONDS)) if isinstance(given, int) and given > 0 else 0.0


def taken(lease: Object | None, identity: str, duration_s: float) -> dict[str, Any]:
    """Returns the spec of a Lease that is taken.

    Args:
        lease: As it was; None: there is none.
        identity: Who takes it.
        duration_s: For how long it is to count.
    """
    now = _now()
    before = _spec(lease).get("leaseTransitions")
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, round(duration_s)),
        "acquireTime": now,
        "renewTime": now,
        "leaseTransitions": before + 1 if isinstance(before, int) else 0,
    }


def renewal(identity: str) -> list[dict[str, Any]]:
    """Returns the JSON patch by which a holder says that it is still there; it fails where somebody else holds it."""
    return [
        {"op": "test", "path": "/spec/holderIdentity", "value": identity},
        {"op": "add", "path": "/spec/renewTime", "value": _now()},
    ]


def released(lease: Object) -> dict[str, Any]:
    """Returns the spec of a Lease that its holder gives up."""
    return {**_spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}


def _spec(lease: Object | None) -> dict[str, Any]:
    return (lease or {}).get("spec") or {}


def _now() -> str:
    """Returns the time as Leases have it, with microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
