"""What Kubernetes warns of while a pod does not start, such as a volume that cannot be mounted.

The kubelet says it in events alone. They are watched only for a pod that takes its time, only until it starts, and of
a few pods at a time: many that start at once all take their time.
"""

import asyncio
import logging

from outhaul_api.vocabulary import Reason

from outhaul_operator.apierrors import ApiError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Object
from outhaul_operator.turns import Turns

LOOK_AGAIN_S = 60.0
"""How long a wait for an event lasts before the server is asked: a watch may have missed it."""

MOST = 20
"""Pods whose events are watched at a time."""

_logger = logging.getLogger(__name__)


class PodWarnings:
    """The warnings about one run's pod, each told once.

    Args:
        cluster: The API server.
        turns: What the pods of all runs share: see `MOST`.
    """

    def __init__(self, cluster: Cluster, turns: Turns) -> None:
        self._cluster = cluster
        self._turns = turns
        self._told: set[str] = set()

    async def next(
        self, pod: Object, changed: asyncio.Event, timeout_s: float = LOOK_AGAIN_S
    ) -> tuple[Reason, str] | None:
        """Waits for a warning that was not told yet, or until the pod has changed or some seconds have passed.

        Returns:
            The reason and the message for people; None where there was no new warning.
        """
        metadata = pod["metadata"]
        warning = asyncio.create_task(self._first(metadata["namespace"], metadata["uid"]))
        change = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait({warning, change}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            warning.cancel()
            change.cancel()
            found, _ = await asyncio.gather(warning, change, return_exceptions=True)
        if isinstance(found, ApiError):
            _logger.warning("the events of the pod cannot be watched: %s", found)
            await is_set(changed, timeout_s)
        if not isinstance(found, dict):
            return None
        is_volume = found["reason"] in {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
        message = f"pod {metadata['name']} has not started: {found['reason']}: {found['message']}"
        return Reason.VOLUME_NOT_READY if is_volume else Reason.POD_PENDING, message

    async def _first(self, namespace: str, uid: str) -> Object | None:
        async with self._turns.place(namespace):
            about = {"involvedObject.uid": uid, "type": "Warning"}
            async for warning in self._cluster.watch_events(namespace, about):
                said = f"{warning.get('reason')} {warning.get('message')}"
                if said not in self._told:
                    self._told.add(said)
                    return warning
        return None


async def is_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits for an event; returns whether it came in time."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
