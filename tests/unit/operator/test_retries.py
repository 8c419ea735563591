"""Whether a failed run is followed by another one by itself, and after which pause."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from builders import installation, run
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import ActionPhase, Reason
from outhaul_operator import retries

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
JITTER = 1.2


def trying(limit: int = 100, **retry: Any) -> Installation:
    """Returns an Installation whose failed runs are tried again."""
    return installation({"retry": {"limit": limit, **retry}})


def failed(attempt: int = 1, at: datetime = NOW, **changes: Any) -> RunReference:
    """Returns a run that has failed."""
    time = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    return run(ActionPhase.FAILED, **{"attempt": attempt, "finished_at": time, "reason": "CommandFailed", **changes})


def pause(attempt: int = 1, name: str = "shop-1", **retry: Any) -> float:
    """Returns the seconds between a failed attempt and the next one."""
    return (retries.due_at(trying(**retry), failed(attempt, name=name), NOW) - NOW).total_seconds()


def test_a_pause_that_no_calendar_has() -> None:
    """Whatever is asked for, it is a year at most."""
    year = 365 * 86400
    assert year <= pause(backoff="9" * 60 + "h") <= JITTER * year
    assert pause(backoff="2h", attempt=3) >= 7200


@pytest.mark.parametrize(
    "reason",
    [
        "CommandFailed",
        "TimedOut",
        "OOMKilled",
        "Evicted",
        "PodLost",
        "AgentCrashed",
        "RunFailed",
        "Unschedulable",
        "ImagePullFailed",
        "PodRefused",
        "PodPending",
        "VolumeNotReady",
        "ContainerNotStarted",
        "AReasonOfALaterVersion",
        None,
    ],
)
def test_what_time_may_mend_is_tried_again(reason: str | None) -> None:
    """A command may fail for now, and a node, a registry or a quota comes back."""
    assert retries.is_left(trying(1), failed(reason=reason))


LASTING = (
    "InvalidSpec NameTaken CommandNotFound BadSource BadOutput DuplicateOutput OutputTooLarge ProtocolMismatch "
    "AgentMisbehaved"
)


@pytest.mark.parametrize("reason", LASTING.split())
def test_what_would_be_the_same_again_is_not(reason: str) -> None:
    """What a person has to mend first is not tried again, nor what has applied everything and gave bad outputs."""
    assert not retries.is_left(trying(1), failed(reason=Reason(reason)))


@pytest.mark.parametrize("phase", [ActionPhase.SUCCEEDED, ActionPhase.CANCELLED, None])
def test_only_a_failure_is_tried_again(phase: ActionPhase | None) -> None:
    """What was cancelled was meant to stop."""
    assert not retries.is_left(trying(1), run(phase))


def test_nothing_is_tried_again_unless_asked_for() -> None:
    """Neither the Installation nor its AgentConfig says anything: the default is no."""
    assert not retries.is_left(installation(), failed())


@pytest.mark.parametrize(
    ("spec", "config", "attempts"), [(None, 2, 3), (0, 2, 1), (4, 2, 5), (2, None, 3), (None, None, 1)]
)
def test_the_installation_s_limit_wins(spec: int | None, config: int | None, attempts: int) -> None:
    """The AgentConfig's counts where the Installation says nothing; the first run is no retry."""
    one = installation({"retry": {"limit": spec}} if spec is not None else {})
    left = [retries.is_left(one, failed(number, retry_limit=config)) for number in range(1, 9)]
    assert left == [number < attempts for number in range(1, 9)]


def test_pauses_double_up_to_an_hour() -> None:
    """From 30 seconds on, unless the spec has another beginning."""
    for attempt, least in enumerate([30, 60, 120, 240, 480, 960, 1920, 3600, 3600], start=1):
        assert least <= pause(attempt) <= least * JITTER
    assert 5 <= pause(1, backoff="5s") <= 5 * JITTER
    assert 7200 <= pause(3, backoff="2h") <= 7200 * JITTER
    assert pause(99, backoff="0s") == 0


def test_what_failed_together_does_not_come_back_together() -> None:
    """The pauses of many Installations are spread, and each one's is the same whoever asks."""
    pauses = {name: pause(name=name) for name in (f"shop-{number}" for number in range(100))}
    assert len({round(one, 2) for one in pauses.values()}) > 80
    assert all(pause(name=name) == one for name, one in pauses.items())


@given(skew=st.integers(-(10**9), 10**9), later=st.integers(0, 10**6))
def test_a_wrong_clock_delays_no_longer_than_another_pause(skew: int, later: int) -> None:
    """Whatever clock wrote when the run has ended, the wait is bounded, and it ends."""
    now = NOW + timedelta(seconds=later)
    due = retries.due_at(trying(), failed(at=NOW + timedelta(seconds=skew)), now)
    assert due - now <= timedelta(seconds=2 * 30 * JITTER)


def test_a_run_that_does_not_say_when_it_ended_is_no_reason_to_wait() -> None:
    """It is due at once."""
    assert retries.due_at(trying(), failed(finished_at=None), NOW) == NOW
