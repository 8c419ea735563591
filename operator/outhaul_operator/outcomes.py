"""Where an Installation stands, in words and conditions: the one place that maps what was found to its status. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from outhaul_api.agentaction import AgentAction
from outhaul_api.common import Condition
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import (
    CANCEL_ANNOTATION,
    RETRY_ANNOTATION,
    Action,
    ActionPhase,
    InstallationCondition,
    InstallationPhase,
    Reason,
)

from outhaul_operator import retries
from outhaul_operator.decisions import BackingOff, InFlight, Settled, Suspended
from outhaul_operator.dependencies import named
from outhaul_operator.needs import Needs
from outhaul_operator.verdicts import StalledError, VerdictError, condition


@dataclass(frozen=True)
class Outcome:
    """What a pass found, for the status: everything that people and programs may know."""

    phase: InstallationPhase
    reason: Reason
    message: str
    ready: bool = False
    reconciling: bool = False
    stalled: bool = False


def in_flight(decision: InFlight, action: AgentAction | None) -> Outcome:
    """Returns where an Installation stands whose run is under way."""
    run = decision.run
    message = f"run {run.name} is under way ({run.action}, generation {run.generation})"
    reason = Reason.WAITING_FOR_RUN if decision.newer_is_due else Reason.IN_PROGRESS
    is_cancelled = decision.is_cancelled or (action is not None and CANCEL_ANNOTATION in action.metadata.annotations)
    if action is not None and action.status.reason == Reason.OUTPUTS_REFUSED:
        reason, message = Reason.OUTPUTS_REFUSED, f"run {run.name} has ended: {action.status.message}"
    elif is_cancelled:
        message = f"run {run.name} ({run.action}) is being cancelled: its command was told to stop, and has its grace"
    elif (
        action is not None
        and action.status.phase is ActionPhase.PENDING
        and action.status.reason is not None
        and action.status.reason in Reason.__members__.values()
        and action.status.message
    ):
        reason, message = Reason(action.status.reason), f"run {run.name} has not started: {action.status.message}"
    return Outcome(InstallationPhase.RUNNING, reason, message, reconciling=True)


def at_rest(
    decision: Settled | BackingOff | Suspended, action: AgentAction | None, installation: Installation
) -> Outcome:
    """Returns where an Installation stands none of whose runs is under way.

    Args:
        decision: What is due.
        action: The newest run's AgentAction, if it is still there.
        installation: The Installation.
    """
    match decision:
        case Settled():
            return _settled(decision.run, action, installation)
        case BackingOff():
            return _backing_off(decision, action, installation)
        case Suspended():
            message = f"{decision.held.action} is due, and starts once spec.suspend is taken away"
            return Outcome(InstallationPhase.PENDING, Reason.SUSPENDED, message)


def _backing_off(decision: BackingOff, action: AgentAction | None, installation: Installation) -> Outcome:
    run, next_one = decision.run, decision.retry.attempt
    said = find(installation.status.conditions, InstallationCondition.READY)
    why = (action.status.message if action is not None else None) or run.reason or "it does not say why"
    how = f"run {run.name} ({run.action}) has failed: {why}"
    if action is None and said is not None and said.reason == Reason.RETRY_SCHEDULED:
        # The AgentAction was cleaned up; what it said stands here.
        how = said.message.rpartition(_ATTEMPT)[0]
    all_of_them = retries.limit(installation, run) + 1
    message = f"{how}{_ATTEMPT}{next_one} of {all_of_them} starts at {decision.until:%Y-%m-%dT%H:%M:%SZ}"
    return Outcome(InstallationPhase.PENDING, Reason.RETRY_SCHEDULED, message, reconciling=True)


def _settled(run: RunReference, action: AgentAction | None, installation: Installation) -> Outcome:
    if run.phase is ActionPhase.SUCCEEDED:
        message = f"run {run.name} succeeded ({run.action}, generation {run.generation})"
        return Outcome(InstallationPhase.SUCCEEDED, Reason.SUCCEEDED, message, ready=True)
    reason = Reason.UNINSTALL_FAILED if run.action is Action.UNINSTALL else Reason.RUN_FAILED
    said = find(installation.status.conditions, InstallationCondition.READY)
    if action is None and said is not None and said.reason == reason:
        # The AgentAction was cleaned up; what it said stands here.
        return Outcome(InstallationPhase.FAILED, reason, said.message, stalled=True)
    gone = run.reason or "its AgentAction was deleted, or does not belong to this Installation any more"
    why = (action.status.message or "it does not say why") if action is not None else gone
    remedy = f"change the spec, or set the annotation {RETRY_ANNOTATION} to a new value"
    if run.action is Action.UNINSTALL:
        remedy += "; deletionPolicy Orphan gives up what was installed"
    how = "was cancelled"
    if run.phase is ActionPhase.FAILED:
        how = f"has failed, as the {run.attempt - 1} before it" if run.attempt is not None else "has failed"
    message = f"run {run.name} ({run.action}) {how}: {why}. To go on, {remedy}."
    return Outcome(InstallationPhase.FAILED, reason, message, stalled=True)


_ATTEMPT = ". Attempt "
"""What follows in a message on what has failed."""
_NOT_SHOWN = {Reason.SECRET_CONFLICT, Reason.TEMPLATE_FAILED, Reason.OUTPUTS_LOST, Reason.OUTPUT_TOO_LARGE}
"""Why a latest Secret cannot be written."""


def conditions(old: list[Condition], outcome: Outcome, run: RunReference | None, generation: int) -> list[Condition]:
    """Returns the conditions. Reconciling and Stalled are there only while they are true, as kstatus advises.

    Args:
        old: The conditions so far.
        outcome: Where the Installation stands.
        run: Its newest run.
        generation: Of the Installation.
    """
    reason, message = outcome.reason, outcome.message
    result = [condition(old, InstallationCondition.READY, reason, message, status=outcome.ready, generation=generation)]
    if outcome.reconciling:
        result.append(
            condition(old, InstallationCondition.RECONCILING, reason, message, status=True, generation=generation)
        )
    if outcome.stalled:
        result.append(
            condition(old, InstallationCondition.STALLED, reason, message, status=True, generation=generation)
        )
    # What could not be shown is not taken for shown by a pass that has not seen to it.
    before = find(old, InstallationCondition.OUTPUTS_READY)
    is_seen = outcome.ready or outcome.reason is Reason.SUSPENDED
    was_hidden = before is not None and before.reason in _NOT_SHOWN and not is_seen
    if outcome.reason in _NOT_SHOWN:
        outputs = condition(
            old, InstallationCondition.OUTPUTS_READY, reason, message, status=False, generation=generation
        )
    elif run is not None and run.phase is ActionPhase.SUCCEEDED and not is_uninstall_success(run) and not was_hidden:
        shown = f"the outputs of run {run.name} can be read"
        outputs = condition(
            old, InstallationCondition.OUTPUTS_READY, Reason.PUBLISHED, shown, status=True, generation=generation
        )
    elif is_uninstall_success(run) or before is None:
        nothing = "no run has published outputs"
        outputs = condition(
            old, InstallationCondition.OUTPUTS_READY, Reason.NO_OUTPUTS, nothing, status=False, generation=generation
        )
    else:
        outputs = before
    return [*result, outputs]


def dependencies(old: list[Condition], installation: Installation, found: Needs, generation: int) -> list[Condition]:
    """Returns the condition that speaks of what an Installation needs; none where it needs nothing.

    Args:
        old: The conditions so far.
        installation: Who needs it.
        found: What there is.
        generation: Of the Installation.
    """
    if not (named(installation) or installation.spec.inputs):
        return []
    reason, message = Reason.DEPENDENCIES_READY, "everything that this Installation needs is there"
    if found.verdict is not None:
        reason, message = found.verdict.reason, found.verdict.message
    type_ = InstallationCondition.DEPENDENCIES_READY
    return [condition(old, type_, reason, message, status=found.verdict is None, generation=generation)]


def suspension(old: list[Condition], installation: Installation, generation: int) -> list[Condition]:
    """Returns the condition that says that no run starts; none where one may.

    Args:
        old: The conditions so far.
        installation: Whose runs.
        generation: Of the Installation.
    """
    if not installation.spec.suspend or installation.metadata.deletion_timestamp is not None:
        return []
    message = "no run starts while spec.suspend is true"
    type_ = InstallationCondition.SUSPENDED
    return [condition(old, type_, Reason.SUSPENDED, message, status=True, generation=generation)]


def is_uninstall_success(run: RunReference | None) -> bool:
    """Tells whether the newest run has uninstalled what was there."""
    return run is not None and run.action is Action.UNINSTALL and run.phase is ActionPhase.SUCCEEDED


def find(conditions: Iterable[Condition], type_: InstallationCondition) -> Condition | None:
    """Returns the condition of a type."""
    return next((one for one in conditions if one.type == type_), None)


def stalled(error: StalledError) -> Outcome:
    """Returns where an Installation stands that needs a person."""
    return Outcome(InstallationPhase.FAILED, error.reason, error.message, stalled=True)


def waiting(error: VerdictError) -> Outcome:
    """Returns where an Installation stands that waits for something."""
    return Outcome(InstallationPhase.PENDING, error.reason, error.message, reconciling=True)


def uninstalled(message: str) -> Outcome:
    """Returns where an Installation stands that is uninstalled, as its spec asks."""
    return Outcome(InstallationPhase.UNINSTALLED, Reason.UNINSTALLED, message, ready=True)
