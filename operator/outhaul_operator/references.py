"""Versions of the ConfigMaps and Secrets that Installations refer to, in namespaces that let the operator watch them.

A namespace opts in by granting `list` and `watch` on both (deploy/components/watch-inputs); elsewhere a change counts
at the next run. Only metadata is asked for, and of it only the version is kept. It is no proof against reading: the
copy that `kubectl apply` leaves in an annotation is part of an object's metadata.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from outhaul_operator import logs
from outhaul_operator.apierrors import ApiError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object

_KINDS = (Kind.CONFIG_MAP, Kind.SECRET)
_PAUSE_S = 5.0
_REOPEN_S = 1.0
_FORGET = 3
"""After so many intervals in which nobody has asked, a namespace is followed no longer."""

_logger = logging.getLogger(__name__)


@dataclass
class _Namespace:
    """What is known of one namespace."""

    task: asyncio.Task[None]
    asked_at: float
    """When somebody last wanted to know of it, by the loop's clock."""
    allowed: bool | None = None
    """None until it was asked for, and while its objects have not been listed."""
    versions: dict[tuple[Kind, str], str] = field(default_factory=dict)


class References:
    """Watches the namespaces that it is asked about.

    Args:
        cluster: The API server.
        changed: Told of a namespace in which something has changed.
        interval_s: How often a namespace that has not opted in is asked again.
    """

    def __init__(self, cluster: Cluster, changed: Callable[[str], None], interval_s: float) -> None:
        self._cluster = cluster
        self._changed = changed
        self._interval_s = interval_s
        self._namespaces: dict[str, _Namespace] = {}

    def is_known(self, namespace: str) -> bool:
        """Tells whether versions can be told, or it is clear that they cannot. The first call begins to find out."""
        now = asyncio.get_running_loop().time()
        if namespace not in self._namespaces:
            task = asyncio.create_task(self._follow(namespace), name=f"references of {namespace}")
            self._namespaces[namespace] = _Namespace(task, now)
        known = self._namespaces[namespace]
        known.asked_at = now
        return known.allowed is not None

    def version(self, kind: Kind, namespace: str, name: str) -> str | None:
        """Returns an object's version; None where there is none, and where the namespace has not opted in."""
        known = self._namespaces.get(namespace)
        return known.versions.get((kind, name)) if known is not None and known.allowed else None

    async def close(self) -> None:
        """Stops watching."""
        tasks = [one.task for one in self._namespaces.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, namespace: str) -> None:
        logs.about(f"Namespace {namespace}")
        while self._is_wanted(namespace):
            pause = _PAUSE_S
            try:
                known = self._namespaces[namespace]
                allowed = [await self._cluster.may_watch(kind, namespace) for kind in _KINDS]
                if all(allowed):
                    async with asyncio.TaskGroup() as group:
                        synced = [asyncio.Event() for _ in _KINDS]
                        for kind, event in zip(_KINDS, synced, strict=True):
                            group.create_task(self._watch(namespace, kind, event))
                        for event in synced:
                            await event.wait()
                        known.allowed = True
                        self._changed(namespace)
                else:
                    was, known.allowed = known.allowed, False
                    if was is not False:
                        self._changed(namespace)
                    pause = self._interval_s
            except* ApiError as errors:
                _logger.info("watching what Installations refer to: %s", errors.exceptions[0])
            except* Exception:
                _logger.exception("watching what Installations refer to: will be tried again")
            await asyncio.sleep(pause)
        del self._namespaces[namespace]

    def _is_wanted(self, namespace: str) -> bool:
        """Tells whether a namespace may still have an Installation that refers to something: each is looked at."""
        return asyncio.get_running_loop().time() - self._namespaces[namespace].asked_at < _FORGET * self._interval_s

    async def _watch(self, namespace: str, kind: Kind, synced: asyncio.Event) -> None:
        items, version = await self._cluster.list_metadata(kind, namespace)
        known = self._namespaces[namespace]
        fresh = {(kind, item["metadata"]["name"]): _version(item) for item in items}
        stale = {key for key in known.versions if key[0] is kind and key not in fresh}
        for key in stale:
            del known.versions[key]
        known.versions |= fresh
        synced.set()
        while self._is_wanted(namespace):
            async for event in self._cluster.watch_metadata(kind, namespace, version):
                metadata = event["object"]["metadata"]
                version = metadata["resourceVersion"]
                key = kind, metadata["name"]
                if event["type"] == "DELETED":
                    known.versions.pop(key, None)
                else:
                    known.versions[key] = _version(event["object"])
                self._changed(namespace)
            # A server that ends it at once is not asked again at once.
            await asyncio.sleep(_REOPEN_S)


def _version(obj: Object) -> str:
    return f"{obj['metadata']['uid']}/{obj['metadata']['resourceVersion']}"
