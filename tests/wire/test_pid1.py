"""The agent as the first process of its own PID namespace, as in a container."""

import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from outhaul_api.vocabulary import ActionPhase
from wire.harness import AgentProcess, children, run_spec, shell

StartAgent = Callable[..., AgentProcess]
NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


def has_namespaces() -> bool:
    """Tells whether this machine lets us make PID namespaces."""
    try:
        return subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not has_namespaces(), reason="no PID namespaces for unshare here")


async def test_orphans_are_reaped_by_pid_1(start_agent: StartAgent) -> None:
    """Exit codes are the commands' own, and no zombie stays."""
    script = "for i in 1 2 3 4 5; do (setsid true & exit 0); done; sleep 0.2; echo $PPID > ppid; exit 5"
    running = start_agent(run_spec(shell(script)), prefix=NAMESPACE)
    async with running.connect() as agent:
        state = await running.final(agent)
    assert state.phase is ActionPhase.FAILED
    assert state.steps[0].exit_code == 5
    assert (running.work_dir / "ppid").read_text() == "1\n"
    (first,) = children(running.popen.pid)
    assert children(first) == []


async def test_sigterm_reaches_pid_1(start_agent: StartAgent) -> None:
    """The kernel gives PID 1 no default actions; the agent handles the signal, and the command ends cleanly."""
    script = "trap 'echo unlocked > lock; exit 0' TERM; echo up > up; sleep 600 & wait"
    running = start_agent(run_spec(shell(script)), prefix=NAMESPACE)
    await running.until(running.work_dir / "up")
    (first,) = children(running.popen.pid)
    os.kill(first, signal.SIGTERM)
    assert await running.wait() == 143
    assert (running.work_dir / "lock").exists()
    assert running.termination["phase"] == "PHASE_CANCELLED"
