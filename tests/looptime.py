"""Event loops whose time does not pass by itself, so that no test sleeps."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Impatient(selectors.SelectSelector):
    """A selector that never waits: it says how long it should have."""

    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everything waits, and nothing will come")
        if not ready and timeout is not None:
            self._skip(timeout)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop that begins at time 0; where nothing is left but to wait for a time, it is that time."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Impatient(self._skip))

    def time(self) -> float:
        """Returns the loop's own time, in seconds."""
        return self._now

    def _skip(self, seconds: float) -> None:
        # A timer is due up to the clock's resolution early, so a step that rounding makes too short still ends.
        self._now += max(0.0, seconds)


class AdvancingLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes as everybody's, and faster when it is told to; for tests with real sockets."""

    def __init__(self) -> None:
        self._ahead = 0.0
        super().__init__()

    def time(self) -> float:
        """Returns the loop's own time, in seconds."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Makes it later."""
        self._ahead += seconds


def run_jumping(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in a loop of its own that jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)
