"""How commands are run, stopped and reported, seen from outside a real agent."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outhaul_api.vocabulary import ActionPhase, Reason, StepPhase
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents
from outhaul_operator.agentstates import RunState
from wire.harness import DEADLINE, AgentProcess, alive, blocks, children, directory, output_command, run_spec, shell

StartAgent = Callable[..., AgentProcess]


async def ended(start_agent: StartAgent, *commands: pb.Command, **fields: Any) -> tuple[AgentProcess, RunState]:
    """Runs commands and returns the final state."""
    running = start_agent(run_spec(*commands, **fields))
    async with running.connect() as agent:
        return running, await running.final(agent)


def steps(state: RunState) -> list[tuple[str, StepPhase, int | None]]:
    """Returns what became of each step."""
    return [(step.name, step.phase, step.exit_code) for step in state.steps]


async def test_commands_run_in_order(start_agent: StartAgent) -> None:
    """Each command sees what the one before it has done, and every step is reported with its times."""
    running, state = await ended(
        start_agent, shell("echo 1 >> trace", "one"), shell("echo 2 >> trace", "two"), shell("cat trace", "three")
    )
    assert state.phase is ActionPhase.SUCCEEDED
    assert [phase for _, phase, _ in steps(state)] == [StepPhase.SUCCEEDED] * 3
    assert all(step.started_at and step.finished_at for step in state.steps)
    assert (running.work_dir / "trace").read_text() == "1\n2\n"


async def test_a_failing_command_ends_the_run(start_agent: StartAgent) -> None:
    """Step and exit code are named, later steps are skipped."""
    _, state = await ended(start_agent, shell("exit 0", "one"), shell("exit 3", "two"), shell("exit 0", "three"))
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.COMMAND_FAILED)
    assert "step 'two' failed with exit code 3" in state.message
    assert steps(state) == [
        ("one", StepPhase.SUCCEEDED, 0),
        ("two", StepPhase.FAILED, 3),
        ("three", StepPhase.SKIPPED, None),
    ]


async def test_a_command_may_be_allowed_to_fail(start_agent: StartAgent) -> None:
    """With continueOnError the step has failed and the run succeeds."""
    _, state = await ended(start_agent, shell("exit 3", "one", continue_on_error=True), shell("exit 0", "two"))
    assert state.phase is ActionPhase.SUCCEEDED
    assert steps(state) == [("one", StepPhase.FAILED, 3), ("two", StepPhase.SUCCEEDED, 0)]


@pytest.mark.parametrize(
    ("argv", "reason", "code", "words"),
    [
        (["no-such-program"], Reason.COMMAND_NOT_FOUND, 127, "'no-such-program' is not in the image"),
        (["./script"], Reason.COMMAND_NOT_FOUND, 127, "the interpreter that './script' names"),
        (["./plain"], Reason.COMMAND_FAILED, 126, "'./plain' cannot be started: Permission denied"),
        (["./binary"], Reason.COMMAND_FAILED, 126, "'./binary' cannot be started: Exec format error"),
        (["/bin/true", "x" * 200_000], Reason.COMMAND_FAILED, 126, "Argument list too long"),
    ],
)
async def test_a_program_that_cannot_start_is_named(
    start_agent: StartAgent, argv: list[str], reason: Reason, code: int, words: str
) -> None:
    """What is missing, or is no program, is said by name with the shell's exit code."""
    files = {"script": b"#!/no/such/interpreter\n", "plain": b"x", "binary": b"#!"}
    prepare = shell("printf '\\001\\002' > binary; chmod +x binary", "prepare")
    _, state = await ended(start_agent, prepare, pb.Command(name="main", argv=argv), files=files)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, reason)
    assert words in state.message
    assert steps(state)[1] == ("main", StepPhase.FAILED, code)


async def test_a_signal_is_told_by_name(start_agent: StartAgent) -> None:
    """A command that a signal has ended has 128 and the signal as its exit code."""
    _, state = await ended(start_agent, shell("kill -9 $$"))
    assert "was ended by SIGKILL, exit code 137 (it may have run out of memory)" in state.message
    assert steps(state) == [("main", StepPhase.FAILED, 137)]


async def test_a_step_has_its_own_timeout(start_agent: StartAgent) -> None:
    """The step is stopped with SIGTERM to its whole group; the run ends."""
    script = "trap 'echo asked > asked; exit 9' TERM; sleep 600 & wait"
    running, state = await ended(start_agent, shell(script, timeout_seconds=2))
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.TIMED_OUT)
    assert "step 'main' was stopped after its timeout of 2 s" in state.message
    assert steps(state) == [("main", StepPhase.FAILED, 9)]
    assert (running.work_dir / "asked").exists()


async def test_the_runs_timeout_counts_all_steps(start_agent: StartAgent) -> None:
    """Even a step that may fail is the last one when the run's time is over."""
    _, state = await ended(
        start_agent,
        shell("true", "one"),
        shell("sleep 600", "two", continue_on_error=True),
        shell("true", "three"),
        timeout_seconds=3,
    )
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.TIMED_OUT)
    assert "the run's timeout of 3 s was over at step 'two'" in state.message
    assert steps(state) == [
        ("one", StepPhase.SUCCEEDED, 0),
        ("two", StepPhase.FAILED, 143),
        ("three", StepPhase.SKIPPED, None),
    ]


async def test_who_ignores_the_timeout_is_killed(start_agent: StartAgent) -> None:
    """After the grace the whole group gets SIGKILL."""
    _, state = await ended(
        start_agent,
        shell("trap '' TERM; while true; do sleep 1; done", timeout_seconds=2),
        kill_grace_seconds=0.3,
    )
    assert state.reason is Reason.TIMED_OUT
    assert steps(state) == [("main", StepPhase.FAILED, 137)]


async def test_what_a_command_leaves_running_is_stopped(start_agent: StartAgent) -> None:
    """A background process does not outlive its command, and does not keep the step from ending."""
    script = "sleep 600 & echo $! > pid"
    running, state = await ended(start_agent, shell(script), shell("true", "next"))
    assert state.phase is ActionPhase.SUCCEEDED
    assert not alive(int((running.work_dir / "pid").read_text()))


async def test_a_daemon_serves_later_commands_and_ends_with_the_run(start_agent: StartAgent) -> None:
    """What has left its command's session is there for the next command, and gone when the run has ended."""
    running, state = await ended(
        start_agent,
        shell("setsid sh -c 'echo $$ > pid; exec sleep 600' > /dev/null & while [ ! -s pid ]; do :; done"),
        shell('kill -0 "$(cat pid)"', "next"),
    )
    assert state.phase is ActionPhase.SUCCEEDED, running.log
    assert not alive(int((running.work_dir / "pid").read_text()))


async def test_orphans_are_reaped(start_agent: StartAgent) -> None:
    """Grandchildren whose parent has gone leave no zombies, and take no exit code from a command."""
    script = "for i in 1 2 3 4 5 6 7 8 9; do (setsid true & exit 0); done; sleep 0.2; exit 5"
    running, state = await ended(start_agent, shell(script))
    assert steps(state) == [("main", StepPhase.FAILED, 5)]
    assert children(running.popen.pid) == []


async def test_commands_have_no_input_and_their_own_session(start_agent: StartAgent) -> None:
    """Standard input is empty, and the command leads its session and its process group."""
    script = "cat > input; ps -o pid=,pgid=,sid= -p $$ > ids"
    running, _ = await ended(start_agent, shell(script))
    assert (running.work_dir / "input").read_bytes() == b""
    pid, group, session = (running.work_dir / "ids").read_text().split()
    assert pid == group == session


async def test_environment(start_agent: StartAgent) -> None:
    """A command sees the pod's variables and its own, and not what only the agent needs."""
    running = start_agent(
        run_spec(shell("env -0 > env", env={"OWN": "a\nb=c", "PATH": os.environ["PATH"]})),
        environment={"OF_POD": "x"},
    )
    async with running.connect() as agent:
        await running.final(agent)
    pairs = (running.work_dir / "env").read_text().split("\0")
    environment = dict(pair.split("=", 1) for pair in pairs if pair)
    assert environment["OWN"] == "a\nb=c"
    assert environment["OF_POD"] == "x"
    assert environment["OUTHAUL_OUTPUTS"] == str(running.outputs_dir)
    outhaul = {name for name in environment if name.startswith("OUTHAUL_")}
    assert outhaul == {"OUTHAUL_OUTPUTS", "OUTHAUL_WORK_DIR"}


async def test_working_directory(start_agent: StartAgent) -> None:
    """A relative one is within the run's, an absolute one is as it is, a missing one is named."""
    running, state = await ended(
        start_agent,
        shell("mkdir sub; pwd > one", "one"),
        shell("pwd > two", "two", working_dir="sub"),
        shell('pwd > "$OUTHAUL_WORK_DIR/three"', "three", working_dir="/"),
        shell("true", "four", working_dir="missing"),
    )
    work = running.work_dir
    assert (work / "one").read_text() == f"{work}\n"
    assert (work / "sub" / "two").read_text() == f"{work}/sub\n"
    assert (work / "three").read_text() == "/\n"
    assert "/missing' does not exist" in state.message


async def test_output_goes_to_the_log_as_it_comes(start_agent: StartAgent) -> None:
    """What a command prints is in the pod's log while it still runs; the agent adds a line at start and end."""
    running = start_agent(run_spec(shell("echo out; echo err >&2; while [ ! -e go ]; do sleep 0.05; done")))
    deadline = time.monotonic() + DEADLINE
    while "out\nerr\n" not in running.log:
        assert time.monotonic() < deadline
        await running.until(running.log_file)
    assert "step main started" in running.log
    assert "step main ended" not in running.log
    (running.work_dir / "go").touch()
    async with running.connect() as agent:
        await running.final(agent)
    assert "step main ended with exit code 0 after" in running.log


async def test_files_are_written_before_the_first_command(start_agent: StartAgent, tmp_path: Path) -> None:
    """Files of the run and copied directories are there; scripts can be run; files win over copies."""
    volume = tmp_path / "volume"
    (volume / "..2026_01_01").mkdir(parents=True)
    (volume / "..2026_01_01" / "main.tf").write_text("from volume")
    (volume / "..2026_01_01" / "both").write_text("from volume")
    (volume / "..data").symlink_to("..2026_01_01")
    (volume / "main.tf").symlink_to("..data/main.tf")
    (volume / "both").symlink_to("..data/both")
    running, state = await ended(
        start_agent,
        shell("./scripts/run.sh > result; cat main.tf both >> result; ls -A >> result"),
        files={"scripts/run.sh": b"#!/bin/sh\necho ran\n", "both": b" from run\n"},
        copy_from=[str(volume)],
    )
    assert state.phase is ActionPhase.SUCCEEDED, running.log
    assert (running.work_dir / "result").read_text() == ("ran\nfrom volume from run\nboth\nmain.tf\nresult\nscripts\n")
    assert not (running.work_dir / "main.tf").is_symlink()


async def test_sigterm_lets_the_command_finish(start_agent: StartAgent) -> None:
    """The command's group gets SIGTERM, has the time it needs, and the run is cancelled."""
    script = "trap 'sleep 0.5; echo unlocked > lock; exit 7' TERM; echo up > up; while true; do sleep 0.1; done"
    running = start_agent(run_spec(shell(script), shell("echo no > no", "next"), kill_grace_seconds=0.1))
    await running.until(running.work_dir / "up")
    running.signal(signal.SIGTERM)
    assert await running.wait() == 143
    assert (running.work_dir / "lock").exists()
    assert not (running.work_dir / "no").exists()
    message = running.termination
    assert message["phase"] == "PHASE_CANCELLED"
    assert message["reason"] == "Cancelled"
    assert [step["phase"] for step in message["steps"]] == ["STEP_PHASE_FAILED", "STEP_PHASE_SKIPPED"]
    assert message["steps"][0]["exitCode"] == 7


async def test_who_ignores_sigterm_is_killed_in_time(start_agent: StartAgent) -> None:
    """The agent has its last word before the kubelet would kill it, and says that the command was killed."""
    script = "trap '' TERM; echo $$ > up; while true; do sleep 0.1; done"
    running = start_agent(run_spec(shell(script), shell("true", "next"), stop_grace_seconds=1))
    pid = int(await running.until(running.work_dir / "up"))
    running.signal(signal.SIGTERM)
    assert await running.wait() == 143
    assert not alive(pid)
    message = running.termination
    assert (message["phase"], message["reason"]) == ("PHASE_CANCELLED", "Cancelled")
    assert "step 'main' did not end in time and was killed" in message["message"]
    assert [step["phase"] for step in message["steps"]] == ["STEP_PHASE_FAILED", "STEP_PHASE_SKIPPED"]
    assert message["steps"][0]["exitCode"] == 137


async def test_being_told_to_stop_gives_no_more_time(start_agent: StartAgent) -> None:
    """A command that has its timeout behind it, and a long grace, is killed in time all the same."""
    script = "trap 'echo asked > asked' TERM; while true; do sleep 0.1; done"
    spec = run_spec(shell(script), timeout_seconds=2, kill_grace_seconds=600, stop_grace_seconds=0.5)
    running = start_agent(spec)
    await running.until(running.work_dir / "asked")
    running.signal(signal.SIGTERM)
    assert await running.wait() == 143
    assert "step 'main' did not end in time" in running.termination["message"]


async def test_an_output_command_that_ignores_sigterm_is_killed(start_agent: StartAgent) -> None:
    """What holds for a run's commands holds for those of its outputs."""
    source = output_command("trap '' TERM; echo up > up; while true; do sleep 0.1; done", pb.OUTPUT_FORMAT_TEXT, "x")
    running = start_agent(run_spec(shell("true"), outputs=[source], stop_grace_seconds=0.5))
    await running.until(running.work_dir / "up")
    running.signal(signal.SIGTERM)
    assert await running.wait() == 143
    assert running.termination["phase"] == "PHASE_CANCELLED"
    assert "output command '/bin/sh' did not end in time and was killed" in running.termination["message"]


async def test_a_watcher_sees_the_cancellation(start_agent: StartAgent) -> None:
    """The final state still goes out to the operator before the agent ends."""
    running = start_agent(run_spec(shell("trap 'exit 1' TERM; echo up > up; sleep 600 & wait")))
    await running.until(running.work_dir / "up")
    async with running.connect() as agent:
        await running.up(agent)
        phases = []
        async for state in agent.watch(running.steps):
            phases.append(state.phase)
            if len(phases) == 1:
                running.signal(signal.SIGTERM)
    assert phases[-1] is ActionPhase.CANCELLED
    assert await running.wait() == 143


async def test_sigterm_ends_an_output_command(start_agent: StartAgent) -> None:
    """While outputs are read the run can still be cancelled; nothing is held then."""
    source = output_command("echo up > up; sleep 600", pb.OUTPUT_FORMAT_TEXT, "x")
    running = start_agent(run_spec(shell("true"), outputs=[source]))
    await running.until(running.work_dir / "up")
    running.signal(signal.SIGTERM)
    assert await running.wait() == 143
    assert running.termination["phase"] == "PHASE_CANCELLED"
    assert running.termination.get("outputCount", 0) == 0


async def test_sigterm_at_the_very_start_is_not_lost(start_agent: StartAgent) -> None:
    """A signal that arrives while the agent still loads cancels the run."""
    running = start_agent(run_spec(shell("sleep 600")))
    deadline = time.monotonic() + DEADLINE
    while not blocks(running.popen.pid, signal.SIGTERM):
        assert time.monotonic() < deadline
    running.signal(signal.SIGTERM)
    assert await running.wait() == 143
    assert running.termination["reason"] == "Cancelled"


async def test_outputs_of_a_failed_run_are_kept(start_agent: StartAgent) -> None:
    """What can be read is held; what can't is no second reason."""
    running = start_agent(
        run_spec(
            shell('echo x > "$OUTHAUL_OUTPUTS/x"; exit 4'),
            outputs=[directory("../outputs", "missing")],
        )
    )
    async with running.connect() as agent:
        state = await running.final(agent)
        assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.COMMAND_FAILED)
        infos = await agent.outputs()
        assert [info.name for info in infos] == ["x"]
        await agent.acknowledge(agents.outputs_digest(infos))
    assert await running.wait() == 1
