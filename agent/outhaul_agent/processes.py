"""Child processes: start, wait, stop, reap. Every command is one, in a session and process group of its own.

The agent is PID 1 of its container, so processes whose parent has gone become its children and must be reaped
without taking the exit codes of its own children. One reaper does both. Where the agent is not PID 1 it asks
the kernel to be treated alike. What a command leaves running in its group is stopped with it; what has left
the group (a daemon) may serve later commands, and ends with the run.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_LEFTOVER_GRACE = 2.0
"""Seconds for what a finished command has left in its group."""
_POLL = 0.02


@dataclass(frozen=True)
class Process:
    """A child of the agent, the leader of its process group."""

    pid: int
    exited: asyncio.Future[int]
    """Its exit code; 128 and more: ended by that signal."""
    popen: subprocess.Popen[bytes] = field(repr=False)

    def signal_group(self, number: signal.Signals) -> bool:
        """Sends a signal to the group; returns False where nobody is left in it."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # somebody is there, and has other rights
            return True
        return True


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    exit_code: int
    timed_out: bool
    killed: bool
    """Whether it had to be, since it did not end when it was told to."""


class Processes:
    """The agent's children. One object in a process, used from the event loop's thread alone."""

    def __init__(self) -> None:
        self._own: dict[int, Process] = {}

    def open(self) -> None:
        """Starts reaping. Call it in the event loop, before the first process."""
        if os.getpid() != 1:
            # Best effort: it fails where a sandbox forbids it, and then orphans go to the sandbox's own init.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Process:
        """Starts a program with no input, and the agent's outputs unless `stdout` or `stderr` is another one.

        Raises:
            OSError: it cannot be started.
        """
        popen = subprocess.Popen(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        process = Process(popen.pid, asyncio.get_running_loop().create_future(), popen)
        self._own[popen.pid] = process
        return process

    async def finish(
        self, process: Process, *, limit: float | None, grace: float, stop: asyncio.Event, stop_grace: float
    ) -> Ending:
        """Waits until a process has ended, and ends what it has left in its group.

        Args:
            process: the process.
            limit: seconds until it is told to end; None: never.
            grace: seconds from being told until it is killed.
            stop: once set, the process is told to end at once.
            stop_grace: instead of `grace` after that.
        """
        timed_out = killed = False
        stopped = asyncio.ensure_future(stop.wait())
        try:
            events: set[asyncio.Future[Any]] = {process.exited, stopped}
            await asyncio.wait(events, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not process.exited.done():
                process.signal_group(signal.SIGTERM)
                timed_out = not stopped.done()
                if timed_out:
                    over = time.monotonic() + grace
                    await asyncio.wait(events, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
                    # Being told to stop as well gives no more time than there was.
                    stop_grace = min(stop_grace, max(over - time.monotonic(), 0.0))
                if stopped.done():
                    await asyncio.wait({process.exited}, timeout=stop_grace)
                killed = not process.exited.done()
                if killed:
                    process.signal_group(signal.SIGKILL)
            code = await asyncio.shield(process.exited)
        finally:
            stopped.cancel()
        await self._clear_group(process)
        return Ending(code, timed_out, killed)

    async def kill_rest(self) -> None:
        """Kills every child that is left, daemons too, and their children as they become ours."""
        deadline = time.monotonic() + _LEFTOVER_GRACE
        while (pids := _children()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL)

    async def _clear_group(self, process: Process) -> None:
        deadline = time.monotonic() + _LEFTOVER_GRACE
        # Nothing tells when somebody else's child ends.
        while process.signal_group(signal.SIGTERM) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        process.signal_group(signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._own.pop(pid, None)
            if process is not None:
                code = os.waitstatus_to_exitcode(status)
                process.popen.returncode = code
                process.exited.set_result(code if code >= 0 else 128 - code)


def _children() -> list[int]:
    """Returns the process ids of all children of this process."""
    found = []
    with contextlib.suppress(OSError):  # no /proc: the container's end ends them all
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # "pid (name) state ppid": the name may hold anything, brackets too.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found
