"""What answers where the live operator dials: other runs, strangers, proxies and liars. The test is the kubelet.

The runs' pods are for a node that does not exist, and the test writes their status, so that it says who has which
address. Agents, certificates, API server and operator are real.
"""

import asyncio
import datetime as dt
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.objects import Json, Objects
from cluster.stack import OPERATOR, Stack
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp
from outhaul_grpc import layout
from outhaul_grpc import server as wire
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import add_AgentServicer_to_server
from outhaul_operator import trust
from wire import between
from wire.harness import AgentProcess, fresh_address
from wire.identities import run_name, self_signed, server_leaf, stranger
from wire.liars import Liar

OUTPUTS = [{"command": {"command": ["cat", "value"], "format": "text", "name": "key"}}]


class Run:
    """A run by hand whose pod is played."""

    def __init__(self, objects: Objects, name: str, root: Path) -> None:
        self.objects = objects
        self.name = name
        self._root = root
        spec = {"commands": [{"name": "main", "command": ["sh", "-c", f"printf {name} > value"]}], "outputs": OUTPUTS}
        self.uid: str = objects.create("AgentAction", name, spec=spec)["metadata"]["uid"]
        objects.until("Pod", name, lambda pod: pod, what="it is there")
        self.files = objects.secret(f"{name}-run")

    @property
    def leaf(self) -> trust.Leaf:
        """What the run's agent shows."""
        never = dt.datetime.max.replace(tzinfo=dt.UTC)
        return trust.Leaf(self.files[layout.CERTIFICATE_FILE], self.files[layout.KEY_FILE], never)

    def runs_at(self, ip: str) -> None:
        """Says that the pod runs and has this address."""
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        self._say({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], **_container(state)})

    def has_ended(self, message: str) -> None:
        """Says that the pod has failed, and with which last word."""
        state = {"terminated": {"exitCode": 1, "message": message}}
        self._say({"phase": "Failed", **_container(state)})

    def agent(self, ip: str) -> AgentProcess:
        """Starts the run's own agent at an address."""
        spec = json_format.Parse(self.files[layout.RUN_FILE], pb.RunSpec())
        return AgentProcess(self._root / self.name, spec, authority=stranger(), ip=ip, files=self.files).start()

    def says(self, reason: str) -> str:
        """Waits until the AgentAction gives this reason; returns its message."""

        def probe(obj: Json) -> str | None:
            status = obj.get("status", {})
            return status.get("message") if status.get("reason") == reason else None

        return self.objects.until("AgentAction", self.name, probe, what=f"it says {reason}")

    def fails(self, reason: str) -> str:
        """Waits until the run has failed for this reason; returns its message."""
        status = self.objects.ended(self.name)["status"]
        assert (status["phase"], status["reason"]) == ("Failed", reason), status
        assert self.objects.said("AgentAction", self.name, "Warning", reason) == status["message"][:1024]
        message: str = status["message"]
        assert message.isprintable()
        return message

    def brings_its_outputs(self) -> None:
        """Waits until the run has succeeded, and checks that the outputs are its own."""
        status = self.objects.ended(self.name)["status"]
        assert (status["phase"], status.get("reason")) == ("Succeeded", None), status
        assert self.objects.secret(f"{self.name}-outputs") == {"key": self.name.encode()}

    def _say(self, status: Json) -> None:
        path = f"/api/v1/namespaces/{self.objects.namespace}/pods/{self.name}/status"
        patch = {"status": status}
        self.objects.control_plane.request("PATCH", path, patch, content_type="application/merge-patch+json")


def _container(state: Json) -> Json:
    fields = {"name": "agent", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    return {"containerStatuses": [{**fields, "state": state}]}


@pytest.fixture(scope="module")
def nowhere(shared_objects: Objects) -> Objects:
    """The module's namespace, whose pods have no node."""
    template = {"spec": {"nodeSelector": {"played-by": "the-test"}}}
    shared_objects.create("AgentConfig", "default", spec={"podTemplate": template})
    return shared_objects


@pytest.fixture
def new_run(nowhere: Objects, tmp_path: Path) -> Callable[[str], Run]:
    """Makes a run of a name, with a pod that says nothing yet."""
    return lambda name: Run(nowhere, name, tmp_path)


@pytest.fixture(autouse=True)
def log(stack: Stack) -> Iterator[Callable[[], list[str]]]:
    """Returns what the operator has logged since; there is no stack trace in it."""
    file = stack.control_plane.processes.log(OPERATOR)
    before = file.stat().st_size

    def since() -> list[str]:
        return file.read_bytes()[before:].decode(errors="replace").splitlines()

    yield since
    assert not [line for line in since() if "Traceback" in line]


@asynccontextmanager
async def serving(ip: str, liar: Liar, leaf: trust.Leaf, roots: bytes) -> AsyncIterator[None]:
    """Serves an agent's methods at an address."""
    server = wire.create_server()
    add_AgentServicer_to_server(liar, server)
    credentials: Any = wire.server_credentials(certificate=leaf.certificate, key=leaf.key, roots=roots)
    server.add_secure_port(layout.socket_address(ip, layout.PORT), credentials)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_an_address_that_another_run_has_now(new_run: Callable[[str], Run], log: Callable[[], list[str]]) -> None:
    """At a stale address nothing is asked for, that is said once, and both runs end with their own outputs."""
    stale, current, ip = await asyncio.gather(
        asyncio.to_thread(new_run, "stale"), asyncio.to_thread(new_run, "current"), asyncio.to_thread(fresh_address)
    )
    agents = [current.agent(ip)]
    try:
        stale.runs_at(ip)
        message = await asyncio.to_thread(stale.says, "AgentUnreachable")
        assert f"does not answer at {ip}" in message
        assert "what answers there has the certificate of another run" in message
        current.runs_at(ip)
        await asyncio.to_thread(current.brings_its_outputs)
        agents.append(stale.agent(fresh_address()))
        stale.runs_at(agents[1].ip)
        await asyncio.to_thread(stale.brings_its_outputs)
    finally:
        for agent in agents:
            agent.kill()
    # Beside the events about the run, which are logged as such.
    told = [line for line in log() if " outhaul_operator.runs " in line and "/stale, run stale]" in line]
    assert told == [line for line in log() if message in line]
    assert len([line for line in log() if message in line]) == 1
    assert not any("Traceback" in agent.log for agent in agents)


async def test_a_stranger_at_the_address(new_run: Callable[[str], Run]) -> None:
    """A server that vouches for itself is not talked to, and the run ends by its pod's word."""
    run = await asyncio.to_thread(new_run, "self-signed")
    ip = fresh_address()
    async with serving(ip, Liar(), self_signed(run_name(run.uid)), run.files[layout.ROOTS_FILE]):
        run.runs_at(ip)
        message = await asyncio.to_thread(run.says, "AgentUnreachable")
        assert "no certificate of this operator's authority for an agent" in message
        run.has_ended('{"phase":"PHASE_FAILED","reason":"TimedOut","message":"the time is over"}')
        assert await asyncio.to_thread(run.fails, "TimedOut") == "the time is over"


async def test_a_proxy_in_between(new_run: Callable[[str], Run], tmp_path: Path) -> None:
    """A proxy that ends the TLS is refused; one that passes bytes on is no hindrance."""
    run = await asyncio.to_thread(new_run, "proxied")
    ip, agent = fresh_address(), run.agent(fresh_address())
    try:
        front = between.server_tls(server_leaf(stranger(), run.uid), tmp_path)
        async with between.listening(ip, between.relay_to(agent.ip), front):
            run.runs_at(ip)
            message = await asyncio.to_thread(run.says, "AgentUnreachable")
            assert "no certificate of this operator's authority for an agent" in message
        async with between.listening(ip, between.relay_to(agent.ip)):
            await asyncio.to_thread(run.brings_its_outputs)
    finally:
        agent.kill()


async def test_an_agent_that_breaks_off_again_and_again(new_run: Callable[[str], Run]) -> None:
    """It is dialled at growing intervals, the AgentAction says what is wrong, and the run goes on once that is over."""
    run = await asyncio.to_thread(new_run, "breaks-off")
    ip, agent = fresh_address(), run.agent(fresh_address())
    try:
        async with serving(ip, introduced(run.uid, watch=state()), run.leaf, run.files[layout.ROOTS_FILE]):
            run.runs_at(ip)
            message = await asyncio.to_thread(run.says, "AgentUnreachable")
            assert "the agent ended the stream of states before the run has ended" in message
        run.runs_at(agent.ip)
        await asyncio.to_thread(run.brings_its_outputs)
    finally:
        agent.kill()


def introduced(uid: str, **answers: Any) -> Liar:
    """Returns an agent that is who it should be, and otherwise answers as given."""
    return Liar(info=lambda _: pb.GetInfoResponse(run_uid=uid, protocol_versions=[1]), **answers)


def state(*steps: pb.StepState, phase: pb.Phase.ValueType = pb.PHASE_RUNNING, **fields: Any) -> Any:
    """Returns the answers to a watch."""
    return lambda _: [pb.RunState(phase=phase, steps=steps, **fields)]


FAILED = pb.STEP_PHASE_FAILED
LIES: dict[str, tuple[Callable[[str], Liar], str]] = {
    "another-run": (lambda _: introduced("other"), "the agent says that it is another run's"),
    "other-steps": (
        lambda uid: introduced(uid, watch=state(pb.StepState(name="\x1b[2J", phase=FAILED))),
        "the agent reports steps that are not the run's",
    ),
    "a-time-before-time": (
        lambda uid: introduced(
            uid, watch=state(pb.StepState(name="main", phase=FAILED, started_at=Timestamp(seconds=-62135596800)))
        ),
        "it reports a time at which no command has run",
    ),
    "too-much-to-say": (
        lambda uid: introduced(uid, watch=state(message="x" * 50_000)),
        "the agent answered RESOURCE_EXHAUSTED",
    ),
    "other-outputs": (
        lambda uid: introduced(
            uid,
            watch=state(phase=pb.PHASE_SUCCEEDED, output_count=1, output_bytes=5),
            outputs=lambda _: pb.ListOutputsResponse(
                outputs=[pb.OutputInfo(name="a", type="string", size=2**40, sha256="0" * 64)]
            ),
        ),
        "it lists more outputs than it may hold, or than it has announced",
    ),
}


async def test_agents_that_lie(new_run: Callable[[str], Run]) -> None:
    """Whoever has the run's key and breaks the protocol ends the run, in words that say how."""
    async with AsyncExitStack() as servers:
        runs: dict[str, Run] = {}
        for name, (liar, _) in LIES.items():
            run = runs[name] = await asyncio.to_thread(new_run, name)
            ip = fresh_address()
            await servers.enter_async_context(serving(ip, liar(run.uid), run.leaf, run.files[layout.ROOTS_FILE]))
            run.runs_at(ip)
        for name, (_, words) in LIES.items():
            assert words in await asyncio.to_thread(runs[name].fails, "AgentMisbehaved")


async def test_an_agent_of_few_words(new_run: Callable[[str], Run]) -> None:
    """A failure without a word, of an agent without a version, is an end like any other."""
    run = await asyncio.to_thread(new_run, "few-words")
    ip = fresh_address()
    listing = pb.OutputInfo(name="\x1b[2J", type="string", sha256=hashlib.sha256(b"").hexdigest())
    liar = introduced(
        run.uid,
        watch=state(phase=pb.PHASE_FAILED, output_count=1),
        outputs=lambda _: pb.ListOutputsResponse(outputs=[listing]),
        read=lambda _: [],
        acknowledge=lambda _: pb.AcknowledgeResponse(),
    )
    async with serving(ip, liar, run.leaf, run.files[layout.ROOTS_FILE]):
        run.runs_at(ip)
        assert await asyncio.to_thread(run.fails, "RunFailed") == "the agent does not say why"
    record = run.objects.get("InstallationOutput", run.name)["status"]
    assert (record["outputNames"], record["provenance"]["agentVersion"]) == (" [2J", "unknown")


def test_last_words_that_lie(new_run: Callable[[str], Run]) -> None:
    """What a container leaves as its last word is believed only where it can be true."""
    words = {
        "steps-of-others": (
            '{"phase":"PHASE_SUCCEEDED","steps":[{"name":"x","phase":"STEP_PHASE_FAILED"}]}',
            "are not",
        ),
        "a-bomb": ('{"phase":"PHASE_SUCCEEDED","outputCount":1e999999999}', "ended with code 1"),
        "a-year-of-one-digit": (
            '{"phase":"PHASE_FAILED","steps":[{"name":"main","startedAt":"0001-01-01T00:00:00Z"}]}',
            "ended with code 1",
        ),
    }
    reasons = {"steps-of-others": "AgentMisbehaved"}
    for name, (message, part) in words.items():
        run = new_run(name)
        run.has_ended(message)
        assert part in run.fails(reasons.get(name, "AgentCrashed"))


def test_a_record_that_was_edited(objects: Objects) -> None:
    """A record that says it has more than a run can bring makes the operator hold nothing of it."""
    install = [{"name": "main", "command": ["sh", "-c", "printf x > value"]}]
    objects.install("edited", commands={"install": install}, outputs={"from": OUTPUTS})
    objects.ready("edited")
    (record,) = objects.records("edited")
    outputs = objects.get("InstallationOutput", record)["status"]["outputs"]
    outputs[0]["size"] = 2**50
    objects.patch("InstallationOutput", record, {"status": {"outputs": outputs}})
    objects.respec("edited", outputs={"from": OUTPUTS, "keyStyle": "Env"})
    objects.condition("Installation", "edited", "OutputsReady", "False", "OutputsLost")
