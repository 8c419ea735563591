"""What Kubernetes warns of while a pod does not start, such as a volume that cannot be mounted.

The kubelet says it in events alone. They are watched only for a pod that takes its time, and only until it starts.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from outhaul_api.vocabulary import Reason

from outhaul_operator.cluster import ApiError, Cluster, Object

LOOK_AGAIN_S = 60.0
"""How long a wait for an event lasts before the server is asked: a watch may have missed it."""

_logger = logging.getLogger(__name__)


class PodWarnings:
    """The warnings about one run's pod, each told once.

    Args:
        cluster: The API server.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: set[str] = set()

    async def next(self, pod: Object, changed: asyncio.Event) -> tuple[Reason, str] | None:
        """Waits for a warning that was not told yet, or until the pod has changed or a minute has passed.

        Returns:
            The reason and the message for people; None where there was no new warning.
        """
        metadata = pod["metadata"]
        stream = self._cluster.watch_events(metadata["namespace"], metadata["uid"])
        warning = asyncio.create_task(self._first(stream))
        change = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait({warning, change}, timeout=LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            warning.cancel()
            change.cancel()
            found, _ = await asyncio.gather(warning, change, return_exceptions=True)
        if isinstance(found, ApiError):
            _logger.warning("the events of pod %s cannot be watched: %s", metadata["name"], found)
            await is_set(changed, LOOK_AGAIN_S)
        if not isinstance(found, dict):
            return None
        is_volume = found["reason"] in {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
        message = f"pod {metadata['name']} has not started: {found['reason']}: {found['message']}"
        return Reason.VOLUME_NOT_READY if is_volume else Reason.POD_PENDING, message

    async def _first(self, stream: AsyncIterator[Object]) -> Object | None:
        async for warning in stream:
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
