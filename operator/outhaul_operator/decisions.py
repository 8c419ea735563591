"""Which run is due for an Installation, and why. Pure: the object and its runs in, a decision out.

`installations` asks, and acts on the answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from outhaul_api.agentaction import AgentAction
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import (
    CANCEL_ANNOTATION,
    DIGEST_ANNOTATION,
    FIRST_ANNOTATION,
    FORMER_CANCEL_ANNOTATION,
    INPUTS_ANNOTATION,
    RECOLLECT_ANNOTATION,
    RETRY_ANNOTATION,
    RETRY_LIMIT_ANNOTATION,
    Action,
    ActionPhase,
    DeletionPolicy,
    Reason,
)

from outhaul_operator import names, ownership, retries

_NOT_IN_DIGEST = {"deletion_policy", "uninstalled", "depends_on", "retry", "suspend"}
_SHOWING = {"secretName", "keyStyle", "template", "binding", "historyLimit"}
"""Of `outputs`: what says how they are shown, and changes nothing about a run."""


def spec_digest(installation: Installation) -> str:
    """Returns the digest of what a run is made from. A field at its default does not count: a new one starts no run."""
    spec = installation.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_NOT_IN_DIGEST)
    outputs = {key: value for key, value in spec.pop("outputs", {}).items() if key not in _SHOWING}
    return names.digest({**spec, "outputs": outputs} if outputs else spec)


@dataclass(frozen=True)
class Due:
    """A run is to be started."""

    action: Action
    attempt: int = 1
    """Counts the runs for the same, the failed ones before it among them."""


@dataclass(frozen=True)
class InFlight:
    """The newest run has not ended."""

    run: RunReference
    newer_is_due: bool
    is_cancelled: bool = False
    """Whether somebody asks for it to stop."""


@dataclass(frozen=True)
class Settled:
    """Nothing is to be done: the newest run brought about what is wanted, or failed and waits for a person."""

    run: RunReference


@dataclass(frozen=True)
class BackingOff:
    """The newest run has failed, and another one is due at a time that has not come."""

    run: RunReference
    retry: Due
    until: datetime


@dataclass(frozen=True)
class Suspended:
    """A run is due, now or later, and may not start."""

    run: RunReference | None
    held: Due


@dataclass(frozen=True)
class Absent:
    """Nothing is installed, and nothing should be."""


Decision = Due | InFlight | Settled | BackingOff | Suspended | Absent


def decide(
    installation: Installation,
    newest: RunReference | None,
    inputs: str | None = None,
    *,
    compare_inputs: bool = False,
    now: datetime,
) -> Decision:
    """Returns what is due for an Installation, from the object, its newest run and its inputs alone.

    Args:
        installation: The object as the server has it.
        newest: The newest run, with the phase that its AgentAction says.
        inputs: The digest of what it uses of others; None where it uses nothing.
        compare_inputs: Whether a change of it starts a run; not while it cannot be told for sure.
        now: The time.
    """
    decision = _wanted(installation, newest, inputs, compare_inputs=compare_inputs, now=now)
    # A deletion is a word of its own: who suspends does not say that what is installed is to be left behind.
    if not installation.spec.suspend or installation.metadata.deletion_timestamp is not None:
        return decision
    match decision:
        case Due():
            return Suspended(newest, decision)
        case BackingOff():
            return Suspended(newest, decision.retry)
        case InFlight():
            # It goes on: nothing could take its place.
            return replace(decision, newer_is_due=False)
        case _:
            return decision


def _wanted(
    installation: Installation,
    newest: RunReference | None,
    inputs: str | None,
    *,
    compare_inputs: bool,
    now: datetime,
) -> Decision:
    deleting = installation.metadata.deletion_timestamp is not None
    orphan = deleting and installation.spec.deletion_policy is DeletionPolicy.ORPHAN
    to_uninstall = deleting or installation.spec.uninstalled
    retry = _token(installation, RETRY_ANNOTATION)
    if newest is None:
        return Absent() if to_uninstall else Due(Action.INSTALL)
    is_uninstall = newest.action is Action.UNINSTALL
    due = not orphan and (
        is_uninstall != to_uninstall
        or newest.digest != spec_digest(installation)
        or (retry is not None and newest.retry != retry)
        or (compare_inputs and have_inputs_changed(newest.inputs, inputs) and not to_uninstall)
    )
    if newest.phase is None:
        # An orphan waits for it too, unless its pod has not started anything.
        return InFlight(newest, newer_is_due=due or orphan, is_cancelled=_is_cancelled(installation, newest))
    if orphan or (to_uninstall and has_left_nothing(newest)):
        return Absent()
    return _after(installation, newest, is_due=due, to_uninstall=to_uninstall, now=now)


def _after(
    installation: Installation, newest: RunReference, *, is_due: bool, to_uninstall: bool, now: datetime
) -> Decision:
    """Returns what follows a run that has ended; `is_due`: something else is wanted than what it was to bring about."""
    is_first = has_left_nothing(newest) or installation.status.last_succeeded is None
    action = Action.UNINSTALL if to_uninstall else Action.INSTALL if is_first else Action.UPGRADE
    if is_due:
        return Due(action)
    if _is_recollection_due(installation, newest):
        return Due(Action.RECOLLECT)
    if _is_cancelled(installation, newest) or not retries.is_left(installation, newest):
        return Settled(newest)
    retry = Due(Action.RECOLLECT if newest.action is Action.RECOLLECT else action, retries.attempt(newest) + 1)
    until = retries.due_at(installation, newest, now)
    return retry if until <= now else BackingOff(newest, retry, until)


def _token(installation: Installation, annotation: str) -> str | None:
    """Returns what somebody asks with an annotation; an empty one asks for nothing."""
    return installation.metadata.annotations.get(annotation) or None


def _is_cancelled(installation: Installation, newest: RunReference) -> bool:
    """Tells whether somebody has asked for an end since the run was created."""
    asked = _token(installation, CANCEL_ANNOTATION)
    return asked is not None and asked != newest.cancel


def have_inputs_changed(before: str | None, now: str | None) -> bool:
    """Tells whether a run's inputs are others now.

    Versions of ConfigMaps and Secrets that cannot be told any more (the right to watch them was taken back, one is
    missing for a moment) are no change.

    Args:
        before: The digest of the run's inputs: see `inputs.Resolved`.
        now: The digest of what they would be now.
    """
    outputs_before, _, versions_before = (before or "").partition("/")
    outputs, _, versions = (now or "").partition("/")
    return outputs != outputs_before or versions not in {"", versions_before}


def _is_recollection_due(installation: Installation, newest: RunReference) -> bool:
    if newest.action is Action.UNINSTALL:
        return False
    if newest.outputs_lost and newest.action is not Action.RECOLLECT:
        return True
    wanted = _token(installation, RECOLLECT_ANNOTATION)
    is_installed = newest.phase is ActionPhase.SUCCEEDED or newest.action is Action.RECOLLECT
    return wanted is not None and newest.recollect != wanted and is_installed


def next_run(
    installation: Installation,
    newest: RunReference | None,
    due: Due,
    inputs: str | None = None,
    *,
    retry_limit: int | None = None,
) -> RunReference:
    """Returns the run that is to be started after the newest one.

    Args:
        installation: Whose run.
        newest: The newest run, if there was one.
        due: What is due.
        inputs: The digest of other Installations' outputs that it is made from.
        retry_limit: How many further runs may follow it, as far as its AgentConfig says.
    """
    metadata = installation.metadata
    digest = spec_digest(installation)
    number = (newest.number if newest is not None else 0) + 1
    name = names.run_name(metadata.name, uid=metadata.uid, number=number)
    return RunReference(
        name=name,
        action=due.action,
        generation=metadata.generation,
        number=number,
        attempt=due.attempt if due.attempt > 1 else None,
        retry_limit=retry_limit,
        digest=digest,
        inputs=inputs,
        retry=_token(installation, RETRY_ANNOTATION),
        recollect=_token(installation, RECOLLECT_ANNOTATION),
        cancel=_token(installation, CANCEL_ANNOTATION),
        first=True if newest is None or has_left_nothing(newest) else None,
    )


def has_left_nothing(run: RunReference) -> bool:
    """Tells whether nothing is installed after a run: it uninstalled, or no run up to it has started anything."""
    uninstalled = run.action is Action.UNINSTALL and run.phase is ActionPhase.SUCCEEDED
    return uninstalled or (run.started is False and run.first is True)


def reference_of(action: AgentAction) -> RunReference:
    """Returns a run as its Installation remembers it."""
    reference = action.spec.installation
    annotations = action.metadata.annotations
    is_over = action.status.phase is not None and action.status.phase.is_final
    retry_limit = annotations.get(RETRY_LIMIT_ANNOTATION, "")  # people may have changed it since
    return RunReference(
        name=action.metadata.name,
        action=action.spec.action,
        generation=reference.generation if reference is not None else 0,
        number=reference.number if reference is not None else 0,
        attempt=reference.attempt if reference is not None and reference.attempt > 1 else None,
        retry_limit=int(retry_limit) if retry_limit.isdecimal() and len(retry_limit) <= len("100") else None,
        digest=annotations.get(DIGEST_ANNOTATION, ""),
        inputs=annotations.get(INPUTS_ANNOTATION),
        retry=annotations.get(RETRY_ANNOTATION),
        recollect=annotations.get(RECOLLECT_ANNOTATION),
        cancel=annotations.get(FORMER_CANCEL_ANNOTATION),
        first=True if FIRST_ANNOTATION in annotations else None,
        outputs_lost=True if action.status.reason == Reason.OUTPUTS_LOST else None,
        started=False if is_over and action.status.started is False else None,
        phase=action.status.phase if is_over else None,
        reason=action.status.reason if is_over else None,
        finished_at=action.status.finished_at,
    )


def newest_run(
    installation: Installation, actions: Iterable[AgentAction]
) -> tuple[RunReference | None, AgentAction | None]:
    """Returns the newest run, from the Installation's memory and the AgentActions that exist.

    A remembered run that had not ended and whose AgentAction is gone was deleted by somebody: it is Cancelled, and
    never started again.
    """
    remembered = installation.status.action
    theirs = [one for one in actions if belongs(one, installation)]
    newest = max(theirs, key=lambda one: reference_of(one).number, default=None)
    if newest is not None and (remembered is None or reference_of(newest).number >= remembered.number):
        return reference_of(newest), newest
    if remembered is not None and remembered.phase is None:
        return remembered.model_copy(update={"phase": ActionPhase.CANCELLED}), None
    return remembered, None


def belongs(action: AgentAction, installation: Installation) -> bool:
    """Tells whether the AgentAction is a run of the Installation."""
    reference = ownership.installation_of(action)
    return reference is not None and reference.uid == installation.metadata.uid
