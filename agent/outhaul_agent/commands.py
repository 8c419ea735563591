"""Runs the commands of a run in order, and says how each one went. `runs` calls it once."""

import asyncio
import errno
import logging
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent import workspace
from outhaul_agent.processes import Ending, Process, Processes
from outhaul_agent.reasons import Problem, Reason, RunError, quoted
from outhaul_agent.state import Progress

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_SIGNALLED = 128

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What commands, of the run and of its outputs alike, are started with."""

    processes: Processes
    work_dir: Path
    environment: dict[str, str]
    stop: asyncio.Event
    """Set when the run is to be cancelled."""
    grace: float
    """Seconds from SIGTERM to SIGKILL after a timeout."""
    stop_grace: float
    """Seconds from SIGTERM to SIGKILL when the run is cancelled."""
    stderr: int | None = None
    """A descriptor for what they print as errors; None: the pod's log."""

    async def finish(self, process: Process, limit: float) -> Ending:
        """Waits for a process's end, at most so many seconds until it is told to end."""
        return await self.processes.finish(
            process, limit=limit, grace=self.grace, stop=self.stop, stop_grace=self.stop_grace
        )

    def cancelled(self, what: str = "", ending: Ending | None = None) -> Problem:
        """Returns why a run ends that is cancelled, and what of it (`what`) had to be killed."""
        message = "the run was told to stop before it was done"
        if ending is not None and ending.killed:
            message += f"; {what} did not end in time and was killed: it may have left a lock"
        return Problem(Reason.CANCELLED, message)


class StartError(RunError):
    """A program cannot be started."""

    def __init__(self, reason: Reason, message: str, exit_code: int) -> None:
        super().__init__(reason, message)
        self.exit_code = exit_code


async def run_commands(spec: pb.RunSpec, progress: Progress, around: Surroundings) -> Problem | None:
    """Runs the commands until one fails that must not, the time is over, or the run is cancelled.

    Returns:
        Why the run does not go on; None: every command succeeded, or was allowed to fail.
    """
    deadline = time.monotonic() + spec.timeout_seconds
    for index, command in enumerate(spec.commands):
        if around.stop.is_set():
            return around.cancelled()
        if time.monotonic() >= deadline:
            return _run_timed_out(spec, command)
        left = deadline - time.monotonic()
        problem = await _run_step(index, spec, progress, around, left)
        if around.stop.is_set():
            return problem
        if problem is not None and time.monotonic() >= deadline:
            return problem
        if problem is not None and not command.continue_on_error:
            return problem
    return None


async def _run_step(
    index: int, spec: pb.RunSpec, progress: Progress, around: Surroundings, left: float
) -> Problem | None:
    command = spec.commands[index]
    started = time.monotonic()
    of_run = not 0 < command.timeout_seconds < left
    progress.start_step(index)
    _log.info("step %s started", command.name)
    problem: Problem | None = None
    try:
        process = start(list(command.argv), command.working_dir, dict(command.env), around)
    except StartError as error:
        code, problem = (
            error.exit_code,
            Problem(error.problem.reason, f"step {quoted(command.name)}: {error}"),
        )
    else:
        ending = await around.finish(process, left if of_run else command.timeout_seconds)
        code = ending.exit_code
        if around.stop.is_set() and code != 0:
            problem = around.cancelled(f"step {quoted(command.name)}", ending)
        elif ending.timed_out:
            problem = _run_timed_out(spec, command) if of_run else _step_timed_out(command)
        elif code != 0:
            problem = Problem(Reason.COMMAND_FAILED, f"step {quoted(command.name)} {_describe(code)}")
    _log.info("step %s ended with exit code %d after %.1f s", command.name, code, time.monotonic() - started)
    progress.end_step(index, exit_code=code, failed=problem is not None)
    return problem


def start(
    argv: list[str],
    working_dir: str,
    environment: dict[str, str],
    around: Surroundings,
    stdout: int | None = None,
) -> Process:
    """Starts a program of the spec.

    Raises:
        StartError: it is not there or cannot be run; the message names it.
    """
    cwd = workspace.resolve(around.work_dir, working_dir)
    full = {**around.environment, **environment}
    try:
        if not cwd.is_dir():
            message = f"the working directory {quoted(str(cwd))} does not exist"
            raise StartError(Reason.COMMAND_FAILED, message, NOT_EXECUTABLE)
        return around.processes.start(argv, cwd=cwd, environment=full, stdout=stdout, stderr=around.stderr)
    except OSError as error:
        raise _start_error(argv[0], cwd, full.get("PATH"), error) from None


def _start_error(program: str, cwd: Path, path: str | None, error: OSError) -> StartError:
    name = quoted(program)
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        there = (cwd / program).exists() if "/" in program else shutil.which(program, path=path) is not None
        if there:
            message = f"the interpreter that {name} names in its first line, or its loader, is not in the image"
        else:
            message = f"the program {name} is not in the image: name another image, or the program's full path"
        return StartError(Reason.COMMAND_NOT_FOUND, message, NOT_FOUND)
    return StartError(Reason.COMMAND_FAILED, f"the program {name} cannot be started: {error.strerror}", NOT_EXECUTABLE)


def _describe(code: int) -> str:
    if code > _SIGNALLED:
        try:
            name = signal.Signals(code - _SIGNALLED).name
        except ValueError:
            return f"failed with exit code {code}: the pod's log says more"
        hint = " (it may have run out of memory)" if name == "SIGKILL" else ""
        return f"was ended by {name}, exit code {code}{hint}: the pod's log says more"
    return f"failed with exit code {code}: the pod's log says more"


def _step_timed_out(command: pb.Command) -> Problem:
    message = f"step {quoted(command.name)} was stopped after its timeout of {command.timeout_seconds:g} s"
    return Problem(Reason.TIMED_OUT, message)


def _run_timed_out(spec: pb.RunSpec, command: pb.Command) -> Problem:
    message = f"the run's timeout of {spec.timeout_seconds:g} s was over at step {quoted(command.name)}"
    return Problem(Reason.TIMED_OUT, message)
