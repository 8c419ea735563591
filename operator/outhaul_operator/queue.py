"""Keyed work queue: what kopf lacks and a level-triggered operator needs.

A key is worked on once at a time; what is added meanwhile makes it run once more afterwards. A key that fails is
tried again with a growing, jittered delay, and never holds up another; where many wait, groups
take turns. No library on PyPI was found that does this without bringing a broker of its own.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Generic, TypeVar

from outhaul_operator.turns import Turns

Key = TypeVar("Key", bound=Hashable)

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 300.0


def backoff(failures: int, jitter: Callable[[], float] = random.random, *, longest_s: float = LONGEST_DELAY_S) -> float:
    """Returns how long to wait after so many failures in a row: doubling, bounded, with up to 50 % of jitter.

    Args:
        failures: One or more.
        jitter: Returns a number from 0 to 1.
        longest_s: Where it stops to grow.

    Returns:
        Seconds.
    """
    base = min(longest_s, FIRST_DELAY_S * 2.0 ** min(failures - 1, 32))
    return base * (1.0 + 0.5 * jitter())


class Queue(Generic[Key]):
    """Calls `work` for each key that was added, as often as needed.

    Args:
        work: Reconciles one key. It returns the seconds after which it wants to be called again, or None; an
            exception is reported and the key tried again with back-off, and not before the exception's
            `retry_after_s` where it has one.
        report: Told of each exception, with the key and the number of failures in a row.
        concurrency: How many keys are worked on at a time.
        group: Returns whose key it is: where not all can be worked on at once, the groups take turns.
        patience: Returns how many seconds a key that failed may wait at most.
        share: How many keys of one group are worked on at a time, so that one whose work hangs does not hold up the
            others; None: all.
        longest_s: How long the work on a key may take: it is broken off then, and tried again; None: for ever.
    """

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        report: Callable[[Key, Exception, int], None],
        *,
        concurrency: int = 16,
        group: Callable[[Key], Hashable] = lambda _: None,
        patience: Callable[[Exception], float] = lambda _: math.inf,
        share: int | None = None,
        longest_s: float | None = None,
    ) -> None:
        self._work = work
        self._report = report
        self._turns = Turns(concurrency, share)
        self._group = group
        self._patience = patience
        self._longest_s = longest_s
        self._waiting: dict[Key, float] = {}
        self._working: dict[Key, float] = {}
        """Since when, by the loop's clock."""
        self._dirty: set[Key] = set()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._closed = False

    def __len__(self) -> int:
        """Counts the keys that are worked on or wait for their turn."""
        return len(self._tasks)

    def waiting(self) -> int:
        """Counts the keys that wait for their turn."""
        return len(self._waiting)

    def longest_wait(self) -> float:
        """Returns how long the key has waited that has waited for its turn the longest; seconds."""
        return _age(self._waiting)

    def longest_work(self) -> float:
        """Returns how long the key is worked on that has been worked on the longest; seconds."""
        return _age(self._working)

    def stuck(self) -> str | None:
        """Tells whether work goes on although it was broken off for taking too long; a check of liveness."""
        if self._longest_s is None or self.longest_work() < 2 * self._longest_s:
            return None
        return f"something is worked on for {self.longest_work():.0f} s, and does not end"

    def add(self, key: Key) -> None:
        """Asks for one more look at the key, soon."""
        if self._closed:
            return
        self._cancel_timer(key)
        if key in self._tasks:
            self._dirty.add(key)
        else:
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"work {key}")

    def add_after(self, key: Key, delay_s: float) -> None:
        """Asks for a look after the delay; a look that comes before makes it needless."""
        if self._closed:
            return
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_later(delay_s, self._due, key)

    async def close(self) -> None:
        """Takes no more keys and cancels what is under way."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _run(self, key: Key) -> None:
        try:
            while True:
                self._dirty.discard(key)
                self._waiting[key] = asyncio.get_running_loop().time()
                async with self._turns.place(self._group(key)):
                    self._working[key] = asyncio.get_running_loop().time()
                    del self._waiting[key]
                    delay_s = await self._once(key)
                    del self._working[key]
                if key not in self._dirty:
                    break
        finally:
            self._waiting.pop(key, None)
            self._working.pop(key, None)
            del self._tasks[key]
            self._dirty.discard(key)
        if delay_s is not None:
            self.add_after(key, delay_s)

    async def _once(self, key: Key) -> float | None:
        try:
            async with asyncio.timeout(self._longest_s):
                delay_s = await self._work(key)
        except asyncio.CancelledError:
            if self._closed:
                raise
            # A call on a connection that was closed ends so, and nobody has cancelled this task.
            return self._failed(key, RuntimeError("the work was cancelled from within"))
        except Exception as error:  # noqa: BLE001 - whatever it was, it is reported and tried again
            return self._failed(key, error)
        self._failures.pop(key, None)
        return delay_s

    def _failed(self, key: Key, error: Exception) -> float:
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        self._report(key, error, failures)
        pause_s = max(backoff(failures), min(getattr(error, "retry_after_s", 0.0), LONGEST_DELAY_S))
        return min(pause_s, self._patience(error))


def _age(since: Mapping[Key, float]) -> float:
    return asyncio.get_running_loop().time() - min(since.values()) if since else 0.0
