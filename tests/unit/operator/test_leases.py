"""What a Lease says to an operator that asks for it."""

from typing import Any

import pytest
from outhaul_operator import leases
from outhaul_operator.leases import Sighting


def lease(version: str = "1", **spec: Any) -> dict[str, Any]:
    """A Lease as the API server has it."""
    return {"metadata": {"resourceVersion": version}, "spec": spec}


HELD = lease(holderIdentity="other", leaseDurationSeconds=15, renewTime="2020-01-01T00:00:00.000000Z")


@pytest.mark.parametrize(
    ("given", "age", "free"),
    [
        pytest.param(HELD, 0, False, id="another's, however old it says to be"),
        pytest.param(HELD, 14.9, False, id="not yet over"),
        pytest.param(HELD, 15.1, True, id="over"),
        pytest.param(lease(holderIdentity="", leaseDurationSeconds=15), 0, True, id="released"),
        pytest.param(lease(holderIdentity="me", leaseDurationSeconds=15), 0, True, id="ours"),
        pytest.param({"metadata": {"resourceVersion": "1"}}, 0, True, id="nobody's"),
        pytest.param(lease(holderIdentity="other", leaseDurationSeconds=10**9), 3599, False, id="within reason"),
        pytest.param(lease(holderIdentity="other", leaseDurationSeconds=10**9), 3601, True, id="beyond reason"),
        pytest.param(lease(holderIdentity="other"), 0.1, True, id="for no time"),
    ],
)
def test_a_lease_is_free(given: dict[str, Any], age: float, *, free: bool) -> None:
    """It is free where nobody has it, where it is ours, or where it was not seen to change for its duration."""
    assert leases.is_free(given, "me", Sighting("1", 100.0), 100.0 + age) is free


def test_time_counts_from_the_last_change() -> None:
    """A Lease that changes was renewed; one that does not grows older, whatever the times in it say."""
    first = leases.sighted(lease("1"), None, 5.0)
    assert first == Sighting("1", 5.0)
    assert leases.sighted(lease("1"), first, 9.0) == first
    assert leases.sighted(lease("2"), first, 9.0) == Sighting("2", 9.0)


def test_a_taken_lease_names_its_holder() -> None:
    """Who takes a Lease writes who they are, for how long it counts, and how often it has changed hands."""
    spec = leases.taken(lease(holderIdentity="other", leaseTransitions=3), "me", 15.0)
    assert spec.pop("acquireTime") == spec.pop("renewTime")
    assert spec == {"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 4}
    assert leases.taken(None, "me", 15.0)["leaseTransitions"] == 0


def test_a_released_lease_is_free_at_once() -> None:
    """Whoever sees a released Lease for the first time may take it."""
    spec = leases.released(lease(holderIdentity="me", leaseDurationSeconds=15, leaseTransitions=3))
    assert leases.is_free(lease(**spec), "other", Sighting("1", 0.0), 0.0)
    assert spec["leaseTransitions"] == 3
