"""What an agent holds, and when it lets go."""

import datetime as dt
import json
import signal
import socket
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format
from outhaul_api.vocabulary import ActionPhase, Reason, StepPhase
from outhaul_grpc import client, layout, protocol
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentStub
from outhaul_operator import agents, trust
from outhaul_operator.agentstates import from_termination_message
from wire.harness import AgentProcess, directory, fresh_address, now, output_command, run_spec, shell

StartAgent = Callable[..., AgentProcess]
CALL = 10.0


async def refused(call: Any) -> grpc.StatusCode:
    """Returns the status of a call that fails."""
    answer = call.read() if isinstance(call, grpc.aio.UnaryStreamCall) else call
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    code: grpc.StatusCode = caught.value.code()
    return code


def leaving_one(**fields: Any) -> pb.RunSpec:
    """Returns a run that leaves one output."""
    return run_spec(shell("mkdir out; echo 1 > out/a"), outputs=[directory("out")], **fields)


def stub_of(running: AgentProcess, authority: trust.Authority) -> tuple[grpc.aio.Channel, Any]:
    """Returns a channel and the raw methods of an agent."""
    leaf = trust.issue_operator(authority, now())
    credentials = client.channel_credentials(certificate=leaf.certificate, key=leaf.key, roots=authority.roots)
    channel = client.open_channel(running.ip, layout.PORT, running.spec.run_uid, credentials)
    return channel, AgentStub(channel)


async def test_info(start_agent: StartAgent) -> None:
    """The agent says who it is and what both can speak."""
    running = start_agent(run_spec(shell("true")))
    async with running.connect() as agent:
        info = await running.up(agent)
    assert info == agents.AgentInfo(agent_version="0.1.0", protocol_version=1)


async def test_watch_streams_every_change(start_agent: StartAgent) -> None:
    """A watcher sees a step run and end, then the final state, and then the stream ends."""
    running = start_agent(run_spec(shell("while [ ! -e go ]; do sleep 0.02; done"), shell("true", "next")))
    async with running.connect() as agent:
        await running.up(agent)
        states = []
        async for state in agent.watch(running.steps):
            states.append(state)
            if state.steps[0].phase is StepPhase.RUNNING:
                (running.work_dir / "go").touch()
    assert states[0].phase in {ActionPhase.PENDING, ActionPhase.RUNNING}
    assert any(state.steps[0].phase is StepPhase.RUNNING for state in states)
    assert states[-1].phase is ActionPhase.SUCCEEDED
    assert all(not state.is_final for state in states[:-1])


async def test_nothing_is_served_before_the_run_has_ended(start_agent: StartAgent, authority: trust.Authority) -> None:
    """Outputs and acknowledgement wait for the final state."""
    running = start_agent(run_spec(shell("sleep 600")))
    async with running.connect() as agent:
        await running.up(agent)
    uid = running.spec.run_uid
    channel, stub = stub_of(running, authority)
    async with channel:
        for call in (
            stub.ListOutputs(pb.ListOutputsRequest(run_uid=uid), timeout=CALL),
            stub.ReadOutput(pb.ReadOutputRequest(run_uid=uid, name="x"), timeout=CALL),
            stub.Acknowledge(pb.AcknowledgeRequest(run_uid=uid), timeout=CALL),
        ):
            assert await refused(call) is grpc.StatusCode.FAILED_PRECONDITION


async def test_calls_for_another_run_are_refused(start_agent: StartAgent, authority: trust.Authority) -> None:
    """Every call names the run that it means."""
    running = start_agent(run_spec(shell("true")))
    async with running.connect() as agent:
        await running.final(agent)
    channel, stub = stub_of(running, authority)
    async with channel:
        for call in (
            stub.Watch(pb.WatchRequest(run_uid="x"), timeout=CALL),
            stub.ListOutputs(pb.ListOutputsRequest(run_uid="x"), timeout=CALL),
            stub.ReadOutput(pb.ReadOutputRequest(run_uid="x", name="x"), timeout=CALL),
            stub.Acknowledge(
                pb.AcknowledgeRequest(run_uid="x", outputs_digest=protocol.outputs_digest([])), timeout=CALL
            ),
        ):
            assert await refused(call) is grpc.StatusCode.FAILED_PRECONDITION


async def test_unknown_names_and_pages(start_agent: StartAgent, authority: trust.Authority) -> None:
    """An unknown output is not found; a page token that was never given is refused."""
    running = start_agent(run_spec(shell("true")))
    async with running.connect() as agent:
        await running.final(agent)
    uid = running.spec.run_uid
    channel, stub = stub_of(running, authority)
    async with channel:
        read = stub.ReadOutput(pb.ReadOutputRequest(run_uid=uid, name="x"), timeout=CALL)
        assert await refused(read) is grpc.StatusCode.NOT_FOUND
        for token in ("x", "-1", "1", "²", "9" * 5000):
            page = stub.ListOutputs(pb.ListOutputsRequest(run_uid=uid, page_token=token), timeout=CALL)
            assert await refused(page) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_wrong_digest_is_no_acknowledgement(start_agent: StartAgent) -> None:
    """What was stored must be what is held; the agent stays."""
    running = start_agent(leaving_one())
    async with running.connect() as agent:
        await running.final(agent)
        for digest in ("", protocol.outputs_digest([]), protocol.outputs_digest([("a", bytes(32))])):
            with pytest.raises(agents.AgentMisbehaved, match="FAILED_PRECONDITION"):
                await agent.acknowledge(digest)
        assert running.popen.poll() is None
        await agent.acknowledge(agents.outputs_digest(await agent.outputs()))
    assert await running.wait() == 0


async def test_outputs_can_be_read_again(start_agent: StartAgent) -> None:
    """Until the acknowledgement everything may be repeated, by another connection too."""
    running = start_agent(leaving_one())
    seen = []
    for _ in range(2):
        async with running.connect() as agent:
            await running.final(agent)
            seen.append([await agent.read(info) for info in await agent.outputs()])
    assert seen[0] == seen[1]


async def test_linger(start_agent: StartAgent) -> None:
    """An agent to whom nobody comes ends as its run has ended, and says that nothing was acknowledged."""
    running = start_agent(run_spec(shell("true"), linger_seconds=0.2))
    assert await running.wait() == 0
    assert running.termination["phase"] == "PHASE_SUCCEEDED"
    assert "acknowledged" not in running.termination


async def test_sigterm_while_nothing_is_held(start_agent: StartAgent) -> None:
    """A pod that has to go and holds no outputs goes at once; the run has ended as it has ended."""
    running = start_agent(run_spec(shell("exit 3"), stop_grace_seconds=600))
    async with running.connect() as agent:
        await running.final(agent)
    running.signal(signal.SIGTERM)
    assert await running.wait() == 1
    assert running.termination["reason"] == "CommandFailed"


async def test_sigterm_while_outputs_are_held(start_agent: StartAgent) -> None:
    """A pod that has to go holds its outputs for its grace: they can still be read, and it ends once that was done."""
    running = start_agent(leaving_one(stop_grace_seconds=600))
    async with running.connect() as agent:
        await running.final(agent)
        running.signal(signal.SIGTERM)
        infos = await agent.outputs()
        assert [(await agent.read(info)).data for info in infos] == [b"1\n"]
        await agent.acknowledge(agents.outputs_digest(infos))
    assert await running.wait() == 0
    assert running.termination["acknowledged"] is True


async def test_sigterm_while_outputs_are_held_that_nobody_wants(start_agent: StartAgent) -> None:
    """After its grace, the agent ends without them, before the kubelet would kill it."""
    running = start_agent(leaving_one(stop_grace_seconds=0.5))
    async with running.connect() as agent:
        await running.final(agent)
    running.signal(signal.SIGTERM)
    assert await running.wait() == 0
    assert "acknowledged" not in running.termination


async def test_the_termination_message_says_how_far_a_killed_agent_came(start_agent: StartAgent) -> None:
    """It is there while the run goes on, so SIGKILL leaves the truth."""
    running = start_agent(run_spec(shell("true", "one"), shell("echo up > up; sleep 600", "two")))
    await running.until(running.work_dir / "up")
    running.signal(signal.SIGKILL)
    await running.wait()
    assert running.termination["phase"] == "PHASE_RUNNING"
    phases = [step["phase"] for step in running.termination["steps"]]
    assert phases == ["STEP_PHASE_SUCCEEDED", "STEP_PHASE_RUNNING"]


async def test_the_termination_message_is_what_was_watched(start_agent: StartAgent) -> None:
    """The operator reads the same state from both."""
    running = start_agent(run_spec(shell("exit 3")))
    async with running.connect() as agent:
        state = await running.final(agent)
    assert from_termination_message(json.dumps(running.termination)) == state


async def test_a_run_without_commands(start_agent: StartAgent) -> None:
    """Collecting outputs alone is a run too, and a successful one."""
    running = start_agent(run_spec(outputs=[output_command("echo again", pb.OUTPUT_FORMAT_TEXT, "x")]))
    async with running.connect() as agent:
        state = await running.final(agent)
        assert (state.phase, state.steps) == (ActionPhase.SUCCEEDED, ())
        infos = await agent.outputs()
        assert (await agent.read(infos[0])).data == b"again\n"
        await agent.acknowledge(agents.outputs_digest(infos))
    assert await running.wait() == 0


async def test_an_ipv6_address(start_agent: StartAgent) -> None:
    """Pods may have IPv6 addresses only."""
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        port = probe.getsockname()[1]
    running = start_agent(run_spec(shell("true")), ip="::1", environment={"OUTHAUL_PORT": str(port)})
    async with running.connect(port=port) as agent:
        assert (await running.final(agent)).phase is ActionPhase.SUCCEEDED


async def test_a_taken_port_is_said_before_anything_runs(start_agent: StartAgent) -> None:
    """Without a port no outputs could be read, so no command starts."""
    ip = fresh_address()
    with socket.socket() as taken:
        taken.bind((ip, layout.PORT))
        taken.listen()
        running = start_agent(run_spec(shell("echo 1 > ran")), ip=ip)
        assert await running.wait() == 1
    assert running.termination["reason"] == "RunFailed"
    assert f"cannot serve on {ip}:7465" in running.termination["message"]
    assert not (running.work_dir / "ran").exists()


def newer(**fields: Any) -> str:
    """Returns a run of a protocol that does not exist yet."""
    spec = run_spec(shell("echo 1 > ran"))
    document = json.loads(json_format.MessageToJson(spec))
    return json.dumps({**document, "protocolVersions": [7, 8], "operatorVersion": "9.9", **fields})


@pytest.mark.parametrize(
    ("document", "reason", "words"),
    [
        (newer(), Reason.PROTOCOL_MISMATCH, "the operator (version '9.9') speaks protocol 7, 8"),
        (newer(commands="another form"), Reason.PROTOCOL_MISMATCH, "this agent (version 0.1.0) speaks 1"),
        (newer(protocolVersions=None), Reason.PROTOCOL_MISMATCH, "speaks protocol none"),
        (newer(protocolVersions=[1], commands="hunter2"), Reason.INVALID_SPEC, "does not have the form"),
        (newer(protocolVersions=[1], commands=[{"name": "x"}]), Reason.INVALID_SPEC, "'x' names no program"),
        ("hunter2", Reason.INVALID_SPEC, "run.json in the run's Secret is no JSON"),
        ("[]", Reason.INVALID_SPEC, "no JSON object"),
        ("[" * 100_000, Reason.INVALID_SPEC, "no JSON"),
    ],
)
async def test_instructions_that_cannot_be_followed(
    start_agent: StartAgent, document: str, reason: Reason, words: str
) -> None:
    """Nothing is run; the termination message says why, and the agent ends at once."""
    running = start_agent(run_spec(), document=document)
    assert await running.wait() == 1
    message = running.termination
    assert (message["phase"], message["reason"]) == ("PHASE_FAILED", reason)
    assert words in message["message"]
    assert "hunter2" not in running.log
    assert "hunter2" not in message["message"]
    assert not (running.work_dir / "ran").exists()
    assert "Traceback" not in running.log


async def test_unknown_fields_are_ignored(start_agent: StartAgent) -> None:
    """A newer operator that speaks our version may say more than we know."""
    document = newer(protocolVersions=[2, 1], future={"a": 1})
    spec = run_spec(shell("true"), run_uid=json.loads(document)["runUid"])
    running = start_agent(spec, document=document)
    async with running.connect() as agent:
        assert (await running.final(agent)).phase is ActionPhase.SUCCEEDED


async def test_nothing_secret_is_logged(start_agent: StartAgent) -> None:
    """Neither variables nor files nor outputs are in the log or in the termination message."""
    running = start_agent(
        run_spec(
            shell("mkdir out; cp file out/o; exit 1", env={"PASSWORD": "hunter2"}),
            files={"file": b"hunter2"},
            outputs=[directory("out")],
        )
    )
    async with running.connect() as agent:
        await running.final(agent)
    assert "hunter2" not in running.log
    assert "hunter2" not in json.dumps(running.termination)


async def test_a_slow_operator_does_not_hold_up_the_end(start_agent: StartAgent, authority: trust.Authority) -> None:
    """A watch of the health service, which never ends by itself, ends with the agent."""
    running = start_agent(run_spec(shell("true")))
    async with running.connect() as agent:
        await running.final(agent)
        channel, _ = stub_of(running, authority)
        async with channel:
            start: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
            watch = start(b"")
            assert await watch.read() == b"\x08\x01"
            started = now()
            await agent.acknowledge(agents.outputs_digest([]))
            assert await watch.read() == b"\x08\x02"
            assert await watch.read() is grpc.aio.EOF
    assert await running.wait() == 0
    assert now() - started < dt.timedelta(seconds=1.5)
