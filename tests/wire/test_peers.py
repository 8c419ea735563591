"""Wrong peers: who is not the operator gets nothing, and what is not this run's agent is not talked to."""

# ruff: noqa: ARG005 - one signature for all makers of identities

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from outhaul_grpc import client, layout
from outhaul_grpc import server as wire
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentStub
from outhaul_operator import agents, trust
from wire.harness import AgentProcess, fresh_address, now, run_spec, shell

StartAgent = Callable[..., AgentProcess]
Identity = Callable[[trust.Authority, pb.RunSpec], trust.Leaf]
DAY = dt.timedelta(days=1)
CALL = 10.0


@pytest.fixture
async def agent(start_agent: StartAgent) -> AgentProcess:
    """A live agent whose run has ended."""
    running = start_agent(run_spec(shell("true")))
    async with running.connect() as connected:
        await running.final(connected)
    return running


def server_leaf(authority: trust.Authority, run_uid: str, at: dt.datetime | None = None) -> trust.Leaf:
    """Returns a run's leaf."""
    return trust.issue_server(
        authority,
        namespace="tenant",
        name="other",
        run_uid=run_uid,
        timeout=dt.timedelta(hours=1),
        linger=dt.timedelta(0),
        now=at or now(),
    )


def self_signed(*names: x509.GeneralName) -> trust.Leaf:
    """Returns a leaf that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now() - DAY)
        .not_valid_after(now() + DAY)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return trust.Leaf(certificate.public_bytes(serialization.Encoding.PEM), pem, now() + DAY)


def issued(authority: trust.Authority, usages: list[Any], *names: x509.GeneralName) -> trust.Leaf:
    """Returns a leaf of the authority that `trust` would never issue."""
    leaf = self_signed(*names)
    key = serialization.load_pem_private_key(leaf.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(2)
        .not_valid_before(now() - DAY)
        .not_valid_after(now() + DAY)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return trust.Leaf(certificate.public_bytes(serialization.Encoding.PEM), leaf.key, leaf.not_after)


OPERATOR = x509.UniformResourceIdentifier(layout.OPERATOR_URI)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
NOBODY = x509.UniformResourceIdentifier("spiffe://outhaul.dev/nobody")

REFUSED_AT_THE_DOOR: dict[str, Identity] = {
    "self-signed": lambda authority, spec: self_signed(OPERATOR),
    "other authority": lambda authority, spec: trust.issue_operator(trust.create_authority(now()), now()),
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
    async with agent.connect(identity=wrong) as stranger:
        with pytest.raises(agents.AgentUnreachable):
            await stranger.info()
    await assert_well(agent)


@pytest.mark.parametrize("identity", REFUSED_BY_NAME.values(), ids=REFUSED_BY_NAME.keys())
async def test_another_client_of_the_authority_is_denied(
    agent: AgentProcess, authority: trust.Authority, identity: Identity
) -> None:
    """To be a client of the authority is not enough: the only name must be the operator's."""
    wrong = identity(authority, agent.spec)
    async with agent.connect(identity=wrong) as stranger:
        with pytest.raises(agents.AgentMisbehaved, match="PERMISSION_DENIED: only the operator may call"):
            await stranger.info()
    await assert_well(agent)


async def assert_well(agent: AgentProcess) -> None:
    """Checks that the agent still serves the operator, and has complained to nobody."""
    async with agent.connect() as operator:
        await operator.info()
    assert "Traceback" not in agent.log


METHODS = {
    "GetInfo": lambda stub: stub.GetInfo(pb.GetInfoRequest(), timeout=CALL),
    "Watch": lambda stub: stub.Watch(pb.WatchRequest(), timeout=CALL),
    "ListOutputs": lambda stub: stub.ListOutputs(pb.ListOutputsRequest(), timeout=CALL),
    "ReadOutput": lambda stub: stub.ReadOutput(pb.ReadOutputRequest(), timeout=CALL),
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
    await assert_well(agent)


async def test_plaintext(agent: AgentProcess) -> None:
    """A caller without TLS gets no answer."""
    address = layout.socket_address(agent.ip, layout.PORT)
    async with grpc.aio.insecure_channel(address, options=client.OPTIONS) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "GetInfo")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await assert_well(agent)


async def test_garbage_on_the_port(agent: AgentProcess) -> None:
    """Bytes that are no TLS at all do no harm."""
    reader, writer = await asyncio.open_connection(agent.ip, layout.PORT)
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    async with asyncio.timeout(CALL):
        await reader.read()
    writer.close()
    await assert_well(agent)


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Returns a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def h2_get_info(name: str) -> bytes:
    """Returns what a client sends to call GetInfo, in the simplest HTTP/2 there is."""
    headers = {
        ":method": "POST",
        ":scheme": "https",
        ":path": "/outhaul.agent.v1.Agent/GetInfo",
        ":authority": name,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(
        b"\0" + bytes([len(key)]) + key.encode() + bytes([len(value)]) + value.encode()
        for key, value in headers.items()
    )
    settings, end_headers, end_stream = h2_frame(4, 0, 0, b""), 4, 1
    call = h2_frame(1, end_headers, 1, block) + h2_frame(0, end_stream, 1, bytes(5))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + call


@pytest.mark.parametrize(
    ("version", "answer"),
    [(ssl.TLSVersion.TLSv1_2, b"grpc-status\x017"), (ssl.TLSVersion.TLSv1_3, b"grpc-status\x010")],
)
async def test_only_tls_1_3_is_answered(
    agent: AgentProcess, authority: trust.Authority, tmp_path: Path, version: ssl.TLSVersion, answer: bytes
) -> None:
    """With an older TLS even the operator is denied."""
    leaf = trust.issue_operator(authority, now())
    file = tmp_path / "operator.pem"
    file.write_bytes(leaf.certificate + leaf.key)
    context = ssl.create_default_context(cadata=authority.roots.decode())
    context.load_cert_chain(file)
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    name = layout.server_name(agent.spec.run_uid)
    reader, writer = await asyncio.open_connection(agent.ip, layout.PORT, ssl=context, server_hostname=name)
    writer.write(h2_get_info(name))
    received = b""
    async with asyncio.timeout(CALL):
        while answer not in received:
            chunk = await reader.read(4096)
            assert chunk, received
            received += chunk
    writer.close()


async def test_the_agent_of_another_run(agent: AgentProcess) -> None:
    """An address that now belongs to another run's agent is not talked to."""
    async with agent.connect(run_uid="another") as stranger:
        with pytest.raises(agents.AgentUnreachable):
            await stranger.info()


async def test_roots_of_another_operator(agent: AgentProcess) -> None:
    """An operator does not talk to an agent that its own authority has not issued."""
    async with agent.connect(roots=trust.create_authority(now()).roots) as stranger:
        with pytest.raises(agents.AgentUnreachable):
            await stranger.info()


@pytest.fixture
async def impostor(
    authority: trust.Authority,
) -> AsyncIterator[Callable[[trust.Leaf], Any]]:
    """Serves with any leaf, and returns the address."""
    servers: list[grpc.aio.Server] = []

    async def serve(leaf: trust.Leaf) -> str:
        ip = fresh_address()
        server = wire.create_server()
        credentials = wire.server_credentials(certificate=leaf.certificate, key=leaf.key, roots=authority.roots)
        server.add_secure_port(layout.socket_address(ip, layout.PORT), credentials)
        await server.start()
        servers.append(server)
        return ip

    yield serve
    for server in servers:
        await server.stop(None)


IMPOSTORS: dict[str, Identity] = {
    "another run's agent": lambda authority, spec: server_leaf(authority, "other"),
    "the operator's own leaf": lambda authority, spec: trust.issue_operator(authority, now()),
    "other authority, same names": lambda authority, spec: server_leaf(trust.create_authority(now()), spec.run_uid),
    "self-signed": lambda authority, spec: self_signed(x509.DNSName(layout.server_name(spec.run_uid))),
    "expired": lambda authority, spec: server_leaf(authority, spec.run_uid, now() - DAY),
    "not yet valid": lambda authority, spec: server_leaf(authority, spec.run_uid, now() + DAY),
    "the run's name for clients": lambda authority, spec: issued(
        authority, [CLIENT], x509.DNSName(layout.server_name(spec.run_uid))
    ),
}


@pytest.mark.parametrize("identity", IMPOSTORS.values(), ids=IMPOSTORS.keys())
async def test_a_server_that_is_not_the_runs_agent(
    authority: trust.Authority, impostor: Callable[[trust.Leaf], Any], identity: Identity
) -> None:
    """The operator does not say a word to it."""
    spec = run_spec()
    ip = await impostor(identity(authority, spec))
    leaf = trust.issue_operator(authority, now())
    async with agents.connect(ip, run_uid=spec.run_uid, identity=leaf, roots=authority.roots) as agent:
        with pytest.raises(agents.AgentUnreachable):
            await agent.info()


async def test_the_right_leaf_on_the_same_server(
    authority: trust.Authority, impostor: Callable[[trust.Leaf], Any]
) -> None:
    """The impostors' server works as such: with the run's leaf the handshake succeeds."""
    spec = run_spec()
    ip = await impostor(server_leaf(authority, spec.run_uid))
    leaf = trust.issue_operator(authority, now())
    async with agents.connect(ip, run_uid=spec.run_uid, identity=leaf, roots=authority.roots) as agent:
        with pytest.raises(agents.AgentMisbehaved, match="UNIMPLEMENTED"):
            await agent.info()


async def test_nobody_there() -> None:
    """An address without a listener is worth another try."""
    authority = trust.create_authority(now())
    leaf = trust.issue_operator(authority, now())
    async with agents.connect(fresh_address(), run_uid="x", identity=leaf, roots=authority.roots) as agent:
        with pytest.raises(agents.AgentUnreachable):
            await agent.info()


async def test_a_proxy_of_the_environment_is_not_used(agent: AgentProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods are dialled directly, whatever the environment says."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    await assert_well(agent)
