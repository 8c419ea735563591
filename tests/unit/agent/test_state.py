"""How the run is going, and what is left of it in a termination message."""

import json

from hypothesis import given
from hypothesis import strategies as st
from outhaul_agent.reasons import Problem, Reason
from outhaul_agent.state import Progress, termination_message
from outhaul_grpc.v1 import agent_pb2 as pb

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4000)


def progress(*steps: str) -> Progress:
    """Returns the progress of a run that nobody watches."""
    return Progress(steps, lambda _: None)


def test_steps_that_never_start_are_skipped() -> None:
    """When the run ends, what has not started never will."""
    run = progress("one", "two")
    run.enter(pb.PHASE_RUNNING)
    run.start_step(0)
    run.end_step(0, exit_code=3, failed=True)
    run.finish(pb.PHASE_FAILED, Problem(Reason.COMMAND_FAILED, "why"), [3, 4])
    state = run.snapshot()
    assert [step.phase for step in state.steps] == [pb.STEP_PHASE_FAILED, pb.STEP_PHASE_SKIPPED]
    assert (state.phase, state.reason, state.message) == (pb.PHASE_FAILED, "CommandFailed", "why")
    assert (state.output_count, state.output_bytes) == (2, 7)


def test_each_change_is_told_once() -> None:
    """Whoever waits for a change hears of the next one, and of no earlier one."""
    told: list[pb.RunState] = []
    run = Progress(["one"], told.append)
    before = run.changed
    run.start_step(0)
    assert before.is_set()
    assert not run.changed.is_set()
    assert len(told) == 1


def test_a_short_state_is_left_as_it_is() -> None:
    """Nothing is cut where everything fits."""
    state = pb.RunState(phase=pb.PHASE_FAILED, message="é" * 500, output_count=3)
    text = termination_message(state)
    assert "é" in text
    assert json.loads(text) == {"phase": "PHASE_FAILED", "message": "é" * 500, "outputCount": 3}


@given(texts, st.integers(0, 64), st.sampled_from(pb.StepPhase.values()))
def test_a_termination_message_always_fits(message: str, count: int, phase: pb.StepPhase.ValueType) -> None:
    """It is valid JSON of at most 4096 bytes, with phase and reason, whatever the run was."""
    run = progress(*(f"{'n' * 60}{number}" for number in range(count)))
    for number in range(count):
        run.start_step(number)
        run.end_step(number, exit_code=128, failed=phase == pb.STEP_PHASE_FAILED)
    run.finish(pb.PHASE_FAILED, Problem(Reason.BAD_OUTPUT, message), [1])
    text = termination_message(run.snapshot())
    assert len(text.encode()) <= 4096
    document = json.loads(text)
    assert (document["phase"], document["reason"]) == ("PHASE_FAILED", "BadOutput")
    assert document.get("message", "")[:100] == message[:100]


def test_what_ended_the_run_is_kept() -> None:
    """Of many steps, the failed ones stay, the last of them surely."""
    run = progress(*(f"{'n' * 60}{number}" for number in range(64)))
    for number in range(64):
        run.start_step(number)
        run.end_step(number, exit_code=1, failed=True)
    run.finish(pb.PHASE_FAILED, Problem(Reason.COMMAND_FAILED, "x" * 5000))
    steps = json.loads(termination_message(run.snapshot()))["steps"]
    assert 10 < len(steps) < 64
    assert steps[-1]["name"].endswith("63")
