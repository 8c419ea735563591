"""The status of an AgentAction at each turn of its run: the one place that maps what happened to conditions. Pure."""

from contextlib import suppress
from datetime import UTC, datetime

from outhaul_api.agentaction import AgentAction, AgentActionStatus
from outhaul_api.common import seconds
from outhaul_api.vocabulary import ActionCondition, ActionPhase, Reason, StepPhase
from outhaul_grpc.protocol import COLLECT_TIMEOUT, KILL_GRACE
from pydantic import ValidationError

from outhaul_operator.agentstates import RunState, printable
from outhaul_operator.encoding import MAX_SECRET_BYTES
from outhaul_operator.kinds import Object
from outhaul_operator.latest import Shown
from outhaul_operator.publishing import Publication
from outhaul_operator.situations import Situation
from outhaul_operator.verdicts import StalledError, condition, now

OVERTIME_S = COLLECT_TIMEOUT + KILL_GRACE + 3600.0
"""How long after its timeout a run may go on: outputs are read then, and a node may be slow."""


def read(obj: Object) -> AgentActionStatus:
    """Returns the status that an AgentAction has; an empty one where it cannot be read."""
    try:
        return AgentActionStatus.model_validate(obj.get("status", {}))
    except ValidationError:
        return AgentActionStatus()


def _with(
    status: AgentActionStatus, *conditions: tuple[ActionCondition, bool, Reason, str], **changes: object
) -> AgentActionStatus:
    result = status.model_copy(update=changes)
    new = {
        str(type_): condition(status.conditions, type_, reason, text, status=is_true)
        for type_, is_true, reason, text in conditions
    }
    result.conditions = [new.pop(one.type, one) for one in status.conditions] + list(new.values())
    return result


def tells_of_source(status: AgentActionStatus) -> bool:
    """Tells whether it is settled if a copy of the run's source is kept."""
    return any(one.type == ActionCondition.SOURCE_KEPT for one in status.conditions)


def source_kept(status: AgentActionStatus, name: str) -> AgentActionStatus:
    """A copy of what the run is made from is in a Secret of this name."""
    message = f"a copy of what the run was made from is in Secret {name}"
    return _with(status, (ActionCondition.SOURCE_KEPT, True, Reason.SOURCE_KEPT, message))


def source_not_kept(status: AgentActionStatus, why: str, reason: Reason = Reason.SOURCE_NOT_KEPT) -> AgentActionStatus:
    """No copy is kept of what the run is made from, and this is why."""
    message = f"no copy is kept of what the run was made from: {why}; an uninstall needs what the spec refers to"
    return _with(status, (ActionCondition.SOURCE_KEPT, False, reason, message))


def pending(
    status: AgentActionStatus, reason: Reason, message: str, *, pod: Situation | None = None
) -> AgentActionStatus:
    """Nothing has started, and this is why."""
    scheduled = pod is not None and pod.scheduled
    first = (
        (ActionCondition.SCHEDULED, True, Reason.POD_PENDING, "the pod has a node")
        if scheduled
        else (ActionCondition.SCHEDULED, False, reason, message)
    )
    return _with(
        status,
        first,
        (ActionCondition.STARTED, False, reason, message),
        phase=ActionPhase.PENDING,
        pod=(pod.pod or None) if pod is not None else status.pod,
        reason=reason,
        message=message[:4096],
    )


def running(status: AgentActionStatus, situation: Situation, pod: str) -> AgentActionStatus:
    """The agent's container runs."""
    return _with(
        status,
        (ActionCondition.SCHEDULED, True, Reason.STARTED, "the pod has a node"),
        (ActionCondition.STARTED, True, Reason.STARTED, situation.message),
        phase=ActionPhase.RUNNING,
        pod=pod,
        reason=None,
        message=None,
        started_at=status.started_at or now(),
    )


def seconds_left(action: AgentAction, status: AgentActionStatus) -> float:
    """Returns how long a run may still go on, by the time of its start: its agent ends it long before that."""
    moment = datetime.now(UTC)
    with suppress(TypeError, ValueError):  # what somebody else has written
        moment = min(moment, datetime.fromisoformat(status.started_at or now()))
    return (moment - datetime.now(UTC)).total_seconds() + seconds(action.spec.timeout) + OVERTIME_S


def unreachable(status: AgentActionStatus, situation: Situation, words: str) -> AgentActionStatus:
    """The agent's container runs, and for some time nobody could talk to it."""
    message = (
        f"{situation.message}, but its agent does not answer at {situation.ip}: {words}; "
        "the run goes on, and its outputs are fetched once it does. "
        "Does a NetworkPolicy keep the operator out, does something else have this address, or is a clock wrong?"
    )
    return status.model_copy(update={"reason": Reason.AGENT_UNREACHABLE, "message": message[:4096]})


def refused(status: AgentActionStatus, words: str) -> AgentActionStatus:
    """The run has brought outputs that the API server does not take, for now."""
    message = f"the API server refuses the outputs, which the agent holds meanwhile; it is tried again: {words}"
    return _with(
        status,
        (ActionCondition.OUTPUTS_COLLECTED, False, Reason.OUTPUTS_REFUSED, message),
        reason=Reason.OUTPUTS_REFUSED,
        message=message[:4096],
    )


def progressed(status: AgentActionStatus, state: RunState) -> AgentActionStatus:
    """The agent has told how far it is. A termination message may leave out steps; those that were known stay."""
    known = {one.name: one for one in status.steps} | {one.name: one for one in state.steps}
    return status.model_copy(update={"steps": list(known.values())})


def ended(
    status: AgentActionStatus, state: RunState, *, output: str | None, shown: Shown | StalledError | None = None
) -> AgentActionStatus:
    """The run has ended as its agent says."""
    if state.phase is ActionPhase.SUCCEEDED:
        return succeeded(status, output, shown)
    # A last word may leave out steps, but none that has failed, and never all of them but those that never started.
    if state.steps and all(one.phase in {StepPhase.PENDING, StepPhase.SKIPPED} for one in state.steps):
        status = status.model_copy(update={"started": False})
    reason = state.reason or Reason.RUN_FAILED
    if state.phase is ActionPhase.CANCELLED:
        return cancelled(status, reason, state.message)
    return failed(status, reason, state.message, output=output)


def cancelled(status: AgentActionStatus, reason: Reason, message: str) -> AgentActionStatus:
    """The run was told to stop."""
    return _with(
        status,
        (ActionCondition.COMPLETED, False, reason, message),
        phase=ActionPhase.CANCELLED,
        reason=reason,
        message=message[:4096],
    )


def succeeded(status: AgentActionStatus, output: str | None, shown: Shown | StalledError | None) -> AgentActionStatus:
    """Every command succeeded, and what there is of outputs can be read.

    Args:
        status: The status so far.
        output: The record's name, where there is one.
        shown: What the latest Secret was made from, or why it could not be written.
    """
    result = _with(
        status,
        (ActionCondition.COMPLETED, True, Reason.SUCCEEDED, "every command succeeded"),
        phase=ActionPhase.SUCCEEDED,
        reason=None,
        message=None,
        output=output,
        publication=shown.digest if isinstance(shown, Shown) else None,
        latest_secret=shown.name if isinstance(shown, Shown) else None,
    )
    if output is None:
        return result
    reason, text = Reason.PUBLISHED, f"the outputs are in InstallationOutput {output}"
    if isinstance(shown, StalledError):
        reason, text = shown.reason, shown.message
    return _with(result, (ActionCondition.OUTPUTS_COLLECTED, True, reason, text))


def failed(status: AgentActionStatus, reason: Reason, message: str, *, output: str | None = None) -> AgentActionStatus:
    """The run has failed."""
    commands_ok = bool(status.steps) and all(one.phase is StepPhase.SUCCEEDED for one in status.steps)
    conditions = [(ActionCondition.FAILED, True, reason, message)]
    if commands_ok:
        conditions.append((ActionCondition.COMPLETED, True, Reason.SUCCEEDED, "every command succeeded"))
        conditions.append((ActionCondition.OUTPUTS_COLLECTED, False, reason, message))
    return _with(
        status,
        *conditions,
        phase=ActionPhase.FAILED,
        reason=reason,
        message=message[:4096],
        output=output or status.output,
    )


def too_large(status: AgentActionStatus, publication: Publication) -> AgentActionStatus:
    """Every command succeeded, but an output fits into no Secret; the others are kept in the record."""
    which = ", ".join(f"{printable(one.name, 64)} ({len(one.data):,} bytes)" for one in publication.too_large[:5])
    message = (
        f"these outputs are larger than a Secret's {MAX_SECRET_BYTES:,} bytes: {which}; store them elsewhere and "
        f"output where they are. The others are in InstallationOutput {publication.record}"
    )
    return failed(status, Reason.OUTPUT_TOO_LARGE, message, output=publication.record)
