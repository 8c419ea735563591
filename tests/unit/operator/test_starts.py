"""How long a run may wait for its agent to start."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.agentaction import AgentActionStatus
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_operator import starts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def said(ago: float, status: str = "False") -> AgentActionStatus:
    """Returns a status that says for some seconds whether the run has started."""
    time = f"{NOW - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%SZ}"
    started = {"type": "Started", "status": status, "reason": "Unschedulable", "lastTransitionTime": time}
    return AgentActionStatus.model_validate({"conditions": [started]})


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, 900), ("90s", 90), ("1h30m", 5400), ("0s", math.inf), ("0h0m", math.inf)]
)
def test_the_agent_config_says_how_long(timeout: str | None, seconds: float) -> None:
    """A quarter of an hour unless it says otherwise; nothing is for ever."""
    assert starts.limit_s(AgentConfigSpec(start_timeout=timeout)) == seconds


def test_what_was_said_counts_over_a_restart() -> None:
    """An operator that has just begun to look goes on where the one before was."""
    assert starts.waited_s(said(600), 1, NOW) == 600
    assert starts.waited_s(AgentActionStatus(), 1, NOW) == 1
    assert starts.waited_s(said(600, "True"), 1, NOW) == 1


@given(ahead=st.integers(0, 10**8), seen=st.integers(0, 10**6))
def test_a_clock_that_is_ahead_only_lengthens_the_wait(ahead: int, seen: int) -> None:
    """Up to what this operator has seen itself."""
    assert starts.waited_s(said(-ahead), seen, NOW) == seen
