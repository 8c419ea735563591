"""Removes the pod and the Secret of a run that has ended, after its AgentConfig's `ttlSecondsAfterFinished`.

The AgentAction stays, with everything that was learned. The pod goes last: its absence says that all was done. Where
somebody else has deleted it, the Secret goes by itself.
"""

from datetime import UTC, datetime

from outhaul_api.agentaction import AgentAction
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.vocabulary import SecretType
from pydantic import ValidationError

from outhaul_operator import configs, guarded, launches, names, ownership
from outhaul_operator.apierrors import NotFoundError
from outhaul_operator.context import Context
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.verdicts import VerdictError

DEFAULT_TTL_S = 600
_LATELY_S = 86400
"""A run that ended before, and has no pod, was cleaned by an operator that ran then."""
_MOST_KNOWN = 10_000


class Cleaner:
    """Cleans up after runs.

    Args:
        context: What that needs.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clean: set[str] = set()
        """The uids of runs whose Secret is gone; no more than a guess, which saves requests."""

    async def clean(self, obj: Object) -> float | None:
        """Deletes the run's own Secret and then its pod, once their time is over.

        Returns:
            The seconds until then, or None where there is nothing left to do.
        """
        try:
            action = AgentAction.model_validate(obj)
        except ValidationError:
            # It was refused before anything was made for it.
            return None
        namespace, finished_at = action.metadata.namespace, action.status.finished_at
        if finished_at is None:
            return None
        pod = await self._pod(action, is_late=_age(finished_at) >= _LATELY_S)
        if pod is None or not ownership.is_of_run(pod, action):
            if _age(finished_at) < _LATELY_S:
                await self._delete_secret(action)
            return None
        left = await self._seconds_left(action, finished_at)
        if left > 0:
            return left
        await self._delete_secret(action)
        await self._context.cluster.delete(Kind.POD, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        return None

    async def _pod(self, action: AgentAction, *, is_late: bool) -> Object | None:
        key = launches.pod_key(action)
        pod = self._context.view.get(key)
        if pod is not None or is_late or action.metadata.uid in self._clean:
            return pod
        try:
            # That it was not seen does not say that it is not there: an operator that has just started has seen little.
            pod = await self._context.cluster.get(*key)
        except NotFoundError:
            return None
        self._context.view.put(Kind.POD, pod)
        return pod

    async def _delete_secret(self, action: AgentAction) -> None:
        namespace, uid = action.metadata.namespace, action.metadata.uid
        if uid in self._clean:
            return
        name = names.run_secret_name(action.metadata.name)
        await guarded.guarded_delete(self._context.cluster, namespace, name, SecretType.RUN, uid)
        if len(self._clean) == _MOST_KNOWN:
            self._clean.clear()
        self._clean.add(uid)

    async def _seconds_left(self, action: AgentAction, finished_at: str) -> float:
        context, reference = self._context, action.spec.agent_config
        name = reference.name if reference is not None else None
        about = context.settings.namespace, action.metadata.namespace, name
        try:
            left = _ttl(configs.seen(context.view, *about)) - _age(finished_at)
            if left <= 0:
                # What goes does not come back: the server is asked before.
                left = _ttl(await configs.resolve(context.cluster, *about)) - _age(finished_at)
        except VerdictError:
            return DEFAULT_TTL_S - _age(finished_at)
        return left


def _age(finished_at: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(finished_at)).total_seconds()


def _ttl(config: AgentConfigSpec) -> float:
    ttl = config.ttl_seconds_after_finished
    return DEFAULT_TTL_S if ttl is None else ttl
