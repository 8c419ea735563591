"""What an agent says of its run, or anybody in its container in its name: bounded, cleaned, or refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_agent.reasons import Reason as AgentReason
from outhaul_api.agentaction import AgentActionStatus
from outhaul_grpc.layout import TERMINATION_LIMIT
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import statuses
from outhaul_operator.agentstates import AGENT_REASONS, RunState, from_termination_message, from_wire

STEPS = ("one", "two")
RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "null",
        "{}",
        '{"phase": "PHASE_FAILED"',
        '{"phase": 99}',
        '{"phase": "x"}',
        "[" * 3000,
        "{" * 5000,
    ],
)
def test_what_is_no_state_is_none(text: str) -> None:
    """A termination message that anybody else has written is no state."""
    assert from_termination_message(text) is None


def test_a_lying_termination_message_is_bounded() -> None:
    """Reasons that nobody knows and control characters do not get through."""
    text = json.dumps(
        {
            "phase": "PHASE_FAILED",
            "reason": "Ready",
            "message": "a\x1b[31m\nb",
            "steps": [{"name": "x" * 300, "phase": "STEP_PHASE_FAILED", "exitCode": 1}],
            "future": 1,
        }
    )
    state = from_termination_message(text)
    assert state is not None
    assert (state.reason, state.message) == ("RunFailed", "a [31m b")
    assert len(state.steps[0].name) == 63


def test_times_are_rfc_3339() -> None:
    """Times of steps are as Kubernetes writes them."""
    state = from_termination_message(
        '{"phase": "PHASE_RUNNING", "steps": [{"name": "a", "phase": "STEP_PHASE_RUNNING",'
        ' "startedAt": "2026-01-02T03:04:05.678Z"}]}'
    )
    assert state is not None
    assert state.steps[0].started_at == "2026-01-02T03:04:05Z"
    assert state.reason is None


def test_an_agent_s_reasons_are_known() -> None:
    """What an agent may give as a reason is what the agent gives."""
    assert {str(one) for one in AGENT_REASONS} == {str(one) for one in AgentReason}


@pytest.mark.parametrize(
    "text",
    [
        '{"phase":"PHASE_SUCCEEDED","outputCount":1e999999999}',
        '{"phase":"PHASE_SUCCEEDED","outputCount":' + "9" * 4040 + "}",
        '{"phase":"PHASE_SUCCEEDED","outputCount":"' + "9" * 4040 + '"}',
        '{"phase":"PHASE_SUCCEEDED","outputBytes":"18446744073709551615"}',
        '{"phase":"PHASE_SUCCEEDED","outputCount":10001}',
        '{"phase":"PHASE_SUCCEEDED","phase":"PHASE_FAILED"}',
        '{"phase":"PHASE_RUNNING","steps":' + "[" * 4000,
        '{"phase":"PHASE_RUNNING","message":"\\ud800"}',
        '{"phase":"PHASE_RUNNING","steps":[' + "{}," * 1000 + "{}]}",
        '{"phase":"PHASE_RUNNING","steps":[{"phase":"STEP_PHASE_FAILED","exitCode":NaN}]}',
        '{"phase":"PHASE_RUNNING","steps":[{"phase":"STEP_PHASE_FAILED","exitCode":256}]}',
        '{"phase":"PHASE_RUNNING","steps":[{"phase":"STEP_PHASE_FAILED","startedAt":"0001-01-01T00:00:00Z"}]}',
        '{"phase":"PHASE_RUNNING","steps":[{"phase":"STEP_PHASE_FAILED","startedAt":"1969-12-31T23:59:59Z"}]}',
        '{"phase":"PHASE_RUNNING","steps":[{"phase":"STEP_PHASE_FAILED","startedAt":1}]}',
        '{"phase":"PHASE_RUNNING"}' + " " * TERMINATION_LIMIT,
        '{"phase":"PHASE_RUNNING"}\0',
    ],
)
def test_a_bomb_in_a_termination_message_is_none(text: str) -> None:
    """Huge numbers, deep nesting, keys that are there twice and times that no API server takes are no state."""
    assert from_termination_message(text) is None


FIELDS = [
    "phase",
    "reason",
    "message",
    "steps",
    "outputCount",
    "outputBytes",
    "acknowledged",
    "name",
    "exitCode",
    "startedAt",
    "finishedAt",
    "x",
]
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(pb.Phase.keys()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)
seconds = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 253402300800)
steps = st.builds(
    pb.StepState,
    name=st.sampled_from(["one", "two", "x\x1b", ""]),
    phase=st.sampled_from(pb.StepPhase.values()),
    exit_code=st.none() | st.integers(-2, 257) | st.integers(-(2**31), 2**31 - 1),
    started_at=st.none() | seconds.map(lambda one: {"seconds": one}),
    finished_at=st.none() | seconds.map(lambda one: {"seconds": one, "nanos": 2**31 - 1}),
)
states = st.builds(
    pb.RunState,
    phase=st.sampled_from(pb.Phase.values()),
    reason=st.sampled_from(["", "CommandFailed", "OutputsLost", "Succeeded", "\n"]),
    message=st.text(st.characters(exclude_categories=["Cs"]), max_size=60).map(lambda text: text * 60),
    steps=st.lists(steps, max_size=4),
    output_count=st.integers(0, 2**32 - 1) | st.integers(0, 3),
    output_bytes=st.integers(0, 2**64 - 1) | st.integers(0, 3),
)


@given(documents)
def test_any_termination_message(document: Any) -> None:
    """Whatever somebody leaves there, it is a state or none."""
    from_termination_message(json.dumps(document))


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    """Nor does it have to be JSON."""
    from_termination_message(text)


@given(st.lists(states, max_size=5))
def test_what_is_believed_fits_a_status(told: list[pb.RunState]) -> None:
    """However many states come, what becomes of them is a status of this run's steps that an API server takes."""
    status = AgentActionStatus()
    for state in filter(None, map(believed, told)):
        status = statuses.progressed(status, state)
        shown = AgentActionStatus.model_validate(statuses.ended(status, state, output=None).to_json())
        seen = {step.name for step in shown.steps}
        assert len(shown.steps) == len(seen)
        assert seen <= set(STEPS)
        assert all(step.exit_code is None or 0 <= step.exit_code <= 255 for step in shown.steps)
        assert all(step.started_at is None or RFC_3339.fullmatch(step.started_at) for step in shown.steps)
        assert (shown.message or "").isprintable()


def believed(told: pb.RunState) -> RunState | None:
    """Returns a state as it is taken in, if it is."""
    try:
        state = from_wire(told)
    except ValueError:
        return None
    return state if state.is_of(STEPS) else None


@pytest.mark.parametrize(
    ("told", "is_ours"),
    [
        ([], True),
        (["one"], True),
        (["two"], True),
        (["one", "two"], True),
        (["two", "one"], False),
        (["one", "one"], False),
        (["one", "three"], False),
        (["one "], False),
    ],
)
def test_the_steps_of_a_run(told: list[str], *, is_ours: bool) -> None:
    """A state is of a run where it speaks of the run's own steps, each once and in order; some may be left out."""
    state = from_wire(
        pb.RunState(
            phase=pb.PHASE_RUNNING, steps=[pb.StepState(name=name, phase=pb.STEP_PHASE_PENDING) for name in told]
        )
    )
    assert state.is_of(STEPS) is is_ours
