"""Wrong servers: what is not this run's agent is not talked to, and the reason says what it is."""

# ruff: noqa: ARG005 - one signature for all makers of identities

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from outhaul_grpc import layout
from outhaul_grpc import server as wire
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents, trust
from wire import between
from wire.harness import AgentProcess, fresh_address, now, output_command, run_spec, shell
from wire.identities import CLIENT, DAY, OPERATOR, SERVER, issued, run_name, self_signed, server_leaf, stranger

StartAgent = Callable[..., AgentProcess]
Identity = Callable[[trust.Authority, str], trust.Leaf]
UID = "run"
DEADLINE = 2 * agents.CALL_TIMEOUT
"""Seconds in which a call that has a deadline is over, on a slow machine too."""
UNKNOWN = "no certificate of this operator's authority for an agent, or one that is not valid now"
NO_TLS = "does not speak TLS 1.3"


async def refused(ip: str, authority: trust.Authority, words: str) -> None:
    """Calls as the operator, and checks that it gets no answer and says why."""
    identity = trust.issue_operator(authority, now())
    async with (
        asyncio.timeout(DEADLINE),
        agents.connect(ip, run_uid=UID, identity=identity, roots=authority.roots) as agent,
    ):
        with pytest.raises(agents.AgentUnreachable, match=words) as caught:
            await agent.info()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Any:
    """The reason is in the error, and nowhere else: nothing is written, least of all a stack trace."""
    yield
    assert tuple(capfd.readouterr()) == ("", "")
    assert caplog.text == ""


@pytest.fixture
async def impostor(authority: trust.Authority) -> AsyncIterator[Callable[[trust.Leaf], Any]]:
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


IMPOSTORS: dict[str, tuple[Identity, str]] = {
    "another run's agent": (lambda authority, uid: server_leaf(authority, "other"), "the certificate of another run"),
    "the operator's own leaf": (lambda authority, uid: trust.issue_operator(authority, now()), UNKNOWN),
    "the operator's name for servers": (
        lambda authority, uid: issued(authority, [SERVER], OPERATOR),
        "the certificate of another run",
    ),
    "the run's name for clients": (lambda authority, uid: issued(authority, [CLIENT], run_name(uid)), UNKNOWN),
    "other authority, same names": (lambda authority, uid: server_leaf(stranger(), uid), UNKNOWN),
    "self-signed": (lambda authority, uid: self_signed(run_name(uid)), UNKNOWN),
    "expired": (lambda authority, uid: server_leaf(authority, uid, now() - DAY), UNKNOWN),
    "not yet valid": (lambda authority, uid: server_leaf(authority, uid, now() + DAY), UNKNOWN),
}


@pytest.mark.parametrize(("identity", "words"), IMPOSTORS.values(), ids=IMPOSTORS.keys())
async def test_a_server_that_is_not_the_runs_agent(
    authority: trust.Authority, impostor: Callable[[trust.Leaf], Any], identity: Identity, words: str
) -> None:
    """The operator does not say a word to it."""
    await refused(await impostor(identity(authority, UID)), authority, words)


async def test_the_right_leaf_on_the_same_server(
    authority: trust.Authority, impostor: Callable[[trust.Leaf], Any]
) -> None:
    """The impostors' server works as such: with the run's leaf the handshake succeeds."""
    ip = await impostor(server_leaf(authority, UID))
    leaf = trust.issue_operator(authority, now())
    async with agents.connect(ip, run_uid=UID, identity=leaf, roots=authority.roots) as agent:
        with pytest.raises(agents.AgentMisbehaved, match="UNIMPLEMENTED"):
            await agent.info()


@pytest.mark.parametrize(
    ("talk", "words"),
    [
        pytest.param(between.silent, "", id="silent"),
        pytest.param(between.hang_up, "", id="hangs up"),
        pytest.param(between.plain, NO_TLS, id="plaintext"),
        pytest.param(between.babble, NO_TLS, id="nonsense without an end"),
        pytest.param(between.drip, "", id="a byte at a time"),
    ],
)
async def test_a_server_that_is_no_agent_at_all(authority: trust.Authority, talk: between.Talk, words: str) -> None:
    """Whatever it says or does not say, the call is over in its time."""
    ip = fresh_address()
    async with between.listening(ip, talk):
        await refused(ip, authority, f"no answer from the agent: .*{words}")


async def test_grpc_without_tls(authority: trust.Authority) -> None:
    """An agent's methods without TLS are no agent."""
    ip = fresh_address()
    server = grpc.aio.server()
    server.add_insecure_port(layout.socket_address(ip, layout.PORT))
    await server.start()
    await refused(ip, authority, "no answer from the agent")
    await server.stop(None)


async def test_only_tls_1_3_is_spoken(authority: trust.Authority, tmp_path: Path) -> None:
    """Not even the run's own leaf is believed with an older TLS."""
    ip, leaf = fresh_address(), server_leaf(authority, UID)
    spoken: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        spoken.append(writer.get_extra_info("ssl_object").version())
        await between.hang_up(reader, writer)

    for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        async with between.listening(ip, talk, between.server_tls(leaf, tmp_path, newest)):
            await refused(ip, authority, "no answer from the agent")
    assert set(spoken) == {"TLSv1.3"}


async def test_nobody_there(authority: trust.Authority) -> None:
    """An address without a listener is worth another try."""
    await refused(fresh_address(), authority, "Connection refused")


async def test_an_address_that_another_pod_has_now(start_agent: StartAgent, authority: trust.Authority) -> None:
    """The agent at a stale address is not asked for a thing, and the run's own is once it has the address."""
    ip = fresh_address()
    specs = [
        run_spec(shell("true"), run_uid=uid, outputs=[output_command(f"printf {uid}", pb.OUTPUT_FORMAT_TEXT, "key")])
        for uid in ("other", UID)
    ]
    other = start_agent(specs[0], ip=ip)
    async with other.connect() as connected:
        await other.final(connected)
    before = other.log
    await refused(ip, authority, "the certificate of another run")
    assert other.log == before
    other.kill()
    own = start_agent(specs[1], ip=ip)
    async with own.connect() as connected:
        await own.final(connected)
        (listed,) = await connected.outputs()
        assert (await connected.read(listed)).data == UID.encode()
