"""Places for so many at a time; of those who wait, the groups take turns.

The queues use it with namespaces as groups: a tenant who asks for a thousand things makes the others wait for one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turns:
    """Hands out places.

    Args:
        places: How many there are.
        share: How many one group may have, so that one that keeps its places does not hold up the others; None: all.
    """

    def __init__(self, places: int, share: int | None = None) -> None:
        self._free = places
        self._share = share
        self._shares: dict[Hashable, asyncio.Semaphore] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """By group, the one whose turn is next first."""

    @asynccontextmanager
    async def place(self, group: Hashable) -> AsyncIterator[None]:
        """Waits for a place, and keeps it to the end of the block."""
        if self._share is None:
            async with self._turn(group):
                yield
        else:
            async with self._shares.setdefault(group, asyncio.Semaphore(self._share)), self._turn(group):
                yield

    @asynccontextmanager
    async def _turn(self, group: Hashable) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(group)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, group: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            group = next(iter(self._waiting))
            waiting = self._waiting.pop(group)
            turn = waiting.popleft()
            if waiting:
                self._waiting[group] = waiting
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
