"""What an agent says about its run, turned into the API's words. Pure, and the agent is not believed.

`agents` uses it for states that are streamed, `runs` for the termination message of an agent that is gone, which
anybody in the container can write. A state that is nonsense is refused; texts are bounded and made printable, reasons
that no agent gives become `RunFailed`.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp
from outhaul_api.agentaction import StepStatus
from outhaul_api.vocabulary import ActionPhase, Reason, StepPhase
from outhaul_grpc.layout import TERMINATION_LIMIT
from outhaul_grpc.protocol import MAX_MESSAGE_CHARACTERS, MAX_OUTPUTS, MAX_STEPS, MAX_TOTAL_BYTES
from outhaul_grpc.v1 import agent_pb2 as pb

_PHASES = {
    pb.PHASE_PENDING: ActionPhase.PENDING,
    pb.PHASE_RUNNING: ActionPhase.RUNNING,
    pb.PHASE_COLLECTING: ActionPhase.RUNNING,
    pb.PHASE_SUCCEEDED: ActionPhase.SUCCEEDED,
    pb.PHASE_FAILED: ActionPhase.FAILED,
    pb.PHASE_CANCELLED: ActionPhase.CANCELLED,
}
_STEP_PHASES = {
    pb.STEP_PHASE_PENDING: StepPhase.PENDING,
    pb.STEP_PHASE_RUNNING: StepPhase.RUNNING,
    pb.STEP_PHASE_SUCCEEDED: StepPhase.SUCCEEDED,
    pb.STEP_PHASE_FAILED: StepPhase.FAILED,
    pb.STEP_PHASE_SKIPPED: StepPhase.SKIPPED,
}
AGENT_REASONS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.RUN_FAILED,
        Reason.SOURCE_MISSING,
        Reason.SOURCE_UNAVAILABLE,
        Reason.BAD_SOURCE,
        Reason.COMMAND_FAILED,
        Reason.COMMAND_NOT_FOUND,
        Reason.TIMED_OUT,
        Reason.CANCELLED,
        Reason.BAD_OUTPUT,
        Reason.DUPLICATE_OUTPUT,
        Reason.OUTPUT_TOO_LARGE,
        Reason.PROTOCOL_MISMATCH,
    }
)
"""What an agent may say of its run; the operator acts on other reasons, and gives those itself."""
_NO_WORDS = "the agent does not say why"
_NAME_CHARACTERS = 63
_EXIT_CODES = range(256)
_LAST_SECOND = 253402300799
"""Of the year 9999: what RFC 3339 can write."""


@dataclass(frozen=True)
class RunState:
    """How a run is going, or how it ended, by its agent's account."""

    phase: ActionPhase
    """Succeeded: commands and collection of outputs; the outputs may still be with the agent."""
    reason: Reason | None
    """Absent while nothing went wrong."""
    message: str
    steps: tuple[StepStatus, ...]
    """In the order of the run; a termination message may leave out steps that ended well."""
    output_count: int
    """How many outputs the agent holds."""
    output_bytes: int
    """How many bytes they have together."""

    @property
    def is_final(self) -> bool:
        """True when the commands have ended and the outputs were read."""
        return self.phase.is_final

    def is_of(self, steps: Iterable[str]) -> bool:
        """Tells whether it speaks of no other steps than a run's, each once and in their order."""
        known = iter(steps)
        return all(step.name in known for step in self.steps)


def from_wire(state: pb.RunState) -> RunState:
    """Returns the state in the API's words.

    Raises:
        ValueError: the state cannot be one of an honest agent; the text says why.
    """
    if state.phase not in _PHASES:
        raise ValueError(f"it reports the phase {state.phase:d}, which nobody knows")
    if len(state.steps) > MAX_STEPS:
        raise ValueError(f"it reports {len(state.steps)} steps, more than {MAX_STEPS}")
    if state.output_count > MAX_OUTPUTS or state.output_bytes > MAX_TOTAL_BYTES:
        raise ValueError("it announces more outputs than an agent may hold")
    phase = _PHASES[state.phase]
    return RunState(
        phase=phase,
        reason=_reason(state.reason, phase),
        message=printable(state.message, MAX_MESSAGE_CHARACTERS) or _NO_WORDS,
        steps=tuple(_step(step) for step in state.steps),
        output_count=state.output_count,
        output_bytes=state.output_bytes,
    )


def from_termination_message(text: str) -> RunState | None:
    """Returns the state that an agent left as its container's termination message; None: it left none."""
    if len(text) > TERMINATION_LIMIT:
        return None
    try:
        return from_wire(json_format.Parse(text, pb.RunState(), ignore_unknown_fields=True))
    except (ValueError, json_format.ParseError, RecursionError):
        return None


def printable(text: str, limit: int) -> str:
    """Returns a peer's text as one that can be shown: no control characters, at most `limit` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(character if character.isprintable() else " " for character in cut)


def _reason(text: str, phase: ActionPhase) -> Reason | None:
    if text in AGENT_REASONS:
        return Reason(text)
    return Reason.RUN_FAILED if text or phase is ActionPhase.FAILED else None


def _step(step: pb.StepState) -> StepStatus:
    if step.phase not in _STEP_PHASES:
        raise ValueError(f"it reports a step in the phase {step.phase:d}, which nobody knows")
    if step.exit_code not in _EXIT_CODES:
        raise ValueError("it reports an exit code that no command has")
    return StepStatus(
        name=printable(step.name, _NAME_CHARACTERS),
        phase=_STEP_PHASES[step.phase],
        exit_code=step.exit_code if step.HasField("exit_code") else None,
        started_at=_time(step.started_at) if step.HasField("started_at") else None,
        finished_at=_time(step.finished_at) if step.HasField("finished_at") else None,
    )


def _time(timestamp: Timestamp) -> str:
    if not 0 <= timestamp.seconds <= _LAST_SECOND:
        raise ValueError("it reports a time at which no command has run")
    return dt.datetime.fromtimestamp(timestamp.seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
