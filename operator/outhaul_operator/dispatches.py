"""Starts the run that is due, by creating its AgentAction; takes back one that has not started and is not wanted.

`installations` calls it. `runs` carries out what is created here.
"""

from outhaul_api.agentaction import AgentAction
from outhaul_api.vocabulary import INSTALLATION_LABEL, Action, ActionPhase, OutputPhase, Reason

from outhaul_operator import (
    configs,
    endings,
    engines,
    inputs,
    launches,
    lending,
    logs,
    names,
    namespaces,
    needs,
    outcomes,
    publishing,
)
from outhaul_operator.agentactions import agent_action
from outhaul_operator.apierrors import AlreadyExistsError, ApiError, NotFoundError, RefusedError
from outhaul_operator.decisions import Due, InFlight, belongs, next_run, reference_of
from outhaul_operator.engines.plan import Plan
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.outcomes import Outcome
from outhaul_operator.passes import Pass
from outhaul_operator.verdicts import StalledError, WaitingError

_POD_CHECK_S = 5.0
"""How often it is looked whether the pod of a run before has gone: with its AgentAction, nobody is told of it."""


class NamespaceEndsError(Exception):
    """Nothing can be created in the namespace, since it is being deleted."""


async def dispatch(this: Pass, due: Due) -> Outcome | None:
    """Starts a run.

    Returns:
        Where the Installation stands then; None where that cannot be told yet, or where it goes.

    Raises:
        NamespaceEndsError: No run can start there any more.
        StalledError: It needs a person.
        WaitingError: It waits for something.
    """
    spec, action = this.installation.spec, due.action
    await _wait_for_former_pod(this)
    if action is Action.UNINSTALL:
        await needs.wait_for_users(this.cluster, this.installation)
    elif this.needs.verdict is not None:
        raise this.needs.verdict
    elif not this.needs.is_complete:
        # In a moment it will be known, and this be called again.
        return None
    wanted = spec.agent_config.name if spec.agent_config is not None else None
    config = await configs.resolve(this.cluster, this.context.settings.namespace, this.namespace, wanted)
    plan = engines.plan(this.installation, action, config.engine)
    if plan is None:
        return await endings.end_without_a_run(this)
    _add_inputs(this, plan, action)
    if action is Action.UNINSTALL:
        await publishing.mark_records(this.cluster, this.namespace, this.name, OutputPhase.INVALIDATED)
    else:
        await endings.hold(this, is_starting=True)
    run = next_run(this.installation, this.run, due, this.needs.digest, retry_limit=config.retry_limit)
    this.action = await _create(this, agent_action(this.installation, run, plan))
    # Another operator's, perhaps, of what it has seen: then the next pass goes on from there.
    this.run = run = reference_of(this.action)
    logs.during(run.name)
    return outcomes.in_flight(InFlight(run, newer_is_due=False), this.action)


async def _wait_for_former_pod(this: Pass) -> None:
    """Lets the pod of the run before come to its end, where its AgentAction is gone: one run at a time.

    Kubernetes deletes the pod with it, unless somebody has asked to orphan it: then that is for us to do.

    Raises:
        WaitingError: It is still there.
    """
    if this.run is None or this.action is not None:
        return
    try:
        pod = await this.cluster.get(Kind.POD, this.namespace, names.pod_name(this.run.name))
    except NotFoundError:
        return
    metadata = pod["metadata"]
    owners = [one["name"] for one in metadata.get("ownerReferences", []) if one["kind"] == "AgentAction"]
    is_orphan = not owners and metadata.get("labels", {}).get(INSTALLATION_LABEL) == names.label_value(this.name)
    if not (is_orphan or this.run.name in owners) or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return
    if is_orphan and "deletionTimestamp" not in metadata:
        await launches.remove(this.context, pod, unstarted=False)
    words = f"the pod of run {this.run.name}, whose AgentAction is gone, has not ended yet; the next run waits for that"
    raise WaitingError(Reason.WAITING_FOR_RUN, words, at_most_s=_POD_CHECK_S)


def _add_inputs(this: Pass, plan: Plan, action: Action) -> None:
    if this.needs.inputs is not None:
        is_end = action is Action.UNINSTALL
        inputs.add(plan, this.installation, this.needs.inputs, plan.input_prefix, optional=is_end)
    if action is Action.UNINSTALL:
        # Who gave them may be gone: then what the newest run had has to do.
        before = [one for one in this.actions if one.spec.action in {Action.INSTALL, Action.UPGRADE}]
        newest = max(before, key=lambda one: reference_of(one).number, default=None)
        if newest is not None:
            inputs.add_as_before(plan, newest.spec, plan.input_prefix)
        lending.lend(plan, this.actions)


async def _create(this: Pass, body: Object) -> AgentAction:
    name = body["metadata"]["name"]
    try:
        created = await this.cluster.create(Kind.AGENT_ACTION, body)
    except AlreadyExistsError:
        created = await this.cluster.get(Kind.AGENT_ACTION, this.namespace, name)
        if not belongs(AgentAction.model_validate(created), this.installation):
            raise StalledError(
                Reason.NAME_TAKEN, f"AgentAction {name} exists and is not this Installation's; delete it"
            ) from None
    except ApiError as error:
        is_refused = isinstance(error, RefusedError)
        if is_refused and namespaces.says_that_it_ends(error):
            raise NamespaceEndsError from error
        words = f"the run was refused by the API server: {error.message}"
        if error.is_by_policy:
            # Or by a server that starts and has not read the roles yet.
            raise WaitingError(Reason.POD_REFUSED, f"{words}; it is tried again") from error
        if is_refused:
            raise StalledError(Reason.INVALID_SPEC, words) from error
        raise
    this.context.view.put(Kind.AGENT_ACTION, created)
    return AgentAction.model_validate(created)


def refers_to_former_secrets(this: Pass) -> bool:
    """Tells whether the newest run waits for Secrets of a peer's former run, which may be gone."""
    resolved = this.needs.inputs
    if this.action is None or resolved is None or this.action.spec.action is Action.UNINSTALL:
        return False
    return inputs.are_stale(this.action.spec, resolved)


async def abandon(this: Pass) -> bool:
    """Cancels a run whose pod has never started anything; returns whether that was so."""
    if this.action is None or this.run is None or not await launches.take_back(this.context, this.action):
        return False
    # Made of nothing any more, so that whatever is wanted is due.
    gone = {"phase": ActionPhase.CANCELLED, "started": False, "digest": "nothing"}
    this.run = this.run.model_copy(update=gone)
    return True
