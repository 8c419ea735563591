"""Why a pod was stopped, or is gone, although nobody has cancelled its run; or whether one was made: Kubernetes' words.

`runs` asks once a run has ended in that way, `launches` where an operator ended while it started one. The pod's status
may say it; old servers say it in events alone.
"""

import asyncio
from contextlib import suppress

from outhaul_api.vocabulary import Reason

from outhaul_operator.apierrors import ApiError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Object
from outhaul_operator.situations import Situation

LISTEN_S = 2.0
"""How long events are listened to: who has ended the pod may say so a moment later."""
_MOST = 200

_TAKING = {"Preempted", "Evicted", "TaintManagerEviction"}
"""Reasons of events about pods that the scheduler, the node or a controller takes away."""
_LOSING = _TAKING | {"NodeNotReady"}
_TAKEN_BACK = "Cancelling"
"""How the taint manager's words begin where it leaves the pod alone after all."""


async def why_stopped(cluster: Cluster, namespace: str, situation: Situation) -> tuple[Reason, str] | None:
    """Returns why an agent was told to stop; None where somebody has deleted its pod, and no more is known.

    Args:
        cluster: The API server.
        namespace: The pod's.
        situation: The pod's last one.
    """
    if situation.is_taken:
        return situation.reason, situation.message
    name = situation.pod
    said = [one for one in await _events(cluster, namespace, name) if one.get("reason") in _TAKING]
    if said:
        return Reason.EVICTED, f"pod {name} was taken away: {_quoted(said[-1])}"
    if situation.is_deleted:
        return None
    return Reason.POD_LOST, f"pod {name} was stopped, although neither was its run cancelled nor the pod deleted"


async def why_gone(cluster: Cluster, namespace: str, situation: Situation) -> tuple[Reason, str]:
    """Returns why a pod is gone that did not say how its run has ended.

    Args:
        cluster: The API server.
        namespace: The pod's.
        situation: What there is to say of the pod.
    """
    said = [one for one in await _events(cluster, namespace, situation.pod) if one.get("reason") in _LOSING]
    if not said:
        return situation.reason, situation.message
    is_taken = all(one["reason"] in _TAKING for one in said)
    words = "; ".join(dict.fromkeys(map(_quoted, said)))
    return Reason.EVICTED if is_taken else situation.reason, f"{situation.message} ({words})"


async def was_made(cluster: Cluster, namespace: str, pod: str, since: str) -> bool:
    """Tells whether a pod of a name was made that is gone by now: the scheduler and the kubelet speak of each.

    Kubernetes forgets events after an hour.

    Args:
        cluster: The API server.
        namespace: The pod's.
        pod: The pod's name.
        since: What was said before this time (RFC 3339, of the API server's clock) is of another pod of this name.

    Raises:
        ApiError: That cannot be asked.
    """
    return any(one["metadata"]["creationTimestamp"] >= since for one in await _listened(cluster, namespace, pod))


async def _events(cluster: Cluster, namespace: str, pod: str) -> list[Object]:
    """Returns what is said of a pod; nothing where that cannot be had."""
    with suppress(ApiError):
        found = await _listened(cluster, namespace, pod)
        return [one for one in found if not str(one.get("message", "")).startswith(_TAKEN_BACK)]
    return []


async def _listened(cluster: Cluster, namespace: str, pod: str) -> list[Object]:
    found: list[Object] = []
    about = {"involvedObject.kind": "Pod", "involvedObject.name": pod}
    with suppress(TimeoutError):
        async with asyncio.timeout(LISTEN_S):
            async for one in cluster.watch_events(namespace, about):
                found.append(one)
                if len(found) == _MOST:
                    break
    return found


def _quoted(event: Object) -> str:
    return f"{event['reason']}: {event.get('message', '')}"
