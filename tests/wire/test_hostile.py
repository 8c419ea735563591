"""An agent that lies: the operator keeps its bounds, its deadlines and its words."""

# ruff: noqa: N802, ARG002, S106 - methods as in the contract, and page tokens

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from outhaul_api.vocabulary import OutputType
from outhaul_grpc import protocol
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents, trust
from outhaul_operator.agentoutputs import Output, OutputInfo
from outhaul_operator.agents import Agent, AgentError, AgentMisbehaved, AgentUnreachable
from wire.liars import UID, Liar, serving

STEPS = ("main",)
TOO_MANY = "more outputs than it may hold"


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
        (numbered_page, TOO_MANY),
        (lambda _: page(info("a", size=2**40)), TOO_MANY),
        (lambda _: page(info("a", size=2**64 - 1)), TOO_MANY),
        (
            lambda _: page(*(info(name, size=protocol.MAX_TOTAL_BYTES // 2 + 1) for name in "ab")),
            TOO_MANY,
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
    async with serving(authority, Liar(outputs=answer)) as agent:
        with pytest.raises(AgentMisbehaved, match=words):
            await agent.outputs()


ABC = OutputInfo("a", OutputType.STRING, sensitive=True, size=3, sha256=hashlib.sha256(b"abc").hexdigest())


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([b"ab", b"cd"], "more of output 'a' than it has listed"),
        ([b"ab"], "less of output 'a' than it has listed"),
        ([], "less of output 'a' than it has listed"),
        ([b"abd"], "with another digest than it has listed"),
        ([b"c", b"b", b"a"], "with another digest than it has listed"),
        ([b"ab", b"", b"c"], "a size that none may have"),
        ([b"x" * 65537], "a size that none may have"),
        (itertools.repeat(b""), "a size that none may have"),
        (itertools.repeat(b"x"), "more of output 'a' than it has listed"),
        ([b"x" * 2_000_000], "RESOURCE_EXHAUSTED"),
    ],
)
async def test_values(authority: trust.Authority, chunks: Any, words: str) -> None:
    """A value that is not what was listed is refused as soon as that is clear."""
    async with serving(authority, Liar(read=lambda _: chunks)) as agent:
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
        ([source_info(b"abc")], "less of its source than it has listed"),
        ([source_info(b"abc"), *source_chunks(b"ab", b"cd")], "more of its source than it has listed"),
        ([source_info(b"abc"), *source_chunks(b"abd")], "with another digest"),
        ([source_info(b"abc", sha256="x"), *source_chunks(b"abc")], "with another digest"),
        ([source_info(b"abc"), source_info(b"abc")], "a size that none may have"),
        ([source_info(b"abc"), *source_chunks(b"x" * 65537)], "a size that none may have"),
        (itertools.chain([source_info(b"abc")], itertools.repeat(source_chunks(b"x")[0])), "more of its source than"),
    ],
)
async def test_sources(authority: trust.Authority, messages: Any, words: str) -> None:
    """A copy of a source that is not what was said of it, or too large, is refused as soon as that is clear."""
    async with serving(authority, Liar(source=lambda _: messages)) as agent:
        with pytest.raises(AgentMisbehaved, match=words):
            await agent.source()


async def test_an_older_agent_has_no_source(authority: trust.Authority) -> None:
    """An agent that does not know what is asked of it keeps no source; that is no mistake of its."""

    class Older(Liar):
        async def ReadSource(self, request: Any, context: Any) -> AsyncIterator[Any]:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the agent has no such method")
            yield

    async with serving(authority, Older()) as agent:
        assert await agent.source() is None


async def sent(authority: trust.Authority, kind: str, data: bytes) -> Output:
    """Returns an output of a type as it comes over, where it does."""
    listed = OutputInfo("a", OutputType(kind), sensitive=False, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    chunks = [data[start : start + 65536] for start in range(0, len(data), 65536)]
    async with serving(authority, Liar(read=lambda _: chunks)) as agent:
        return await agent.read(listed)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("number", b"abc"),
        ("number", b"1e"),
        ("number", b"01"),
        ("number", b"1\n"),
        ("number", b"NaN"),
        ("number", b"{}"),
        ("number", b"9" * 300_000 + b"x"),
        ("boolean", b"True"),
        ("boolean", b"0"),
        ("null", b""),
        ("object", b"[]"),
        ("object", b"{"),
        ("object", b"text"),
        ("array", b"{}"),
        ("array", b"[" * 300_000),
        ("array", b"[\xff]"),
        ("string", b"\xff\xfe"),
        ("string", b"cut \xe2\x82"),
    ],
)
async def test_a_value_of_another_type(authority: trust.Authority, kind: str, data: bytes) -> None:
    """A value that is not of the type that was listed is refused, and nothing of it is shown."""
    with pytest.raises(AgentMisbehaved) as caught:
        await sent(authority, kind, data)
    assert str(caught.value) == (
        f"the agent broke the protocol: it sends output 'a', which is not of the type {kind} that it has listed"
    )


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("number", b"-1.50e+999999999"),
        ("number", b"9" * 300_000),
        ("array", b"[" * 300_000 + b"]" * 300_000),
        ("string", "\u20ac".encode() * 50_000),
        ("string", b""),
        ("bytes", b"\xff\0"),
        ("null", b"null"),
        ("boolean", b"false"),
    ],
)
async def test_a_bomb_is_carried_and_never_opened(authority: trust.Authority, kind: str, data: bytes) -> None:
    """What would be huge once it is taken apart is bytes here, and comes through as such."""
    assert (await sent(authority, kind, data)).data == data


async def test_a_value_in_other_pieces_is_fine(authority: trust.Authority) -> None:
    """How a value is cut is the agent's affair."""
    async with serving(authority, Liar(read=lambda _: [b"a", b"bc"])) as agent:
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
    async with serving(authority, Stuck(read=stuck, source=stuck)) as agent:
        with pytest.raises(AgentUnreachable):
            await CALLS[method](agent)


def running(*steps: pb.StepState) -> pb.RunState:
    """Returns the state of a run that goes on, with steps that are pending unless they say otherwise."""
    for step in steps:
        step.phase = step.phase or pb.STEP_PHASE_PENDING
    return pb.RunState(phase=pb.PHASE_RUNNING, steps=steps)


async def watched(agent: Agent) -> list[Any]:
    """Returns all states of a watch."""
    return [state async for state in agent.watch(STEPS)]


async def test_a_silent_watch_ends(authority: trust.Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch without heartbeats is a lost connection."""
    monkeypatch.setattr(agents, "IDLE_TIMEOUT", 0.3)
    async with serving(authority, Liar(watch=stuck)) as agent:
        with pytest.raises(AgentUnreachable, match="has said nothing"):
            await watched(agent)


async def test_a_watch_that_ends_too_early(authority: trust.Authority) -> None:
    """A stream that ends before the run has ended is a lost connection."""
    states = [pb.RunState(phase=pb.PHASE_RUNNING)]
    async with serving(authority, Liar(watch=lambda _: states)) as agent:
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
            async for state in agent.watch(STEPS):
                seen.append(state)  # noqa: PERF401 - the watch does not come to an end

    async with serving(authority, Liar(watch=lambda _: flood)) as agent:
        with pytest.raises(TimeoutError):
            await watch(agent)
    assert len(seen) < 10


async def test_the_same_state_is_told_once(authority: trust.Authority) -> None:
    """Heartbeats are not changes."""
    running = pb.RunState(phase=pb.PHASE_RUNNING)
    states = [running, running, running, pb.RunState(phase=pb.PHASE_SUCCEEDED)]
    async with serving(authority, Liar(watch=lambda _: states)) as agent:
        assert len(await watched(agent)) == 2


@pytest.mark.parametrize(
    "state",
    [
        pb.RunState(),
        pb.RunState(phase=pb.PHASE_RUNNING, steps=[pb.StepState(phase=pb.STEP_PHASE_PENDING)] * 65),
        pb.RunState(phase=pb.PHASE_RUNNING, steps=[pb.StepState()]),
        pb.RunState.FromString(b"\x08\x63"),
        pb.RunState(phase=pb.PHASE_SUCCEEDED, output_count=10_001),
        pb.RunState(phase=pb.PHASE_SUCCEEDED, output_count=1, output_bytes=protocol.MAX_TOTAL_BYTES + 1),
        running(pb.StepState(name="other")),
        running(pb.StepState(name="main\n")),
        running(pb.StepState(name="x" * 20_000)),
        running(pb.StepState(name="main"), pb.StepState(name="main")),
        running(pb.StepState(name="main", exit_code=256)),
        running(pb.StepState(name="main", exit_code=-1)),
        running(pb.StepState(name="main", exit_code=-(2**31))),
        running(pb.StepState(name="main", started_at=Timestamp(seconds=-62135596800))),
        running(pb.StepState(name="main", started_at=Timestamp(seconds=-1))),
        running(pb.StepState(name="main", finished_at=Timestamp(seconds=253402300800))),
        running(pb.StepState(name="main", finished_at=Timestamp(seconds=2**63 - 1))),
        pb.RunState(phase=pb.PHASE_RUNNING, message="x" * 40_000),
    ],
)
async def test_nonsense_states(authority: trust.Authority, state: pb.RunState) -> None:
    """A state that cannot be is refused, in words that are fit for a status."""
    async with serving(authority, Liar(watch=lambda _: [state])) as agent:
        with pytest.raises(AgentMisbehaved) as caught:
            await watched(agent)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


async def test_words_of_a_state_are_made_fit(authority: trust.Authority) -> None:
    """Control characters, marks that turn text around, and lengths do not get into a status."""
    state = pb.RunState(
        phase=pb.PHASE_FAILED,
        reason="OutputsLost",
        message="\x1b[2J\0\u202e" + "\U0001f600" * 3000,
        steps=[pb.StepState(name="main", phase=pb.STEP_PHASE_FAILED, exit_code=255)],
    )
    async with serving(authority, Liar(watch=lambda _: [state])) as agent:
        (seen,) = await watched(agent)
    assert seen.message.startswith(" [2J  \U0001f600")
    assert len(seen.message) == protocol.MAX_MESSAGE_CHARACTERS
    assert seen.reason == "RunFailed"


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
        (pb.GetInfoResponse(run_uid=UID, protocol_versions=range(17)), AgentMisbehaved, "more than 16 versions"),
        (pb.GetInfoResponse(run_uid=UID, agent_version="x" * 40_000), AgentMisbehaved, "RESOURCE_EXHAUSTED"),
    ],
)
async def test_introductions(
    authority: trust.Authority, reply: pb.GetInfoResponse, error: type[Exception], words: str
) -> None:
    """Another run's agent and one of another protocol are told apart, in bounded words."""
    async with serving(authority, Liar(info=lambda _: reply)) as agent:
        with pytest.raises(error, match=words) as caught:
            await agent.info()
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_errors(authority: trust.Authority, code: grpc.StatusCode) -> None:
    """Whatever error an agent answers with is an error of the agent's, in bounded words."""
    async with serving(authority, Liar(abort=(code, "\x1b[31m" + "x" * 3000))) as agent:
        with pytest.raises(AgentError) as caught:
            await agent.info()
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


async def test_an_error_larger_than_a_header_may_be(authority: trust.Authority) -> None:
    """Endless details end the call."""
    async with serving(authority, Liar(abort=(grpc.StatusCode.INTERNAL, "x" * 100_000))) as agent:
        with pytest.raises(AgentError) as caught:
            await agent.info()
    assert len(str(caught.value)) < 300
