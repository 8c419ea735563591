"""Shows a sign of life while something takes long: a line every few seconds, on standard error."""

import sys
import time
from collections.abc import Callable

from cluster.errors import CommandFailed
from cluster.processes import Process

EVERY = 15.0
"""Seconds between two lines."""


def say(message: str) -> None:
    """Prints one line, where pipes and terminals show it at once."""
    print(f"[cluster] {message}", file=sys.stderr, flush=True)


def wait_for(done: Callable[[float], bool], what: str, detail: Callable[[], str] = lambda: "") -> float:
    """Waits as long as it takes, and says every few seconds what for.

    Args:
        done: waits for up to the given seconds and says whether it is done.
        what: what takes its time.
        detail: added to each line, asked anew for each.

    Returns:
        The seconds that it took.
    """
    begun = time.monotonic()
    while not done(EVERY):
        elapsed = time.monotonic() - begun
        say(", ".join(part for part in (f"{what}: {elapsed:.0f} s", detail()) if part))
    return time.monotonic() - begun


def follow(process: Process, what: str, detail: Callable[[], str] = lambda: "", *, let_go: bool = False) -> float:
    """Waits for a program that is to end by itself.

    Args:
        process: the program.
        what: what takes its time.
        detail: added to each line, asked anew for each.
        let_go: whether it goes on alone when the waiting is broken off; else it is ended.

    Raises:
        CommandFailed: it returned an error; with the end of its log.
    """
    try:
        elapsed = wait_for(process.wait, what, detail)
    except BaseException:
        if not let_go:
            process.stop()
        raise
    status = process.finish()
    if status != 0:
        raise CommandFailed(f"{what}: it returned {status}; the end of {process.log}:\n{process.tail()}")
    return elapsed
