"""Lends an uninstall the copy of what was installed, and lets go of copies that nothing would use.

`keeping` has stored them, each with its run. `dispatches` calls `lend`, `installations` the rest.
"""

from collections.abc import Iterable, Sequence

from outhaul_api.agentaction import AgentAction, KeptSource
from outhaul_api.vocabulary import Action, ActionCondition, ActionPhase, SecretType

from outhaul_operator import guarded, names, statuses
from outhaul_operator.decisions import reference_of
from outhaul_operator.engines.plan import SOURCE_DIR, Plan
from outhaul_operator.kinds import Kind
from outhaul_operator.passes import Pass


def lend(plan: Plan, actions: Iterable[AgentAction]) -> None:
    """Gives an uninstall the copy of what was installed, where there is one. Pure.

    What is there counts, and the copy for what is not: a script that was mended, or a password that has changed since,
    is used as it is now.

    Args:
        plan: The uninstall.
        actions: The Installation's runs.
    """
    copy = holder(actions)
    if copy is None:
        return
    required = [one for one in plan.copy_from if one == SOURCE_DIR]
    plan.kept_source = KeptSource(secret_name=names.source_secret_name(copy.metadata.name), required=required)
    for volume in plan.volumes:
        for kind in volume.keys() & {"configMap", "secret"}:
            volume[kind] = {**volume[kind], "optional": True}


def holder(actions: Iterable[AgentAction]) -> AgentAction | None:
    """Returns the run whose copy an uninstall would use. Pure.

    The newest that succeeded since nothing was installed: what it was made from is known to work. Where none has, the
    newest that failed.
    """
    actions = list(actions)
    ended = [one for one in actions if one.spec.action is Action.UNINSTALL and _succeeded(one)]
    since = max((reference_of(one).number for one in ended), default=0)
    kept = [one for one in actions if is_kept(one) and reference_of(one).number > since]
    return max(kept, key=lambda one: (_succeeded(one), reference_of(one).number), default=None)


def superseded(actions: Sequence[AgentAction]) -> list[AgentAction]:
    """Returns the runs that have ended and whose copy nothing would use. Pure."""
    used = holder(actions)
    over = [one for one in actions if one.status.phase is not None and one.status.phase.is_final]
    return [one for one in over if is_kept(one) and one is not used]


def is_kept(action: AgentAction) -> bool:
    """Tells whether a run says that a copy of what it was made from is kept. Pure."""
    return any(one.type == ActionCondition.SOURCE_KEPT and one.status == "True" for one in action.status.conditions)


def _succeeded(action: AgentAction) -> bool:
    return action.status.phase is ActionPhase.SUCCEEDED


async def drop(this: Pass, actions: Iterable[AgentAction]) -> None:
    """Deletes the copies of these runs, and says so on each run that has one."""
    for action in filter(is_kept, actions):
        name, uid = names.source_secret_name(action.metadata.name), action.metadata.uid
        await guarded.guarded_delete(this.cluster, this.namespace, name, SecretType.SOURCE, uid)
        status = statuses.source_not_kept(action.status, "nothing would use it any more")
        body = {"metadata": action.metadata.to_json()}
        written = await this.cluster.apply_status(Kind.AGENT_ACTION, body, status.to_json())
        this.context.view.put(Kind.AGENT_ACTION, written)
