"""Anything at all on the wire, in both directions: nobody crashes, nothing hangs, nothing false is believed."""

import asyncio
import datetime as dt
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outhaul_api.vocabulary import OutputType
from outhaul_grpc import client, layout, protocol
from outhaul_grpc import server as wire
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents, trust
from outhaul_operator.agentoutputs import OutputInfo
from outhaul_operator.agents import Agent, AgentError, AgentMisbehaved
from wire.harness import AgentProcess, directory, fresh_address, now, run_spec, shell

UID = "run"
SERVICE = pb.DESCRIPTOR.services_by_name["Agent"]
METHODS = [method.name for method in SERVICE.methods]
STEPS = ("main",)
STREAMING = {"Watch", "ReadOutput", "ReadSource"}
CALL = 10.0
"""Seconds in which any call has to end."""

fuzz = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Raw:
    """A server of the contract's methods whose answers are any bytes that a test likes."""

    replies: dict[str, list[bytes]] = field(default_factory=dict)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns all methods."""
        return grpc.method_handlers_generic_handler(SERVICE.full_name, {name: self._method(name) for name in METHODS})

    def _method(self, name: str) -> Any:
        async def one(_request: bytes, context: Any) -> bytes:
            return self.replies[name][0]

        async def many(_request: bytes, context: Any) -> AsyncIterator[bytes]:
            for reply in self.replies[name]:
                yield reply

        if name in STREAMING:
            return grpc.unary_stream_rpc_method_handler(many)
        return grpc.unary_unary_rpc_method_handler(one)


@dataclass(frozen=True)
class Pair:
    """The operator's end, connected to a server that answers anything."""

    agent: Agent
    server: Raw

    async def after(self, method: str, replies: list[bytes], call: Callable[[Agent], Awaitable[Any]]) -> Any:
        """Returns what a call comes to when these are the replies."""
        self.server.replies[method] = replies
        async with asyncio.timeout(CALL):
            return await call(self.agent)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(authority: trust.Authority) -> AsyncIterator[Pair]:
    """One connection for all examples."""
    hour = dt.timedelta(hours=1)
    leaf = trust.issue_server(authority, namespace="n", name="n", run_uid=UID, timeout=hour, linger=hour, now=now())
    raw = Raw()
    server = wire.create_server()
    server.add_generic_rpc_handlers([raw.handler()])
    ip = fresh_address()
    server.add_secure_port(
        layout.socket_address(ip, layout.PORT),
        wire.server_credentials(certificate=leaf.certificate, key=leaf.key, roots=authority.roots),
    )
    await server.start()
    identity = trust.issue_operator(authority, now())
    async with agents.connect(ip, run_uid=UID, identity=identity, roots=authority.roots) as agent:
        yield Pair(agent, raw)
    await server.stop(None)


def listed(data: bytes, name: str = "x") -> OutputInfo:
    """Returns the listing of an output with this value."""
    return OutputInfo(name, OutputType.BYTES, sensitive=True, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cuts data at these places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def chunks(parts: list[bytes]) -> list[bytes]:
    """Returns pieces as messages."""
    return [pb.ReadOutputResponse(chunk=part).SerializeToString() for part in parts]


values = st.binary(max_size=200) | st.builds(
    lambda seed, size: (seed * (size // len(seed) + 1))[:size],
    st.binary(min_size=1, max_size=50),
    st.integers(0, 200_000),
)
cuts = st.lists(st.integers(0, 2**20), max_size=12)


@fuzz
@given(data=values, cut=cuts)
async def test_a_value_arrives_however_it_is_cut(pair: Pair, data: bytes, cut: list[int]) -> None:
    """Pieces of any allowed sizes make the value; one piece that is too large, and it is refused."""
    parts = pieces(data, cut)
    if all(len(part) <= protocol.MAX_CHUNK_BYTES for part in parts):
        output = await pair.after("ReadOutput", chunks(parts), lambda agent: agent.read(listed(data)))
        assert output.data == data
    else:
        with pytest.raises(AgentMisbehaved, match="of a size that none may have"):
            await pair.after("ReadOutput", chunks(parts), lambda agent: agent.read(listed(data)))


@fuzz
@given(
    data=values, cut=cuts, shuffle=st.randoms(use_true_random=False), extra=st.lists(st.binary(max_size=9), max_size=2)
)
async def test_a_value_that_was_tampered_with_is_refused(
    pair: Pair, data: bytes, cut: list[int], shuffle: Any, extra: list[bytes]
) -> None:
    """Pieces in another order, missing or added: the value is the listed one or there is none."""
    parts = [*pieces(data, cut), *extra]
    shuffle.shuffle(parts)
    del parts[len(parts) - shuffle.randint(0, 1) :]
    try:
        output = await pair.after("ReadOutput", chunks(parts), lambda agent: agent.read(listed(data)))
    except AgentMisbehaved:
        return
    assert output.data == data


infos = st.builds(
    pb.OutputInfo,
    name=st.text(max_size=4) | st.just("x" * 1025),
    type=st.sampled_from([*OutputType, *OutputType, *OutputType, "", "int"]),
    sensitive=st.booleans(),
    size=st.integers(0, 9) | st.sampled_from([protocol.MAX_TOTAL_BYTES, 2**64 - 1]),
    sha256=st.sampled_from(["a" * 64, "0" * 64, "b" * 64, "A" * 64, "a" * 63]),
)


def is_honest(listing: list[pb.OutputInfo]) -> bool:
    """Tells whether an agent could list this."""
    names = [info.name.encode() for info in listing]
    return (
        names == sorted(set(names))
        and all(len(name) <= protocol.MAX_NAME_BYTES for name in names)
        and all(info.type in set(OutputType) for info in listing)
        and all(info.sha256 == info.sha256.lower() and len(info.sha256) == 64 for info in listing)
        and sum(info.size for info in listing) <= protocol.MAX_TOTAL_BYTES
    )


@fuzz
@given(listing=st.lists(infos, max_size=6), order=st.booleans())
async def test_listings_are_believed_or_refused_as_a_whole(
    *, pair: Pair, listing: list[pb.OutputInfo], order: bool
) -> None:
    """A listing that an honest agent may give comes through as it is, every other one is refused."""
    if order:
        listing = sorted(listing, key=lambda info: info.name.encode())
    reply = pb.ListOutputsResponse(outputs=listing).SerializeToString()
    if is_honest(listing):
        found = await pair.after("ListOutputs", [reply], lambda agent: agent.outputs())
        assert [(one.name, one.type, one.sensitive, one.size, one.sha256) for one in found] == [
            (one.name, one.type, one.sensitive, one.size, one.sha256) for one in listing
        ]
    else:
        with pytest.raises(AgentMisbehaved):
            await pair.after("ListOutputs", [reply], lambda agent: agent.outputs())


async def watched(agent: Agent) -> list[Any]:
    """Returns all states of a watch."""
    return [state async for state in agent.watch(STEPS)]


CALLS: dict[str, Callable[[Agent], Awaitable[Any]]] = {
    "GetInfo": lambda agent: agent.info(),
    "Watch": watched,
    "ListOutputs": lambda agent: agent.outputs(),
    "ReadOutput": lambda agent: agent.read(listed(b"abc")),
    "ReadSource": lambda agent: agent.source(),
    "Acknowledge": lambda agent: agent.acknowledge("digest"),
}


def a_field(number: int, payload: bytes) -> bytes:
    """Returns a field of wire type 2: text, bytes or a message, as the reader likes."""
    return bytes([number << 3 | 2, len(payload)]) + payload


fields = st.recursive(
    st.binary(max_size=12),
    lambda inner: (
        st.lists(st.builds(a_field, st.integers(1, 7), inner), max_size=3)
        .map(b"".join)
        .filter(lambda payload: len(payload) < 120)
    ),
    max_leaves=8,
)


@fuzz
@given(method=st.sampled_from(METHODS), replies=st.lists(st.binary(max_size=60) | fields, min_size=1, max_size=3))
async def test_any_bytes_from_an_agent(pair: Pair, method: str, replies: list[bytes]) -> None:
    """Whatever an agent answers, a call ends soon, with a result or with words that are fit for a status."""
    said = ""
    try:
        await pair.after(method, replies, CALLS[method])
    except AgentError as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) < 500


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_message(pair: Pair, method: str) -> None:
    """What cannot be read at all is misbehaviour too."""
    with pytest.raises(AgentMisbehaved, match="no message of the protocol"):
        await pair.after(method, [b"\xff\xff"], CALLS[method])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, authority: trust.Authority) -> Iterator[AgentProcess]:
    """An agent that holds an output."""
    root = tmp_path_factory.mktemp("fuzzed")
    spec = run_spec(shell("mkdir out; printf canary > out/x"), outputs=[directory("out")], linger_seconds=600)
    agent = AgentProcess(root=root, spec=spec, authority=authority).start()
    yield agent
    agent.kill()


async def answers(channel: grpc.aio.Channel, method: str, request: bytes) -> tuple[list[bytes], grpc.StatusCode]:
    """Returns what comes back for the bytes of a request, and how the call ended."""
    path = f"/{SERVICE.full_name}/{method}"
    raw: Any = channel.unary_stream(path) if method in STREAMING else channel.unary_unary(path)
    call = raw(request)
    replies = []
    async with asyncio.timeout(CALL):
        try:
            if method in STREAMING:
                replies += [reply async for reply in call]
            else:
                replies.append(await call)
        except grpc.aio.AioRpcError:
            pass
        return replies, await call.code()


@fuzz
@given(data=st.data())
async def test_any_bytes_to_an_agent(finished: AgentProcess, authority: trust.Authority, data: st.DataObject) -> None:
    """Whatever it is sent, an agent answers each call soon, stays up, holds on, and gives away nothing unasked."""
    leaf = trust.issue_operator(authority, now())
    credentials = client.channel_credentials(certificate=leaf.certificate, key=leaf.key, roots=authority.roots)
    uid = a_field(1, finished.spec.run_uid.encode())
    messages = st.binary(max_size=60) | fields | fields.map(lambda tail: uid + tail)
    async with finished.connect() as agent:
        await finished.final(agent)
        async with client.open_channel(finished.ip, layout.PORT, finished.spec.run_uid, credentials) as channel:
            for method in METHODS:
                request = data.draw(messages, label=method)
                replies, code = await answers(channel, method, request)
                assert code is not grpc.StatusCode.UNAVAILABLE
                assert not any(b"canary" in reply for reply in replies) or a_field(2, b"x") in request
        assert [(await agent.read(info)).data for info in await agent.outputs()] == [b"canary"]
    assert finished.popen.poll() is None
