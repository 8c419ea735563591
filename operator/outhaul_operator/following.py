"""Follows a run at its agent to its final state. `runs` calls it once it is connected."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from outhaul_operator.agents import AgentUnreachable
from outhaul_operator.agentstates import RunState

_PROGRESS_S = 10.0
"""The least time between two writes of a run's progress."""


async def follow(
    states: AsyncIterator[RunState],
    heard: Callable[[RunState], Awaitable[None]],
    note: Callable[[RunState], Awaitable[None]],
    cancelled: asyncio.Event,
    stop: Callable[[], Awaitable[None]],
) -> RunState:
    """Returns the run's final state.

    Args:
        states: What the agent says of its run, as it comes.
        heard: Told of a state; one that comes while it is still busy with another may be left out.
        note: Told of the run's progress, not too often.
        cancelled: Set once the run is to stop.
        stop: Has it stopped. It is called at most once, and not where the commands have ended already.

    Raises:
        AgentUnreachable: The agent cannot be heard any more.
        AgentError: It broke the protocol.
    """
    following = _Following(states)
    reader = asyncio.create_task(following.read())
    reader.add_done_callback(lambda _: following.arrived.set())
    stopper = asyncio.create_task(following.stop_once(cancelled, stop))
    written_at = time.monotonic()
    try:
        while not reader.done():
            await following.arrived.wait()
            following.arrived.clear()
            if following.newest is not None:
                await heard(following.newest)
            pause = written_at + _PROGRESS_S - time.monotonic()
            if pause > 0:
                await asyncio.wait({reader}, timeout=pause)
            if not reader.done() and following.newest is not None:
                await note(following.newest)
                written_at = time.monotonic()
        return await reader
    finally:
        for task in (reader, stopper):
            task.cancel()
        await asyncio.gather(reader, stopper, return_exceptions=True)


class _Following:
    def __init__(self, states: AsyncIterator[RunState]) -> None:
        self._states = states
        self._begun = asyncio.Event()
        self.newest: RunState | None = None
        self.arrived = asyncio.Event()
        """Set when there is something new, the end of it all too."""

    async def read(self) -> RunState:
        async for state in self._states:
            self.newest = state
            self._begun.set()
            self.arrived.set()
        if self.newest is None:
            raise AgentUnreachable("the agent said nothing about its run")
        return self.newest

    async def stop_once(self, cancelled: asyncio.Event, stop: Callable[[], Awaitable[None]]) -> None:
        await self._begun.wait()
        await cancelled.wait()
        if self.newest is not None and not self.newest.is_final:
            await stop()
