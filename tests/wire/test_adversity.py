"""An agent whose commands print what nobody reads, whose disks are full, and whose clock is another one's."""

import datetime as dt
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from outhaul_api.vocabulary import ActionPhase, Reason
from outhaul_grpc import layout
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents, trust
from outhaul_operator.agentstates import RunState
from wire.harness import AgentProcess, now, output_command, run_spec, shell
from wire.test_serving import stub_of

StartAgent = Callable[..., AgentProcess]
MUCH = 1_000_000_000
SKEWED = dt.timedelta(minutes=4)
"""A difference between two clocks that certificates allow for."""
WRONG = dt.timedelta(minutes=10)
NO_SKEW = dt.timedelta(0)


def into(sink: str) -> tuple[str, ...]:
    """What starts an agent whose log is somewhere else."""
    return ("sh", "-c", f'exec "$@" > {sink} 2>&1', "sh")


SMALL = ("unshare", "--user", "--map-root-user", "--mount")
SMALL_DISK = (
    *SMALL,
    *("sh", "-c", f'mount -t tmpfs -o size=256k small "${layout.WORK_DIR_VARIABLE}" && exec "$@"', "sh"),
)
"""What starts an agent whose working directory has room for 256 KiB."""


def has_small_disks() -> bool:
    """Tells whether this machine lets us make one."""
    try:
        trial = subprocess.run([*SMALL, "mount", "-t", "tmpfs", "trial", "/mnt"], check=False, capture_output=True)
    except FileNotFoundError:
        return False
    return trial.returncode == 0


small_disk = pytest.mark.skipif(not has_small_disks(), reason="no mount namespaces for unshare here")


async def final(running: AgentProcess) -> RunState:
    """Waits until a run has ended, by its agent's word."""
    async with running.connect() as agent:
        return await running.final(agent)


def peak(pid: int) -> int:
    """Returns how many bytes of memory a process has had at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


# -- what commands print


async def test_a_command_that_prints_without_an_end(start_agent: StartAgent) -> None:
    """A gigabyte of output goes to the pod's log; the agent holds nothing of it."""
    running = start_agent(run_spec(shell(f"head -c {MUCH} /dev/zero; exit 3")), prefix=into("/dev/null"))
    state = await final(running)
    assert (state.phase, state.steps[0].exit_code) == (ActionPhase.FAILED, 3)
    assert peak(running.popen.pid) < MUCH / 5


async def test_a_command_that_prints_bytes(start_agent: StartAgent) -> None:
    """What is no text comes to the log as it is, and into nothing else."""
    running = start_agent(run_spec(shell("printf 'a\\000\\377\\033[2Jb'; head -c 100000 /dev/urandom; exit 4")))
    state = await final(running)
    assert (state.phase, state.steps[0].exit_code) == (ActionPhase.FAILED, 4)
    assert b"a\0\xff\x1b[2Jb" in running.log_file.read_bytes()
    assert state.message.isprintable()
    assert json.dumps(running.termination).isascii()


async def test_a_command_that_closes_its_outputs(start_agent: StartAgent) -> None:
    """It is waited for all the same, and nobody else's output is closed with it."""
    running = start_agent(run_spec(shell("exec >&- 2>&-; sleep 0.3; echo unheard; exit 5"), timeout_seconds=20))
    state = await final(running)
    assert (state.phase, state.steps[0].exit_code) == (ActionPhase.FAILED, 5)
    assert "unheard" not in running.log
    assert "step main ended with exit code 5" in running.log


async def test_an_output_command_that_closes_its_output(start_agent: StartAgent) -> None:
    """What it has printed before is its output."""
    source = output_command("printf word; exec >&-; sleep 0.3", pb.OUTPUT_FORMAT_TEXT, "x")
    running = start_agent(run_spec(outputs=[source]))
    async with running.connect() as agent:
        assert (await running.final(agent)).phase is ActionPhase.SUCCEEDED
        (listed,) = await agent.outputs()
        assert (await agent.read(listed)).data == b"word"


# -- disks that are full


@small_disk
async def test_no_room_for_the_source(start_agent: StartAgent) -> None:
    """Nothing is run, and it is said why."""
    running = start_agent(run_spec(shell("echo it ran"), files={"large": bytes(1_000_000)}), prefix=SMALL_DISK)
    state = await final(running)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.RUN_FAILED)
    assert "the working directory cannot be prepared: a file: No space left on device" in state.message
    assert "it ran" not in running.log


@small_disk
async def test_a_command_that_fills_the_disk(start_agent: StartAgent) -> None:
    """The command fails in its own words, and the agent is there to say so."""
    running = start_agent(run_spec(shell("head -c 1000000 /dev/zero > large")), prefix=SMALL_DISK)
    state = await final(running)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.COMMAND_FAILED)
    assert "No space left on device" in running.log
    assert running.termination["phase"] == "PHASE_FAILED"


async def test_no_room_for_the_log(start_agent: StartAgent) -> None:
    """The run goes on without one, and its end is told as ever."""
    running = start_agent(run_spec(shell("echo 1 > ran")), prefix=into("/dev/full"))
    async with running.connect() as agent:
        assert (await running.final(agent)).phase is ActionPhase.SUCCEEDED
        await agent.acknowledge(agents.outputs_digest([]))
    await running.wait()
    assert (running.work_dir / "ran").exists()
    assert running.termination["phase"] == "PHASE_SUCCEEDED"
    assert running.termination["acknowledged"] is True


async def test_no_room_for_the_last_word(start_agent: StartAgent) -> None:
    """The operator hears from the agent itself how the run has ended."""
    running = start_agent(run_spec(shell("exit 6")), environment={layout.TERMINATION_LOG_VARIABLE: "/dev/full"})
    state = await final(running)
    assert (state.phase, state.steps[0].exit_code) == (ActionPhase.FAILED, 6)


# -- clocks


def issued(authority: trust.Authority, spec: pb.RunSpec, moment: dt.datetime) -> dict[str, bytes]:
    """Returns a run's Secret as an operator writes it whose clock says `moment`."""
    hour = dt.timedelta(hours=1)
    leaf = trust.issue_server(
        authority, namespace="tenant", name="run", run_uid=spec.run_uid, timeout=hour, linger=hour, now=moment
    )
    return {**leaf.to_files(authority.roots), layout.RUN_FILE: json_format.MessageToJson(spec).encode()}


@pytest.mark.parametrize("skew", [SKEWED, -SKEWED], ids=["ahead", "behind"])
async def test_an_operator_whose_clock_is_a_little_off(
    start_agent: StartAgent, authority: trust.Authority, skew: dt.timedelta
) -> None:
    """A few minutes between the clocks of two machines do not matter."""
    spec = run_spec(shell("true"))
    running = start_agent(spec, files=issued(authority, spec, now() + skew))
    async with running.connect(identity=trust.issue_operator(authority, now() + skew)) as agent:
        assert (await running.final(agent)).phase is ActionPhase.SUCCEEDED


@pytest.mark.parametrize(
    ("agents_skew", "operators_skew", "words"),
    [
        pytest.param(WRONG, NO_SKEW, "not valid now", id="the agent's certificate"),
        pytest.param(NO_SKEW, WRONG, "no answer from the agent", id="the operator's certificate"),
    ],
)
async def test_a_clock_that_is_wrong(
    start_agent: StartAgent,
    authority: trust.Authority,
    agents_skew: dt.timedelta,
    operators_skew: dt.timedelta,
    words: str,
) -> None:
    """A certificate that begins later is believed by nobody; the run goes on, and its agent counts as unreachable."""
    spec = run_spec(shell("echo 1 > ran"))
    running = start_agent(spec, files=issued(authority, spec, now() + agents_skew))
    await running.until(running.work_dir / "ran")
    async with running.connect(identity=trust.issue_operator(authority, now() + operators_skew)) as agent:
        with pytest.raises(agents.AgentUnreachable, match=words):
            await agent.info()
    assert running.popen.poll() is None


# -- an agent that is killed


async def test_an_agent_that_is_killed_while_it_hands_over(start_agent: StartAgent, authority: trust.Authority) -> None:
    """What has come of an output is not taken for all of it."""
    source = output_command("head -c 60000000 /dev/zero", pb.OUTPUT_FORMAT_TEXT, "x")
    running = start_agent(run_spec(outputs=[source]))
    await final(running)
    channel, stub = stub_of(running, authority)
    async with channel:
        call: Any = stub.ReadOutput(pb.ReadOutputRequest(run_uid=running.spec.run_uid, name="x"), timeout=60)
        chunks = aiter(call)
        assert (await anext(chunks)).chunk
        running.signal(signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [chunk async for chunk in chunks]
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert running.termination["phase"] == "PHASE_SUCCEEDED"
    assert "acknowledged" not in running.termination
