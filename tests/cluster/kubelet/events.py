"""Events about pods, counted up when they repeat."""

import hashlib
import logging

from cluster.kubelet.api import Api, ApiError, Json
from cluster.kubelet.statuses import now

logger = logging.getLogger(__name__)
CONFLICT = 409


class Recorder:
    """Posts events; one that repeats is the same object with a higher count."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._counts: dict[str, int] = {}

    async def warn(self, pod: Json, reason: str, message: str, *, component: str = "kubelet") -> None:
        """Post a warning about a pod.

        Args:
            pod: What it is about.
            reason: A word in CamelCase.
            message: A sentence.
            component: Who says so.
        """
        await self.say(pod, reason, message, type_="Warning", component=component)

    async def say(self, pod: Json, reason: str, message: str, *, type_: str = "Normal", component: str) -> None:
        """Post something about a pod: see `warn`."""
        metadata = pod["metadata"]
        digest = hashlib.sha256(f"{metadata['uid']}{reason}{message}".encode()).hexdigest()[:16]
        name = f"{metadata['name']}.{digest}"
        path = f"/api/v1/namespaces/{metadata['namespace']}/events"
        self._counts[name] = count = self._counts.get(name, 0) + 1
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": type_,
            "reason": reason,
            "message": message,
            "source": {"component": component, "host": self._node_name},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": count,
        }
        try:
            if count == 1:
                await self._api.call("POST", path, body=event)
            else:
                change = {"count": count, "lastTimestamp": now()}
                await self._api.call("PATCH", f"{path}/{name}", body=change, patch="merge")
        except ApiError as error:
            if error.status != CONFLICT:
                logger.info("no event %s about %s: %s", reason, metadata["name"], error)
