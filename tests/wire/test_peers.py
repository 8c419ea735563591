"""Wrong clients: who is not the operator gets nothing from a live agent, and leaves no trace in its log."""

# ruff: noqa: ARG005 - one signature for all makers of identities

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from outhaul_grpc import client, layout
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentStub
from outhaul_operator import agents, trust
from wire import between
from wire.harness import AgentProcess, fresh_address, now, output_command, run_spec, shell
from wire.identities import CLIENT, DAY, NOBODY, OPERATOR, SERVER, issued, self_signed, server_leaf, stranger

Identity = Callable[[trust.Authority, pb.RunSpec], trust.Leaf]
CALL = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(tmp_path_factory: pytest.TempPathFactory, authority: trust.Authority) -> AsyncIterator[AgentProcess]:
    """A live agent whose run has ended, and which holds its outputs for everybody who is not denied."""
    spec = run_spec(shell("true"), outputs=[output_command("printf value", pb.OUTPUT_FORMAT_TEXT, "key")])
    running = AgentProcess(root=tmp_path_factory.mktemp("live") / "agent", spec=spec, authority=authority)
    running.start()
    try:
        async with running.connect() as connected:
            await running.final(connected)
        yield running
    finally:
        running.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def agent(live: AgentProcess) -> AsyncIterator[AgentProcess]:
    """The live agent. After the test it serves the operator as before, and has not said a word about it."""
    before = live.log
    yield live
    async with live.connect() as operator:
        await operator.info()
        (listed,) = await operator.outputs()
        assert (await operator.read(listed)).data == b"value"
    assert live.log == before


REFUSED_AT_THE_DOOR: dict[str, Identity] = {
    "self-signed": lambda authority, spec: self_signed(OPERATOR),
    "other authority": lambda authority, spec: trust.issue_operator(stranger(), now()),
    "this run's own leaf": lambda authority, spec: server_leaf(authority, spec.run_uid),
    "another run's leaf": lambda authority, spec: server_leaf(authority, "other"),
    "expired": lambda authority, spec: trust.issue_operator(authority, now() - 2 * DAY),
    "not yet valid": lambda authority, spec: trust.issue_operator(authority, now() + DAY),
    "operator's name for servers": lambda authority, spec: issued(authority, [SERVER], OPERATOR),
}
REFUSED_BY_NAME: dict[str, Identity] = {
    "another client": lambda authority, spec: issued(authority, [CLIENT], NOBODY),
    "operator and more": lambda authority, spec: issued(authority, [CLIENT], OPERATOR, NOBODY),
    "operator as a host": lambda authority, spec: issued(authority, [CLIENT], x509.DNSName("outhaul.dev"), OPERATOR),
    "operator's name with a tail": lambda authority, spec: issued(
        authority, [CLIENT], x509.UniformResourceIdentifier(layout.OPERATOR_URI + "/")
    ),
}


@pytest.mark.parametrize("identity", REFUSED_AT_THE_DOOR.values(), ids=REFUSED_AT_THE_DOOR.keys())
async def test_a_wrong_certificate_gets_no_connection(
    agent: AgentProcess, authority: trust.Authority, identity: Identity
) -> None:
    """The handshake fails; the caller learns nothing, and the agent stays well."""
    wrong = identity(authority, agent.spec)
    async with agent.connect(identity=wrong) as caller:
        with pytest.raises(agents.AgentUnreachable):
            await caller.info()


@pytest.mark.parametrize("identity", REFUSED_BY_NAME.values(), ids=REFUSED_BY_NAME.keys())
async def test_another_client_of_the_authority_is_denied(
    agent: AgentProcess, authority: trust.Authority, identity: Identity
) -> None:
    """To be a client of the authority is not enough: the only name must be the operator's."""
    wrong = identity(authority, agent.spec)
    async with agent.connect(identity=wrong) as caller:
        with pytest.raises(agents.AgentMisbehaved, match="PERMISSION_DENIED: only the operator may call"):
            await caller.info()


METHODS = {
    "GetInfo": lambda stub: stub.GetInfo(pb.GetInfoRequest(), timeout=CALL),
    "Watch": lambda stub: stub.Watch(pb.WatchRequest(), timeout=CALL),
    "ListOutputs": lambda stub: stub.ListOutputs(pb.ListOutputsRequest(), timeout=CALL),
    "ReadOutput": lambda stub: stub.ReadOutput(pb.ReadOutputRequest(), timeout=CALL),
    "ReadSource": lambda stub: stub.ReadSource(pb.ReadSourceRequest(), timeout=CALL),
    "Acknowledge": lambda stub: stub.Acknowledge(pb.AcknowledgeRequest(), timeout=CALL),
}


@pytest.mark.parametrize("method", [*METHODS, "Check", "health Watch", "unknown"])
async def test_every_method_is_denied_to_others(agent: AgentProcess, authority: trust.Authority, method: str) -> None:
    """No method, the health service's and unknown ones included, answers anybody but the operator."""
    leaf = issued(authority, [CLIENT], NOBODY)
    async with open_channel(agent, leaf, authority.roots) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first_answer(call(channel, method))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def open_channel(agent: AgentProcess, leaf: trust.Leaf, roots: bytes) -> grpc.aio.Channel:
    """Opens a channel to an agent."""
    credentials = client.channel_credentials(certificate=leaf.certificate, key=leaf.key, roots=roots)
    return client.open_channel(agent.ip, layout.PORT, agent.spec.run_uid, credentials)


def call(channel: grpc.aio.Channel, method: str) -> Any:
    """Starts a call of any method of the agent's port."""
    if method in METHODS:
        return METHODS[method](AgentStub(channel))
    health: Any = health_pb2_grpc.HealthStub(channel)
    if method == "Check":
        return health.Check(health_pb2.HealthCheckRequest(), timeout=CALL)
    if method == "health Watch":
        return health.Watch(health_pb2.HealthCheckRequest(), timeout=CALL)
    unknown: Any = channel.unary_unary("/outhaul.agent.v1.Agent/Unknown")
    return unknown(b"", timeout=CALL)


async def first_answer(call: Any) -> Any:
    """Returns the first message of a call of any kind."""
    if isinstance(call, grpc.aio.UnaryStreamCall):
        return await call.read()
    return await call


async def test_the_standard_health_client_is_answered(agent: AgentProcess, authority: trust.Authority) -> None:
    """The operator's health check works with the standard library; unknown services are not found."""
    leaf = trust.issue_operator(authority, now())
    async with open_channel(agent, leaf, authority.roots) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "outhaul.agent.v1.Agent"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=CALL)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="x"), timeout=CALL)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


async def test_an_unknown_method_is_not_implemented(agent: AgentProcess, authority: trust.Authority) -> None:
    """To the operator it says so."""
    leaf = trust.issue_operator(authority, now())
    async with open_channel(agent, leaf, authority.roots) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "unknown")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_no_certificate(agent: AgentProcess, authority: trust.Authority) -> None:
    """A caller without a certificate gets no answer."""
    credentials = grpc.ssl_channel_credentials(authority.roots)
    async with client.open_channel(agent.ip, layout.PORT, agent.spec.run_uid, credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "GetInfo")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_plaintext(agent: AgentProcess) -> None:
    """A caller without TLS gets no answer."""
    address = layout.socket_address(agent.ip, layout.PORT)
    async with grpc.aio.insecure_channel(address, options=client.OPTIONS) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "GetInfo")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_garbage_on_the_port(agent: AgentProcess) -> None:
    """Bytes that are no TLS at all do no harm."""
    reader, writer = await asyncio.open_connection(agent.ip, layout.PORT)
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    async with asyncio.timeout(CALL):
        await reader.read()
    writer.close()


async def test_only_tls_1_3_comes_through(agent: AgentProcess, authority: trust.Authority, tmp_path: Path) -> None:
    """With an older TLS even the operator gets no connection."""
    leaf, name = trust.issue_operator(authority, now()), layout.server_name(agent.spec.run_uid)

    async def dial(newest: ssl.TLSVersion) -> None:
        tls = between.client_tls(leaf, authority.roots, tmp_path, newest)
        async with asyncio.timeout(CALL):
            _, writer = await asyncio.open_connection(agent.ip, layout.PORT, ssl=tls, server_hostname=name)
        writer.transport.abort()

    await dial(ssl.TLSVersion.TLSv1_3)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await dial(ssl.TLSVersion.TLSv1_2)


async def test_callers_that_say_nothing(agent: AgentProcess) -> None:
    """Connections that stay silent, or stop in the middle of their first word, keep nobody else out."""
    writers = [(await asyncio.open_connection(agent.ip, layout.PORT))[1] for _ in range(50)]
    for writer in writers[::2]:
        writer.write(b"\x16\x03\x01\x02\x00\x01")
    async with agent.connect() as operator:
        await operator.info()
    for writer in writers:
        writer.transport.abort()


async def test_a_proxy_with_a_certificate_of_its_own(
    agent: AgentProcess, authority: trust.Authority, tmp_path: Path
) -> None:
    """A proxy that ends the TLS and begins another one is refused by both sides, whoever trusts it."""
    own = stranger()
    back = between.client_tls(trust.issue_operator(own, now()), authority.roots, tmp_path)
    front = between.server_tls(server_leaf(own, agent.spec.run_uid), tmp_path)
    ip, name = fresh_address(), layout.server_name(agent.spec.run_uid)
    async with between.listening(ip, between.relay_to(agent.ip, back, name), front):
        for roots, words in ((authority.roots, "no certificate of this operator's authority"), (own.roots, "answer")):
            identity = trust.issue_operator(authority, now())
            async with agents.connect(ip, run_uid=agent.spec.run_uid, identity=identity, roots=roots) as operator:
                with pytest.raises(agents.AgentUnreachable, match=words):
                    await operator.info()


async def test_a_relay_of_bytes(agent: AgentProcess, authority: trust.Authority) -> None:
    """Something that passes bytes on is no party to the conversation: everything works through it."""
    ip, identity = fresh_address(), trust.issue_operator(authority, now())
    async with (
        between.listening(ip, between.relay_to(agent.ip)),
        agents.connect(ip, run_uid=agent.spec.run_uid, identity=identity, roots=authority.roots) as operator,
    ):
        await operator.info()
        (listed,) = await operator.outputs()
        assert (await operator.read(listed)).data == b"value"


async def test_a_proxy_of_the_environment_is_not_used(agent: AgentProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods are dialled directly, whatever the environment says."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with agent.connect() as operator:
        await operator.info()
