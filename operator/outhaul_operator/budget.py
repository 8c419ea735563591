"""How many bytes of outputs the process holds at a time, whoever they come from.

Whoever is about to hold outputs reserves first, and waits for its turn. Namespaces take turns, and one of them never
holds more than a share, so that what happens in one does not keep the others waiting. Who waits is served in the end,
since each who holds is bound by deadlines.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outhaul_grpc.protocol import MAX_OUTPUTS, MAX_TOTAL_BYTES

OUTPUT_BYTES = 1536
"""What an output takes beside its value: its name, digest, and place in the record."""
_STORED_BYTES = 1024 * 1024
_STORING = 6
"""What storing takes beside the values: a Secret's worth of them in JSON, in base64, as it is sent and comes back."""
SHARE = MAX_TOTAL_BYTES + MAX_OUTPUTS * OUTPUT_BYTES + _STORING * _STORED_BYTES
"""Bytes for one namespace: the largest run that there can be."""
CAPACITY = 2 * SHARE
"""Bytes in all."""


def weight(count: int, size: int) -> int:
    """Returns what so many outputs take in memory until they are stored.

    Args:
        count: How many.
        size: Bytes of their values together.
    """
    return size + count * OUTPUT_BYTES + _STORING * min(size, _STORED_BYTES)


class BudgetError(Exception):
    """More was asked for than anybody ever gets."""


class Budget:
    """Bytes that are handed out and taken back.

    Args:
        capacity: How many there are.
        share: How many of them one namespace may hold at a time.
    """

    def __init__(self, capacity: int = CAPACITY, share: int = SHARE) -> None:
        self.free = capacity
        self._share = share
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """By namespace, that whose turn is next first."""

    @asynccontextmanager
    async def reserve(self, namespace: str, amount: int) -> AsyncIterator[None]:
        """Holds an amount of bytes, once they are there, for as long as it is open.

        Raises:
            BudgetError: The amount is larger than what one namespace may ever hold.
        """
        if amount > self._share:
            raise BudgetError(f"{amount} bytes are more than a share of {self._share}")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append((amount, turn))
        self._serve()
        try:
            await turn
            yield
        finally:
            self._leave(namespace, amount, turn)
            self._serve()

    def _leave(self, namespace: str, amount: int, turn: "asyncio.Future[None]") -> None:
        if turn.done() and not turn.cancelled():
            self.free += amount
            self._held[namespace] -= amount
            if not self._held[namespace]:
                del self._held[namespace]
        elif (amount, turn) in self._waiting.get(namespace, ()):
            self._waiting[namespace].remove((amount, turn))
            self._drop_if_idle(namespace)

    def _serve(self) -> None:
        """Gives to each namespace in turn, until the next one has to wait for the whole: nobody overtakes it."""
        while (namespace := self._next()) is not None:
            amount, turn = self._waiting[namespace][0]
            if turn.cancelled():
                self._waiting[namespace].popleft()
                self._drop_if_idle(namespace)
                continue
            if amount > self.free:
                return
            self._waiting[namespace].popleft()
            # To the end of the turns.
            self._waiting[namespace] = self._waiting.pop(namespace)
            self._drop_if_idle(namespace)
            self.free -= amount
            self._held[namespace] += amount
            turn.set_result(None)

    def _next(self) -> str | None:
        """Returns the namespace whose turn it is; those that have to wait for themselves are passed over."""
        return next(
            (
                namespace
                for namespace, queue in self._waiting.items()
                if self._held[namespace] + queue[0][0] <= self._share
            ),
            None,
        )

    def _drop_if_idle(self, namespace: str) -> None:
        if not self._waiting[namespace]:
            del self._waiting[namespace]
