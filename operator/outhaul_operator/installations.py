"""Installations: the small reconcile around `decisions.decide`.

Called by the queue with an Installation's key, after the Installation, one of its runs, or an Installation that it
waits for has changed. It starts runs by creating AgentActions and follows them through their status; `runs` does
the rest.
"""

import logging
import random
import time

from outhaul_api.agentaction import AgentAction
from outhaul_api.installation import Binding, Installation, InstallationStatus, RunReference
from outhaul_api.installationoutput import InstallationOutput
from outhaul_api.vocabulary import (
    INSTALLATION_LABEL,
    Action,
    ActionPhase,
    DeletionPolicy,
    InstallationCondition,
    InstallationPhase,
    OutputPhase,
    Reason,
)
from pydantic import ValidationError

from outhaul_operator import (
    configs,
    dependencies,
    engines,
    events,
    finalizers,
    history,
    inputs,
    latest,
    launches,
    names,
    needs,
    outcomes,
    publishing,
    showing,
)
from outhaul_operator.agentactions import agent_action, parse_actions
from outhaul_operator.cluster import (
    AlreadyExistsError,
    Cluster,
    Kind,
    NotFoundError,
    Object,
    RefusedError,
)
from outhaul_operator.context import Context
from outhaul_operator.decisions import (
    Absent,
    Decision,
    Due,
    InFlight,
    Settled,
    belongs,
    decide,
    newest_run,
    next_run,
    reference_of,
)
from outhaul_operator.engines.plan import Plan
from outhaul_operator.outcomes import Outcome
from outhaul_operator.records import Records
from outhaul_operator.references import References
from outhaul_operator.validation import explain
from outhaul_operator.verdicts import StalledError, WaitingError
from outhaul_operator.view import Key

_TERMINATING = "because it is being terminated"
"""The API server's words when something is created in a namespace that is being deleted."""

_FIRST_CHECK_S = 120.0
"""The latest Secrets are compared within this time after a start, so that restarts do not put it off for ever."""

_logger = logging.getLogger(__name__)


class _NamespaceEndsError(Exception):
    """Nothing can be created in the namespace, since it is being deleted."""


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

    async def reconcile(self, key: Key) -> float | None:
        """Brings one Installation a step further, and says in its status where it stands.

        Returns:
            The seconds until its latest Secret is to be compared again; None where it has none.

        Raises:
            ApiError: The API server could not be asked; the pass has to be repeated.
            WaitingError: It waits for something that no watch will report; the pass has to be repeated.
        """
        obj = self._context.view.get(key)
        if obj is None:
            self._checked_at.pop(key, None)
            return None
        try:
            one = _Pass(self._context, obj)
        except ValidationError as error:
            await _refuse(self._context.cluster, obj, explain(error))
            return None
        interval = self._context.settings.resync_seconds
        now = time.monotonic()
        # After a start soon, but not all at once; what has not succeeded yet has no Secret that could have been edited.
        has_secret = one.installation.status.last_succeeded is not None
        age = interval - random.uniform(0, min(interval, _FIRST_CHECK_S)) if has_secret else 0.0  # noqa: S311 - jitter
        checked_at = self._checked_at.setdefault(key, now - age)
        is_check_due = now - checked_at >= interval
        found = await needs.look(one.installation, self._context.view, self._graph, self._records, self._references)
        await one.run(parse_actions(self._context.view.owned(key)), found, check=is_check_due)
        if is_check_due:
            self._checked_at[key] = now
        return self._checked_at[key] + interval - now if has_secret else None


async def _refuse(cluster: Cluster, obj: Object, why: str) -> None:
    """Says of an Installation that cannot be read what is wrong with it."""
    try:
        status = InstallationStatus.model_validate(obj.get("status", {}))
    except ValidationError:
        status = InstallationStatus()
    generation = obj["metadata"]["generation"]
    outcome = outcomes.stalled(StalledError(Reason.INVALID_SPEC, why))
    status.observed_generation, status.phase = generation, outcome.phase
    status.conditions = outcomes.conditions(status.conditions, outcome, None, generation)
    if status.to_json() == obj.get("status"):
        return
    await cluster.apply_status(Kind.INSTALLATION, obj, status.to_json())
    await events.emit(cluster, obj, "Warning", outcome.reason, outcome.message, fact=str(generation))


class _Pass:
    """One look at one Installation."""

    def __init__(self, context: Context, obj: Object) -> None:
        self._context = context
        self._cluster = context.cluster
        self._view = context.view
        self._take(obj)
        self._run: RunReference | None = None
        self._action: AgentAction | None = None
        self._actions: list[AgentAction] = []
        self._needs = needs.Needs(None, None, is_complete=False)
        self._check = False
        self._shown: str | None = None
        self._is_hidden = False

    @property
    def installation(self) -> Installation:
        return self._installation

    def _take(self, obj: Object) -> None:
        self._obj = obj
        self._installation = Installation.model_validate(obj)
        self._namespace = self._installation.metadata.namespace
        self._name = self._installation.metadata.name

    async def run(self, known: list[AgentAction], found: needs.Needs, *, check: bool) -> None:
        self._needs, self._check = found, check
        decision = self._decide(known)
        is_step = isinstance(decision, Due | Absent) or (isinstance(decision, InFlight) and decision.newer_is_due)
        # A run that was not seen may be there all the same: an operator that has just started has seen little.
        is_unseen = self._action is None and self._run != self._installation.status.action
        if is_step or is_unseen:
            # A step that creates or ends something is decided on what the server has now, not on what was seen.
            try:
                self._put(await self._cluster.get(Kind.INSTALLATION, self._namespace, self._name))
            except NotFoundError:
                return
            decision = self._decide(await self._list_actions())
        repeat: WaitingError | None = None
        try:
            outcome = await self._act(decision)
        except WaitingError as error:
            outcome = outcomes.waiting(error)
            repeat = None if error.is_watched else error
        except StalledError as error:
            outcome = outcomes.stalled(error)
        if outcome is not None:
            await self._write_status(outcome)
        if repeat is not None:
            raise repeat

    def _decide(self, actions: list[AgentAction]) -> Decision:
        self._actions = [one for one in actions if belongs(one, self._installation)]
        self._run, self._action = newest_run(self._installation, self._actions)
        return decide(self._installation, self._run, self._needs.digest, compare_inputs=self._needs.is_complete)

    def _put(self, obj: Object) -> None:
        """Takes in what a write or a fresh read answered."""
        self._view.put(Kind.INSTALLATION, obj)
        self._take(obj)

    async def _list_actions(self) -> list[AgentAction]:
        labels = {INSTALLATION_LABEL: names.label_value(self._name)}
        found = await self._cluster.list(Kind.AGENT_ACTION, self._namespace, labels)
        for obj in found:
            self._view.put(Kind.AGENT_ACTION, obj)
        return parse_actions(found)

    @property
    def _deleting(self) -> bool:
        return self._installation.metadata.deletion_timestamp is not None

    async def _act(self, decision: Decision) -> Outcome | None:
        """Carries out a decision; returns where the Installation stands then, or None where it goes."""
        match decision:
            case Absent():
                return await self._end("uninstalled, as spec.uninstalled asks")
            case InFlight():
                is_stale = decision.newer_is_due or self._refers_to_former_secrets()
                if is_stale and await self._abandon():
                    decision = InFlight(self._run or decision.run, newer_is_due=True)
                return outcomes.in_flight(decision, self._action)
            case Settled():
                await self._hold()
                await history.prune(self._cluster, self._installation, self._actions)
                await self._show()
                return outcomes.settled(decision.run, self._action, self._installation)
            case Due():
                try:
                    return await self._dispatch(decision.action)
                except _NamespaceEndsError:
                    # Nothing can be run here any more, and nobody is left who could be told on an object.
                    _logger.warning("%s/%s: left installed, its namespace is deleted", self._namespace, self._name)
                    await self._release()
                    return None

    async def _end(self, message: str) -> Outcome | None:
        if self._deleting:
            await self._release()
            return None
        binding = self._installation.status.binding
        if binding is not None:
            await latest.withdraw_latest(self._cluster, self._namespace, binding.name, self._installation.metadata.uid)
        return outcomes.uninstalled(message)

    async def _end_without_a_run(self) -> Outcome | None:
        """Remembers an uninstall that takes no run as one that has succeeded: wanted again, it is installed again."""
        if not self._deleting:
            await publishing.mark_records(self._cluster, self._namespace, self._name, OutputPhase.INVALIDATED)
            run = next_run(self._installation, self._run, Action.UNINSTALL)
            self._run, self._action = run.model_copy(update={"phase": ActionPhase.SUCCEEDED}), None
        return await self._end("uninstalled, as spec.uninstalled asks")

    async def _dispatch(self, due: Action) -> Outcome | None:
        spec = self._installation.spec
        if due is Action.UNINSTALL:
            await needs.wait_for_users(self._cluster, self._installation)
        elif self._needs.verdict is not None:
            raise self._needs.verdict
        elif not self._needs.is_complete:
            # In a moment it will be known, and this be called again.
            return None
        wanted = spec.agent_config.name if spec.agent_config is not None else None
        config = await configs.resolve(self._cluster, self._context.settings.namespace, self._namespace, wanted)
        plan = engines.plan(self._installation, due, config.engine)
        if plan is None:
            return await self._end_without_a_run()
        self._add_inputs(plan, due)
        if due is Action.UNINSTALL:
            await publishing.mark_records(self._cluster, self._namespace, self._name, OutputPhase.INVALIDATED)
        else:
            await self._hold()
        run = next_run(self._installation, self._run, due, self._needs.digest)
        self._action = await self._create(agent_action(self._installation, run, plan))
        # Another operator's, perhaps, of what it has seen: then the next pass goes on from there.
        self._run = run = reference_of(self._action)
        message = f"run {run.name} was created to {due} generation {run.generation}"
        await events.emit(self._cluster, self._obj, "Normal", Reason.DISPATCHED, message)
        return outcomes.in_flight(InFlight(run, newer_is_due=False), self._action)

    def _add_inputs(self, plan: Plan, due: Action) -> None:
        if self._needs.inputs is not None:
            is_end = due is Action.UNINSTALL
            inputs.add(plan, self._installation, self._needs.inputs, plan.input_prefix, optional=is_end)
        if due is Action.UNINSTALL:
            # Who gave them may be gone: then what the newest run had has to do.
            before = [one for one in self._actions if one.spec.action in {Action.INSTALL, Action.UPGRADE}]
            newest = max(before, key=lambda one: reference_of(one).number, default=None)
            if newest is not None:
                inputs.add_as_before(plan, newest.spec, plan.input_prefix)

    async def _create(self, body: Object) -> AgentAction:
        name = body["metadata"]["name"]
        try:
            created = await self._cluster.create(Kind.AGENT_ACTION, body)
        except AlreadyExistsError:
            created = await self._cluster.get(Kind.AGENT_ACTION, self._namespace, name)
            if not belongs(AgentAction.model_validate(created), self._installation):
                raise StalledError(
                    Reason.NAME_TAKEN, f"AgentAction {name} exists and is not this Installation's; delete it"
                ) from None
        except RefusedError as error:
            if _TERMINATING in error.message:
                raise _NamespaceEndsError from error
            raise StalledError(
                Reason.INVALID_SPEC, f"the run was refused by the API server: {error.message}"
            ) from error
        self._view.put(Kind.AGENT_ACTION, created)
        return AgentAction.model_validate(created)

    def _refers_to_former_secrets(self) -> bool:
        """Tells whether the newest run waits for Secrets of a peer's former run, which may be gone."""
        resolved = self._needs.inputs
        if self._action is None or resolved is None or self._action.spec.action is Action.UNINSTALL:
            return False
        return inputs.are_stale(self._action.spec, resolved)

    async def _abandon(self) -> bool:
        """Cancels a run whose pod has never started anything; returns whether that was so."""
        if self._action is None or self._run is None or not await launches.take_back(self._context, self._action):
            return False
        self._run = self._run.model_copy(update={"phase": ActionPhase.CANCELLED, "started": False})
        return True

    async def _show(self) -> None:
        """Sees to it that the latest Secret is as it should be.

        Raises:
            StalledError: It cannot be written; the message says why.
        """
        run, status = self._run, self._installation.status
        if run is None or run.action is Action.UNINSTALL:
            return
        is_new = run.phase is ActionPhase.SUCCEEDED
        shown = run if is_new else status.last_succeeded
        action = next((one for one in self._actions if shown is not None and one.metadata.name == shown.name), None)
        if shown is None or action is None or action.status.output is None:
            return
        wanted = showing.wanted_digest(self._installation, shown)
        try:
            # What the run itself has published counts until the Installation has taken note of it, and never again.
            is_known = status.last_succeeded is not None and status.last_succeeded.name == shown.name
            if self._check or wanted != (status.publication if is_known else action.status.publication):
                await showing.show(self._cluster, self._installation, action)
            await showing.withdraw_former(self._cluster, self._installation)
            self._shown = wanted
        except StalledError:
            self._is_hidden = True
            # The failure of the newest run says more.
            if is_new:
                raise

    async def _hold(self) -> None:
        """Sees to it that the finalizer is there where an uninstall has to come before the end, and only there."""
        if not self._deleting:
            wanted = self._installation.spec.deletion_policy is DeletionPolicy.DELETE
            self._put(await finalizers.set_uninstall(self._cluster, self._obj, wanted=wanted))

    async def _release(self) -> None:
        """Takes the finalizer away; the API server and the garbage collector do the rest."""
        self._put(await finalizers.set_uninstall(self._cluster, self._obj, wanted=False))

    async def _write_status(self, outcome: Outcome) -> None:
        """Writes the status where it says anything new, and an event where a person should know."""
        old = self._installation.status
        generation = self._installation.metadata.generation
        status = old.model_copy(
            update={
                "observed_generation": generation,
                "phase": outcome.phase,
                "action": self._run,
                "conditions": outcomes.conditions(old.conditions, outcome, self._run, generation)
                + outcomes.dependencies(old.conditions, self._installation, self._needs, generation),
            }
        )
        await self._remember_success(status, outcome)
        wanted = status.to_json()
        if wanted == self._obj.get("status"):
            return
        self._put(await self._cluster.apply_status(Kind.INSTALLATION, self._obj, wanted))
        said = outcomes.find(old.conditions, InstallationCondition.READY)
        is_new = said is None or (said.reason, said.message) != (outcome.reason, outcome.message)
        is_held_up = outcome.reason in {Reason.AGENT_CONFIG_NOT_FOUND, Reason.IN_USE}
        if is_new and (outcome.stalled or outcome.ready or is_held_up):
            kind: events.EventType = "Normal" if outcome.ready else "Warning"
            run = self._run.name if self._run is not None else ""
            await events.emit(
                self._cluster, self._obj, kind, outcome.reason, outcome.message, fact=f"{generation} {run}"
            )

    async def _remember_success(self, status: InstallationStatus, outcome: Outcome) -> None:
        run, action = self._run, self._action
        if outcomes.is_uninstall_success(run) or outcome.phase is InstallationPhase.UNINSTALLED:
            status.last_succeeded, status.binding, status.outputs, status.publication = None, None, [], None
            return
        if self._is_hidden:
            # So that the next pass tries again, and does not take for shown what is not.
            status.publication = None
        if self._shown is not None:
            status.publication = self._shown
            status.binding = Binding(name=showing.latest_name(self._installation))
        if run is None or run.phase is not ActionPhase.SUCCEEDED:
            return
        known = status.last_succeeded is not None and status.last_succeeded.name == run.name and status.outputs
        status.last_succeeded = run
        if action is not None and action.status.output is not None and not known:
            obj = await self._cluster.get(Kind.INSTALLATION_OUTPUT, self._namespace, action.status.output)
            status.outputs = [one.name for one in InstallationOutput.model_validate(obj).status.outputs]
