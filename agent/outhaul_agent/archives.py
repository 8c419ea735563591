"""Has a run's archive fetched by a program of its own (`fetch`), in bounded time. `runs` calls it before all else."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from outhaul_agent.commands import Surroundings
from outhaul_agent.reasons import Reason, RunError

TIMEOUT = 600.0
"""Seconds in which an archive has to be there, unpacked."""
_MAX_WORDS = 64 * 1024
"""What a pipe holds, so nobody has to read it meanwhile."""
# Not from the directory where it is started, nor from one of the tenant's.
_PROGRAM = [sys.executable, "-P", "-m", "outhaul_agent.fetch"]


async def fetch(around: Surroundings) -> bytes:
    """Gets the run's archive into the working directory.

    Returns:
        The archive as it came, where it is to be kept and is no larger than what can be kept; else nothing.

    Raises:
        RunError: it cannot be had, it is not the one that was meant, it cannot be unpacked, or the run is cancelled.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "archive")
        await _fetch(around, copy)
        return await asyncio.to_thread(lambda: copy.read_bytes() if copy.exists() else b"")


async def _fetch(around: Surroundings, copy: Path) -> None:
    reading, writing = os.pipe()
    try:
        try:
            # The agent's own environment: it says where the run's instructions are.
            process = around.processes.start(
                [*_PROGRAM, str(copy)], cwd=Path("/"), environment=os.environ, stdout=writing
            )
        finally:
            os.close(writing)
        ending = await around.finish(process, TIMEOUT)
        os.set_blocking(reading, False)
        words = os.read(reading, _MAX_WORDS)
    finally:
        os.close(reading)
    if around.stop.is_set():
        return
    if ending.timed_out:
        message = f"the archive was not there and unpacked within {TIMEOUT:g} s: is its server slow, or too far away?"
        raise RunError(Reason.SOURCE_UNAVAILABLE, message)
    if ending.exit_code == 0:
        return
    try:
        problem = json.loads(words)
        raise RunError(Reason(problem["reason"]), problem["message"])
    except (ValueError, LookupError, TypeError):
        message = f"the archive cannot be unpacked: the program that does it ended with code {ending.exit_code}"
        hint = " (it may have run out of memory)" if ending.exit_code == 137 else ""  # noqa: PLR2004 - SIGKILL
        raise RunError(Reason.RUN_FAILED, message + hint + "; the pod's log says more") from None
