"""An agent that lies: the operator keeps its bounds, its deadlines and its words."""

# ruff: noqa: N802, ARG002, S106 - methods as in the contract, and page tokens

import asyncio
import datetime as dt
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from outhaul_api.vocabulary import OutputType
from outhaul_grpc import layout, protocol
from outhaul_grpc import server as wire
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from outhaul_operator import agents, trust
from outhaul_operator.agents import Agent, AgentMisbehaved, AgentUnreachable, OutputInfo
from wire.harness import fresh_address, now

UID = "run"


class Liar(AgentServicer):
    """An agent whose every answer a test decides."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def _answer(self, method: str, request: Any) -> Any:
        return self.answers[method](request)

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return self._answer("info", request)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for state in aiter_of(self._answer("watch", request)):
            yield pb.WatchResponse(state=state)

    async def ListOutputs(self, request: Any, context: Any) -> Any:
        return self._answer("outputs", request)

    async def ReadOutput(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for chunk in aiter_of(self._answer("read", request)):
            yield pb.ReadOutputResponse(chunk=chunk)

    async def ReadSource(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in aiter_of(self._answer("source", request)):
            yield message

    async def Acknowledge(self, request: Any, context: Any) -> Any:
        return self._answer("acknowledge", request)


async def aiter_of(items: Any) -> AsyncIterator[Any]:
    """Yields from an iterable or an asynchronous one."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


@asynccontextmanager
async def lying(authority: trust.Authority, liar: Liar | None = None, **answers: Any) -> AsyncIterator[Agent]:
    """Serves lies, and connects to them as the operator."""
    leaf = trust.issue_server(
        authority,
        namespace="n",
        name="n",
        run_uid=UID,
        timeout=dt.timedelta(hours=1),
        linger=dt.timedelta(0),
        now=now(),
    )
    server = wire.create_server()
    add_AgentServicer_to_server(liar or Liar(**answers), server)
    ip = fresh_address()
    server.add_secure_port(
        layout.socket_address(ip, layout.PORT),
        wire.server_credentials(certificate=leaf.certificate, key=leaf.key, roots=authority.roots),
    )
    await server.start()
    try:
        identity = trust.issue_operator(authority, now())
        async with agents.connect(ip, run_uid=UID, identity=identity, roots=authority.roots) as agent:
            yield agent
    finally:
        await server.stop(None)


def info(name: str, data: bytes = b"", **changes: Any) -> pb.OutputInfo:
    """Returns an output as an honest agent lists it, but for the changes."""
    values = {
        "name": name,
        "type": "string",
        "sensitive": True,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        **changes,
    }
    return pb.OutputInfo(**values)


def page(*infos: pb.OutputInfo, **fields: Any) -> pb.ListOutputsResponse:
    """Returns a page of a listing."""
    return pb.ListOutputsResponse(outputs=infos, **fields)


def numbered_page(request: pb.ListOutputsRequest) -> pb.ListOutputsResponse:
    """Returns one of infinitely many pages."""
    start = int(request.page_token or 0)
    return page(*(info(f"{number:08}") for number in range(start, start + 200)), next_page_token=str(start + 200))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: page(info("a"), info("a")), "twice or out of order"),
        (lambda _: page(info("b"), info("a")), "twice or out of order"),
        (lambda _: page(info("a"), next_page_token="x"), "twice or out of order"),
        (lambda _: page(next_page_token="x"), "an empty page that is not the last"),
        (numbered_page, "more outputs than an agent may hold"),
        (lambda _: page(info("a", size=2**40)), "more outputs than an agent may hold"),
        (lambda _: page(info("a", size=2**64 - 1)), "more outputs than an agent may hold"),
        (
            lambda _: page(*(info(name, size=protocol.MAX_TOTAL_BYTES // 2 + 1) for name in "ab")),
            "more outputs than an agent may hold",
        ),
        (lambda _: page(info("x" * 1025)), "a name that is too long"),
        (lambda _: page(info("a", type="number\n")), "a type that nobody knows"),
        (lambda _: page(info("a", type="")), "a type that nobody knows"),
        (lambda _: page(info("a", sha256="A" * 64)), "without a digest"),
        (lambda _: page(info("a", sha256="")), "without a digest"),
        (lambda _: page(*(info(f"{n:01024}") for n in range(2000))), "RESOURCE_EXHAUSTED"),
    ],
)
async def test_listings(authority: trust.Authority, answer: Any, words: str) -> None:
    """A listing that no honest agent gives is refused, without keeping more than the bounds."""
    async with lying(authority, outputs=answer) as agent:
        with pytest.raises(AgentMisbehaved, match=words):
            await agent.outputs()


ABC = OutputInfo("a", OutputType.STRING, sensitive=True, size=3, sha256=hashlib.sha256(b"abc").hexdigest())


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([b"ab", b"cd"], "more than it has listed"),
        ([b"ab"], "less than it has listed"),
        ([], "less than it has listed"),
        ([b"abd"], "not the digest that it has listed"),
        ([b"ab", b"", b"c"], "a size that none may have"),
        ([b"x" * 65537], "a size that none may have"),
        (itertools.repeat(b""), "a size that none may have"),
        (itertools.repeat(b"x"), "more than it has listed"),
        ([b"x" * 2_000_000], "RESOURCE_EXHAUSTED"),
    ],
)
async def test_values(authority: trust.Authority, chunks: Any, words: str) -> None:
    """A value that is not what was listed is refused as soon as that is clear."""
    async with lying(authority, read=lambda _: chunks) as agent:
        with pytest.raises(AgentMisbehaved, match=words):
            await agent.read(ABC)


def source_info(data: bytes = b"", **changes: Any) -> pb.ReadSourceResponse:
    """Returns what an honest agent says of its source first, but for the changes."""
    values = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    return pb.ReadSourceResponse(info=pb.SourceInfo(**values))


def source_chunks(*chunks: bytes) -> list[pb.ReadSourceResponse]:
    """Returns pieces of a source."""
    return [pb.ReadSourceResponse(chunk=chunk) for chunk in chunks]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "does not say what there is"),
        (source_chunks(b"abc"), "does not say what there is"),
        ([pb.ReadSourceResponse()], "does not say what there is"),
        ([source_info(size=protocol.MAX_SOURCE_BYTES + 1)], "more than it may hold"),
        ([source_info(size=2**64 - 1)], "more than it may hold"),
        ([source_info(b"abc", too_large=True)], "more than it may hold"),
        ([source_info(b"abc")], "less than it has listed"),
        ([source_info(b"abc"), *source_chunks(b"ab", b"cd")], "more than it has listed"),
        ([source_info(b"abc"), *source_chunks(b"abd")], "not the digest"),
        ([source_info(b"abc", sha256="x"), *source_chunks(b"abc")], "not the digest"),
        ([source_info(b"abc"), source_info(b"abc")], "a size that none may have"),
        ([source_info(b"abc"), *source_chunks(b"x" * 65537)], "a size that none may have"),
        (itertools.chain([source_info(b"abc")], itertools.repeat(source_chunks(b"x")[0])), "more than it has listed"),
    ],
)
async def test_sources(authority: trust.Authority, messages: Any, words: str) -> None:
    """A copy of a source that is not what was said of it, or too large, is refused as soon as that is clear."""
    async with lying(authority, source=lambda _: messages) as agent:
        with pytest.raises(AgentMisbehaved, match=words):
            await agent.source()


async def test_an_older_agent_has_no_source(authority: trust.Authority) -> None:
    """An agent that does not know what is asked of it keeps no source; that is no mistake of its."""

    class Older(Liar):
        async def ReadSource(self, request: Any, context: Any) -> AsyncIterator[Any]:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the agent has no such method")
            yield

    async with lying(authority, Older()) as agent:
        assert await agent.source() is None


async def test_a_value_in_other_pieces_is_fine(authority: trust.Authority) -> None:
    """How a value is cut is the agent's affair."""
    async with lying(authority, read=lambda _: [b"a", b"bc"]) as agent:
        assert (await agent.read(ABC)).data == b"abc"


async def stuck(_request: Any = None) -> AsyncIterator[Any]:
    """Says nothing."""
    await asyncio.Event().wait()
    yield


CALLS: dict[str, Callable[[Agent], Awaitable[Any]]] = {
    "info": lambda agent: agent.info(),
    "outputs": lambda agent: agent.outputs(),
    "acknowledge": lambda agent: agent.acknowledge(""),
    "read": lambda agent: agent.read(ABC),
    "source": lambda agent: agent.source(),
}


class Stuck(Liar):
    """An agent that answers nothing."""

    async def GetInfo(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def ListOutputs(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def Acknowledge(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("method", CALLS)
async def test_every_call_has_a_deadline(
    authority: trust.Authority, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that does not answer is unreachable, soon."""
    monkeypatch.setattr(agents, "CALL_TIMEOUT", 0.3)
    monkeypatch.setattr(agents, "READ_BYTES_PER_SECOND", 10**9)
    async with lying(authority, Stuck(read=stuck, source=stuck)) as agent:
        with pytest.raises(AgentUnreachable):
            await CALLS[method](agent)


async def watched(agent: Agent) -> list[Any]:
    """Returns all states of a watch."""
    return [state async for state in agent.watch()]


async def test_a_silent_watch_ends(authority: trust.Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch without heartbeats is a lost connection."""
    monkeypatch.setattr(agents, "IDLE_TIMEOUT", 0.3)
    async with lying(authority, watch=stuck) as agent:
        with pytest.raises(AgentUnreachable, match="has said nothing"):
            await watched(agent)


async def test_a_watch_that_ends_too_early(authority: trust.Authority) -> None:
    """A stream that ends before the run has ended is a lost connection."""
    states = [pb.RunState(phase=pb.PHASE_RUNNING)]
    async with lying(authority, watch=lambda _: states) as agent:
        with pytest.raises(AgentUnreachable, match="before the run has ended"):
            await watched(agent)


async def test_a_flood_of_states_is_slowed_down(authority: trust.Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a burst the operator reads no faster than it wants to."""
    monkeypatch.setattr(agents, "WATCH_BURST", 5)
    monkeypatch.setattr(agents, "WATCH_PAUSE", 60.0)
    flood = (pb.RunState(phase=pb.PHASE_RUNNING, output_count=number) for number in itertools.count())
    seen = []

    async def watch(agent: Agent) -> None:
        async with asyncio.timeout(1):
            async for state in agent.watch():
                seen.append(state)  # noqa: PERF401 - the watch does not come to an end

    async with lying(authority, watch=lambda _: flood) as agent:
        with pytest.raises(TimeoutError):
            await watch(agent)
    assert len(seen) < 10


async def test_the_same_state_is_told_once(authority: trust.Authority) -> None:
    """Heartbeats are not changes."""
    running = pb.RunState(phase=pb.PHASE_RUNNING)
    states = [running, running, running, pb.RunState(phase=pb.PHASE_SUCCEEDED)]
    async with lying(authority, watch=lambda _: states) as agent:
        assert len(await watched(agent)) == 2


@pytest.mark.parametrize(
    "state",
    [
        pb.RunState(),
        pb.RunState(phase=pb.PHASE_RUNNING, steps=[pb.StepState(phase=pb.STEP_PHASE_PENDING)] * 65),
        pb.RunState(phase=pb.PHASE_RUNNING, steps=[pb.StepState()]),
    ],
)
async def test_nonsense_states(authority: trust.Authority, state: pb.RunState) -> None:
    """A state that cannot be is refused."""
    async with lying(authority, watch=lambda _: [state]) as agent:
        with pytest.raises(AgentMisbehaved):
            await watched(agent)


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (pb.GetInfoResponse(run_uid="other", protocol_versions=[1]), AgentMisbehaved, "another run's"),
        (
            pb.GetInfoResponse(run_uid=UID, agent_version="9\x1b[31m" + "x" * 999, protocol_versions=[7, 9]),
            agents.ProtocolMismatch,
            r"the agent \(version 9 \[31mx+…\) speaks protocol 7, 9, this operator speaks 1:",
        ),
        (pb.GetInfoResponse(run_uid=UID), agents.ProtocolMismatch, "speaks protocol none"),
    ],
)
async def test_introductions(
    authority: trust.Authority, reply: pb.GetInfoResponse, error: type[Exception], words: str
) -> None:
    """Another run's agent and one of another protocol are told apart, in bounded words."""
    async with lying(authority, info=lambda _: reply) as agent:
        with pytest.raises(error, match=words) as caught:
            await agent.info()
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
