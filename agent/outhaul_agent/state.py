"""How the run is going: one state, changed by `runs` and `commands`, read by the server.

Its shortened form is the container's termination message.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from google.protobuf import json_format
from outhaul_grpc.layout import TERMINATION_LIMIT
from outhaul_grpc.protocol import MAX_MESSAGE_CHARACTERS
from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent.reasons import Problem

FINAL = frozenset({pb.PHASE_SUCCEEDED, pb.PHASE_FAILED, pb.PHASE_CANCELLED})


class Progress:
    """The run's state, with a way to wait for its changes."""

    def __init__(self, steps: Iterable[str], on_change: Callable[[pb.RunState], None]) -> None:
        self._state = pb.RunState(
            phase=pb.PHASE_PENDING,
            steps=[pb.StepState(name=name, phase=pb.STEP_PHASE_PENDING) for name in steps],
        )
        self._on_change = on_change
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change of the state, and never cleared: each change has its own."""
        return self._changed

    @property
    def phase(self) -> pb.Phase.ValueType:
        """The run's phase."""
        return self._state.phase

    def snapshot(self) -> pb.RunState:
        """Returns a copy of the state."""
        copy = pb.RunState()
        copy.CopyFrom(self._state)
        return copy

    def enter(self, phase: pb.Phase.ValueType) -> None:
        """Enters a phase that is not final."""
        self._state.phase = phase
        self._notify()

    def start_step(self, index: int) -> None:
        """Records that a step has started."""
        step = self._state.steps[index]
        step.phase = pb.STEP_PHASE_RUNNING
        step.started_at.GetCurrentTime()
        self._notify()

    def end_step(self, index: int, *, exit_code: int, failed: bool) -> None:
        """Records that a step has ended."""
        step = self._state.steps[index]
        step.phase = pb.STEP_PHASE_FAILED if failed else pb.STEP_PHASE_SUCCEEDED
        step.exit_code = exit_code
        step.finished_at.GetCurrentTime()
        self._notify()

    def finish(self, phase: pb.Phase.ValueType, problem: Problem | None, sizes: Collection[int] = ()) -> None:
        """Enters a final phase; steps that have not started never will.

        Args:
            phase: the phase.
            problem: what went wrong.
            sizes: how many bytes each output has that is held.
        """
        for step in self._state.steps:
            if step.phase == pb.STEP_PHASE_PENDING:
                step.phase = pb.STEP_PHASE_SKIPPED
        self._state.phase = phase
        self._state.output_count = len(sizes)
        self._state.output_bytes = sum(sizes)
        if problem is not None:
            self._state.reason = problem.reason
            self._state.message = _cut(problem.message, MAX_MESSAGE_CHARACTERS)
        self._notify()

    def acknowledge(self) -> None:
        """Records that the operator has stored everything."""
        self._state.acknowledged = True
        self._notify()

    def _notify(self) -> None:
        self._on_change(self._state)
        self._changed.set()
        self._changed = asyncio.Event()


def write_termination_message(path: Path, state: pb.RunState) -> None:
    """Leaves the state where the kubelet looks for it. Failing to is no reason to fail."""
    try:
        # Not replaced by renaming: the kubelet has mounted this very file.
        path.write_text(termination_message(state), encoding="utf-8")
    except OSError:
        return


def termination_message(state: pb.RunState) -> str:
    """Returns the state as JSON in no more bytes than Kubernetes keeps, leaving out what matters least."""
    small = pb.RunState()
    small.CopyFrom(state)
    text = _to_json(small)
    if _fits(text):
        return text
    small.message = _cut(small.message, 500)
    for step in small.steps:
        step.ClearField("started_at")
        step.ClearField("finished_at")
    text = _to_json(small)
    if _fits(text):
        return text
    wanted = [step for step in small.steps if step.phase in {pb.STEP_PHASE_FAILED, pb.STEP_PHASE_RUNNING}]
    del small.steps[:]
    # From the end: what ended the run is there.
    for step in reversed(wanted):
        small.steps.insert(0, step)
        if not _fits(_to_json(small)):
            del small.steps[0]
            break
    return _to_json(small)


def _to_json(state: pb.RunState) -> str:
    return json_format.MessageToJson(state, indent=None, ensure_ascii=False)


def _fits(text: str) -> bool:
    return len(text.encode()) <= TERMINATION_LIMIT


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
