"""A running container's probes over time: when it is started, when it is ready, when it has to be restarted."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from cluster.kubelet.api import Json
from cluster.kubelet.probes import Execute, passes

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


class Health:
    """Follows the probes of one attempt of a container.

    Args:
        spec: The container's spec.
        ip: The pod's address.
        execute: Runs a command in the container.
        ready: Called when readiness changes.
        unwell: Called once when the container should be ended.
    """

    def __init__(
        self,
        spec: Json,
        ip: str,
        *,
        execute: Execute,
        ready: Callable[[bool], Awaitable[None]],
        unwell: Callable[[], Awaitable[None]],
    ) -> None:
        self._spec = spec
        self._ip = ip
        self._execute = execute
        self._ready = ready
        self._unwell = unwell

    async def follow(self) -> None:
        """Probe for ever, or until the container should be ended."""
        if startup := self._spec.get("startupProbe"):
            await asyncio.sleep(startup.get("initialDelaySeconds", 0))
            if not await self._settles(startup, until=True):
                await self._unwell()
                return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._readiness())
            if liveness := self._spec.get("livenessProbe"):
                group.create_task(self._liveness(liveness))

    async def _readiness(self) -> None:
        readiness = self._spec.get("readinessProbe")
        if not readiness:
            await self._ready(True)  # noqa: FBT003 # it is all that the callback takes
            return
        is_ready = False
        await asyncio.sleep(readiness.get("initialDelaySeconds", 0))
        while True:
            is_ready = await self._settles(readiness, until=not is_ready, patient=True)
            await self._ready(is_ready)
            await asyncio.sleep(readiness.get("periodSeconds", 10))

    async def _liveness(self, probe: Json) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        await self._settles(probe, until=False)
        await self._unwell()

    async def _settles(self, probe: Json, *, until: bool, patient: bool = False) -> bool:
        """Probe until the outcome is `until` often enough in a row, or the opposite, unless patient."""
        needed = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
        ports: Sequence[Json] = self._spec.get("ports", [])
        last, in_a_row = until, 0
        while True:
            outcome = await passes(probe, ip=self._ip, ports=ports, execute=self._execute)
            in_a_row = in_a_row + 1 if outcome == last else 1
            last = outcome
            done = outcome == until or (until and not patient)
            if done and in_a_row >= needed[outcome]:
                return outcome
            await asyncio.sleep(probe.get("periodSeconds", 10))
