"""Installations: the small reconcile around `decisions.decide`.

Called by the queue with an Installation's key, after the Installation, one of its runs, or an Installation that it
waits for has changed. It has the step done that is due: `dispatches` starts a run and `runs` follows it, `showing`
keeps the latest Secret, `endings` lets an Installation go, and `standings` writes where it stands.
"""

import random
import time
from datetime import UTC, datetime

from outhaul_api.vocabulary import InstallationPhase
from pydantic import ValidationError

from outhaul_operator import (
    dependencies,
    dispatches,
    endings,
    history,
    leaving,
    lending,
    namespaces,
    needs,
    outcomes,
    showing,
    standings,
)
from outhaul_operator.agentactions import parse_actions
from outhaul_operator.context import Context
from outhaul_operator.decisions import Absent, BackingOff, Decision, Due, InFlight, Settled, Suspended
from outhaul_operator.outcomes import Outcome
from outhaul_operator.passes import Pass
from outhaul_operator.records import Records
from outhaul_operator.references import References
from outhaul_operator.validation import explain
from outhaul_operator.verdicts import StalledError, WaitingError
from outhaul_operator.view import Key

_FIRST_CHECK_S = 120.0
"""The latest Secrets are compared within this time after a start, so that restarts do not put it off for ever."""


class Installations:
    """Reconciles Installations.

    Args:
        context: The API server and what was seen of it.
        graph: Who waits for whom.
        references: Versions of what Installations refer to.
    """

    def __init__(self, context: Context, graph: dependencies.Graph, references: References) -> None:
        self._context = context
        self._graph = graph
        self._references = references
        self._records = Records(context.cluster)
        self._checked_at: dict[Key, float] = {}
        """When each latest Secret was last compared."""
        self._swept: set[Key] = set()
        """Of which it was looked for what a crash may have left, once since the start."""

    async def reconcile(self, key: Key) -> float | None:
        """Brings one Installation a step further, and says in its status where it stands.

        Returns:
            The seconds until a failed run is tried again, or its latest Secret is to be compared again; None where
            nothing of that is to come.

        Raises:
            ApiError: The API server could not be asked; the pass has to be repeated.
            WaitingError: It waits for something that no watch will report; the pass has to be repeated.
        """
        obj = self._context.view.get(key)
        if obj is None:
            self._checked_at.pop(key, None)
            self._swept.discard(key)
            return None
        try:
            this = Pass(self._context, obj)
        except ValidationError as error:
            if not await endings.leave_unread(self._context.cluster, obj):
                await standings.refuse(self._context.cluster, obj, explain(error))
            return None
        interval = self._context.settings.resync_seconds
        now = time.monotonic()
        # After a start soon, but not all at once; what has not succeeded yet has no Secret that could have been edited.
        has_secret = this.installation.status.last_succeeded is not None
        age = interval - random.uniform(0, min(interval, _FIRST_CHECK_S)) if has_secret else 0.0  # noqa: S311 - jitter
        checked_at = self._checked_at.setdefault(key, now - age)
        is_check_due = now - checked_at >= interval
        this.needs = await needs.look(
            this.installation, self._context.view, self._graph, self._records, self._references
        )
        seen = this.decide(parse_actions(self._context.view.owned(key)))
        decision = await _step(this, seen, check=is_check_due, sweep=key not in self._swept)
        if is_check_due:
            self._checked_at[key] = now
            if isinstance(decision, Settled | BackingOff | Suspended):
                self._swept.add(key)
        times = [self._checked_at[key] + interval - now] if has_secret else []
        if isinstance(decision, BackingOff):
            times.append(max(0.0, (decision.until - datetime.now(UTC)).total_seconds()))
        return min(times, default=None)


async def _step(this: Pass, seen: Decision, *, check: bool, sweep: bool) -> Decision | None:
    """Has done what is due; returns what that was, or None where the Installation is gone."""
    decision: Decision | None = seen
    is_step = isinstance(seen, Due | Absent) or (isinstance(seen, InFlight) and seen.newer_is_due)
    # A run that was not seen may be there all the same: an operator that has just started has seen little.
    is_unseen = this.action is None and this.run != this.installation.status.action
    if is_step or is_unseen:
        # A step that creates or ends something is decided on what the server has now, not on what was seen.
        decision = await this.refresh()
    if decision is None:
        return None
    if this.is_held and leaving.is_forced(this.obj) and not isinstance(decision, Absent):
        await endings.leave_by_force(this)
        return decision
    repeat: WaitingError | None = None
    try:
        outcome = await _act(this, decision, check=check, sweep=sweep)
    except WaitingError as error:
        outcome = outcomes.waiting(error)
        repeat = None if error.is_watched else error
    except StalledError as error:
        outcome = outcomes.stalled(error)
    if outcome is not None and await _is_held_up_for_ever(this, outcome):
        await endings.leave_with_namespace(this)
        return decision
    if outcome is not None:
        await standings.write(this, outcome)
    if repeat is not None:
        raise repeat
    return decision


async def _is_held_up_for_ever(this: Pass, outcome: Outcome) -> bool:
    """Tells whether an uninstall waits for something, or for somebody, in a namespace where it can never be started."""
    is_held_up = this.is_deleting and outcome.phase is not InstallationPhase.RUNNING
    return is_held_up and await namespaces.is_ending(this.cluster, this.namespace)


async def _act(this: Pass, decision: Decision, *, check: bool, sweep: bool) -> Outcome | None:
    """Carries out a decision; returns where the Installation stands then, or None where it goes."""
    match decision:
        case Absent():
            return await endings.end(this)
        case InFlight():
            is_stale = decision.newer_is_due or dispatches.refers_to_former_secrets(this)
            if is_stale and await dispatches.abandon(this):
                decision = InFlight(this.run or decision.run, newer_is_due=True)
            return outcomes.in_flight(decision, this.action)
        case Settled() | BackingOff() | Suspended():
            if decision.run is not None:
                await endings.hold(this)
                await lending.drop(this, lending.superseded(this.actions))
                await history.prune(this.cluster, this.installation, this.actions)
                await showing.keep(this, check=check, sweep=sweep)
            return outcomes.at_rest(decision, this.action, this.installation)
        case Due():
            try:
                return await dispatches.dispatch(this, decision)
            except dispatches.NamespaceEndsError:
                await endings.leave_with_namespace(this)
                return None
