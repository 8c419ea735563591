"""Follows the Installations of the namespace, and tells when which of them were ready."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from cluster.kubelet.api import Api, Changed, Relisted
from cluster.objects import Json, condition_of

from bench.scale.places import NAMESPACE

_PATH = f"/apis/outhaul.dev/v1alpha1/namespaces/{NAMESPACE}/installations"


_DEADLINE_S = 900.0
"""What takes longer ends the measurement."""


class Follower:
    """When each Installation was seen ready first, by a monotonic clock."""

    def __init__(self) -> None:
        self.ready_at: dict[str, float] = {}
        self._changed = asyncio.Event()

    async def ready(self, names: Iterable[str]) -> float:
        """Waits until all of these are ready; returns when the last one was."""
        wanted = set(names)
        await self.count(wanted, len(wanted))
        return max(self.ready_at[name] for name in wanted)

    async def count(self, names: Iterable[str], count: int) -> None:
        """Waits until so many of these are ready."""
        wanted = set(names)
        async with asyncio.timeout(_DEADLINE_S):
            while len(wanted & self.ready_at.keys()) < count:
                await self._changed.wait()
                self._changed.clear()

    def observe(self, installation: Json) -> None:
        """Takes note of an Installation."""
        found = condition_of(installation, "Ready")
        name = installation["metadata"]["name"]
        if found is not None and found["status"] == "True" and name not in self.ready_at:
            self.ready_at[name] = time.monotonic()
            self._changed.set()


@asynccontextmanager
async def following(kubeconfig: Path) -> AsyncIterator[Follower]:
    """Follows from now on."""
    follower, listed = Follower(), asyncio.Event()

    async def follow(api: Api) -> None:
        async for event in api.follow(_PATH):
            match event:
                case Relisted(items):
                    for item in items:
                        follower.observe(item)
                    listed.set()
                case Changed(item):
                    follower.observe(item)

    async with Api.from_kubeconfig(kubeconfig) as api:
        task = asyncio.create_task(follow(api))
        await listed.wait()
        try:
            yield follower
        finally:
            task.cancel()
