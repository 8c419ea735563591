"""Removes the pod and the Secret of a run that has ended, after its AgentConfig's `ttlSecondsAfterFinished`.

The AgentAction stays, with everything that was learned. The pod goes last: its absence says that all was done.
"""

from datetime import UTC, datetime

from outhaul_api.agentaction import AgentAction
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.vocabulary import SecretType
from pydantic import ValidationError

from outhaul_operator import configs, guarded, names, ownership
from outhaul_operator.cluster import Kind, Object
from outhaul_operator.context import Context
from outhaul_operator.verdicts import VerdictError
from outhaul_operator.view import Key

DEFAULT_TTL_S = 600


async def clean(context: Context, obj: Object) -> float | None:
    """Deletes the run's own Secret and then its pod, once their time is over.

    Returns:
    The seconds until then, or None where there is nothing left to do.
    """
    try:
        action = AgentAction.model_validate(obj)
    except ValidationError:
        # It was refused before anything was made for it.
        return None
    namespace, name = action.metadata.namespace, action.metadata.name
    pod = context.view.get(Key(Kind.POD, namespace, names.pod_name(name)))
    if pod is None or not ownership.is_of_run(pod, action) or action.status.finished_at is None:
        return None
    reference = action.spec.agent_config
    about = context.settings.namespace, namespace, reference.name if reference is not None else None
    try:
        left = _seconds_left(action.status.finished_at, configs.seen(context.view, *about))
        if left <= 0:
            # What goes does not come back: the server is asked before.
            left = _seconds_left(action.status.finished_at, await configs.resolve(context.cluster, *about))
    except VerdictError:
        left = _seconds_left(action.status.finished_at, AgentConfigSpec())
    if left > 0:
        return left
    run_secret = names.run_secret_name(name)
    await guarded.guarded_delete(context.cluster, namespace, run_secret, SecretType.RUN, action.metadata.uid)
    await context.cluster.delete(Kind.POD, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    return None


def _seconds_left(finished_at: str, config: AgentConfigSpec) -> float:
    ttl = config.ttl_seconds_after_finished
    since = datetime.now(UTC) - datetime.fromisoformat(finished_at)
    return (DEFAULT_TTL_S if ttl is None else ttl) - since.total_seconds()
