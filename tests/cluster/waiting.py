"""Waiting for something to become true, with a deadline and a name for what is waited for."""

import time
from collections.abc import Callable
from typing import TypeVar

from cluster.errors import NotInTime

T = TypeVar("T")


def until(probe: Callable[[], T | None], *, what: str, timeout: float = 30.0, interval: float = 0.1) -> T:
    """Calls `probe` until it returns something true, and returns that.

    Args:
        probe: asked again and again; what it raises ends the waiting.
        what: completes "waited N s for ..." in the error.
        timeout: seconds until it is given up.
        interval: seconds between two calls.

    Raises:
        NotInTime: at the deadline.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise NotInTime(f"waited {timeout:g} s for {what}; the last answer was {result!r}")
        time.sleep(interval)
