"""The two operators of a soak, which are started again whenever they have ended, as their Deployment would do it."""

import contextlib
import http.client
import resource
import signal
import time
from collections import Counter
from pathlib import Path

from cluster.processes import Process
from cluster.stack import OPERATOR, Stack

NAMES = (OPERATOR, "operator-2")
OPTIONS = ("--lease-seconds", "30")
GIVEN_UP = ("does not lead any more", "cannot work: ")
"""What an operator says that ends by itself: it could not renew its Lease, or could not begin without an API server."""


class Replicas:
    """Two operators.

    Args:
        stack: where; it has one that is ended first.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._running: dict[str, Process] = {}
        self._again_at: dict[str, float] = {}
        self._held: dict[str, float] = {}
        self._causes: dict[str, str] = {}
        self.ends: Counter[str] = Counter()
        """How often they have ended, by cause."""
        self.wrong: list[str] = []
        """Ends that nothing explains."""
        for name in NAMES:
            stack.kill_operator(name)
        for name in NAMES:
            self._running[name] = stack.start_operator(*OPTIONS, name=name)

    def tend(self) -> None:
        """Starts again what has ended, once it is time; lets go on what stands still."""
        now = time.monotonic()
        for name, process in list(self._running.items()):
            if now >= self._held.get(name, now):
                process.signal(signal.SIGCONT)
                self._held.pop(name, None)
            if not process.running():
                self._note_end(name, process)
        for name in NAMES:
            if name not in self._running and now >= self._again_at.get(name, 0.0):
                self._running[name] = self._stack.launch_operator(*OPTIONS, name=name)

    def leader(self) -> str | None:
        """Who leads by its own account, of those that can answer."""
        for name in self._running:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if name not in self._held and self._stack.operator_leads(name):
                    return name
        return None

    def other(self) -> str | None:
        """One that runs and does not lead."""
        leader = self.leader()
        return next((name for name in self._running if name != leader), None)

    def end(self, name: str, number: signal.Signals, *, pause: float) -> None:
        """Has one end by a signal, and starts it again after a pause."""
        self._causes[name] = number.name
        self._again_at[name] = time.monotonic() + pause
        self._running[name].signal(number)

    def hold(self, name: str, seconds: float) -> None:
        """Has one stand still for some time."""
        self._held[name] = time.monotonic() + seconds
        self._running[name].signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets all go on, and start, at once."""
        self._held = dict.fromkeys(self._held, 0.0)
        self._again_at.clear()
        self.tend()

    def memory(self) -> dict[str, int]:
        """The memory of each that runs, in MiB."""
        found = {}
        for name, process in self._running.items():
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                found[name] = pages * resource.getpagesize() // 2**20
        return found

    def _note_end(self, name: str, process: Process) -> None:
        del self._running[name]
        self._held.pop(name, None)
        status, cause = process.finish(), self._causes.pop(name, None)
        if cause is None:
            cause = "by itself"
            if status != 1 or not any(words in process.tail(5) for words in GIVEN_UP):
                self.wrong.append(f"{name} has ended by itself with status {status}: {process.tail(5)}")
        elif cause == signal.SIGTERM.name and status != 0:
            self.wrong.append(f"{name} was told to stop, and ended with status {status}: {process.tail(5)}")
        self.ends[cause] += 1
