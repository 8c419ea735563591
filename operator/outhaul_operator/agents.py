"""The operator's end of a run's agent: dial it, watch it, fetch its outputs, let it go.

The task of a run uses it, and nothing else in the operator knows gRPC. The agent runs beside other people's
commands, so it is taken for hostile: every call has a deadline, everything is counted and measured before it
is kept, digests are checked, and what it says is never put into an error as it came.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio
from outhaul_grpc import client, protocol
from outhaul_grpc.layout import PORT, PROTOCOL_VERSIONS
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentStub

from outhaul_operator.agentoutputs import (
    Listing,
    Output,
    OutputInfo,
    Source,
    arrived_output,
    arriving_output,
    arriving_source,
)
from outhaul_operator.agentstates import RunState, from_wire, printable
from outhaul_operator.trust import Leaf

if TYPE_CHECKING:  # it is in the stubs alone
    from outhaul_grpc.v1.agent_pb2_grpc import AgentAsyncStub

CALL_TIMEOUT = 10.0
"""Seconds that a short call may take, connecting included."""
IDLE_TIMEOUT = 60.0
"""Seconds without any word on a watch, in which an agent has three heartbeats."""
READ_BYTES_PER_SECOND = 256 * 1024
"""The slowest transfer of values that is waited for."""
READS_PER_SECOND = 50
"""The fewest values in a second that are waited for."""
FETCH_TIMEOUT = 60.0
"""Seconds that fetching the outputs may take beside that."""
WATCH_BURST = 200
"""States that a watch may bring without a pause: more than an honest run has changes."""
WATCH_PAUSE = 1.0
"""Seconds between two states after that; the stream pushes back on the agent meanwhile."""
MAX_VERSIONS = 16
"""Protocol versions that an agent may speak."""

_Reply = TypeVar("_Reply")


class AgentError(Exception):
    """A call to an agent has failed; the message is fit for people and for an object's status."""


class AgentUnreachable(AgentError):  # noqa: N818 - it is what happened
    """No answer: the agent is not up yet, or the connection is lost. Worth another try while its pod runs."""


class ProtocolMismatch(AgentError):  # noqa: N818 - it is what happened
    """Agent and operator have no protocol version in common."""


class AgentMisbehaved(AgentError):  # noqa: N818 - it is what happened
    """The agent broke the protocol. Nothing that it says is worth anything."""


@dataclass(frozen=True)
class AgentInfo:
    """Who answered."""

    agent_version: str
    protocol_version: int
    """The newest one that both sides speak."""


@asynccontextmanager
async def connect(ip: str, *, run_uid: str, identity: Leaf, roots: bytes, port: int = PORT) -> AsyncIterator["Agent"]:
    """Opens a channel to the agent of one run, and closes it in the end. The first call connects.

    Args:
        ip: the pod's address, IPv4 or IPv6.
        run_uid: the AgentAction's uid; an agent that cannot prove to be this run's is not talked to.
        identity: the operator's own leaf.
        roots: the roots (PEM) that the agent's certificate must come from.
        port: the agent's port.
    """
    credentials = client.channel_credentials(certificate=identity.certificate, key=identity.key, roots=roots)
    async with client.open_channel(ip, port, run_uid, credentials) as channel:
        yield Agent(AgentStub(channel), run_uid)


class Agent:
    """The agent of one run. Each method raises `AgentError` and none outlives its deadline."""

    def __init__(self, stub: "AgentAsyncStub", run_uid: str) -> None:
        self._stub = stub
        self._run_uid = run_uid

    async def info(self) -> AgentInfo:
        """Returns who answers, once it is clear that both sides can talk. Call it first.

        Raises:
            ProtocolMismatch: no version in common; the message names those of both sides.
        """
        with _verdicts():
            reply = _read(await self._stub.GetInfo(pb.GetInfoRequest(), timeout=CALL_TIMEOUT))
        if reply.run_uid != self._run_uid:
            raise AgentMisbehaved("the agent says that it is another run's")
        if len(reply.protocol_versions) > MAX_VERSIONS:
            raise AgentMisbehaved(f"the agent speaks more than {MAX_VERSIONS} versions of the protocol")
        version = printable(reply.agent_version, 64) or "unknown"
        common = protocol.common_versions(reply.protocol_versions)
        if not common:
            theirs = ", ".join(map(str, sorted(reply.protocol_versions))) or "none"
            ours = ", ".join(map(str, PROTOCOL_VERSIONS))
            raise ProtocolMismatch(
                f"the agent (version {version}) speaks protocol {theirs}, this operator speaks {ours}: "
                "use an agent image of the operator's version"
            )
        return AgentInfo(version, common[0])

    async def watch(self, steps: Collection[str]) -> AsyncIterator[RunState]:
        """Yields the state now and after each change; the last one is final.

        Args:
            steps: the names of the run's commands.

        Raises:
            AgentUnreachable: the connection is lost, or nothing was heard for too long.
        """
        call = self._stub.Watch(pb.WatchRequest(run_uid=self._run_uid))
        last: RunState | None = None
        try:
            for count in range(2**31):
                state = await self._next_state(call)
                if not state.is_of(steps):
                    raise AgentMisbehaved("the agent reports steps that are not the run's, or not in their order")
                if state != last:
                    yield state
                if state.is_final:
                    return
                last = state
                if count > WATCH_BURST:
                    await asyncio.sleep(WATCH_PAUSE)
        finally:
            call.cancel()

    async def _next_state(self, call: grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.WatchResponse]) -> RunState:
        with _verdicts():
            try:
                reply = _read(await asyncio.wait_for(call.read(), IDLE_TIMEOUT))
            except TimeoutError:
                raise AgentUnreachable(f"the agent has said nothing for {IDLE_TIMEOUT:g} seconds") from None
            if not isinstance(reply, pb.WatchResponse):
                raise AgentUnreachable("the agent ended the stream of states before the run has ended")
            return from_wire(reply.state)

    async def fetch(self, announced: RunState) -> tuple[list[OutputInfo], list[Output]]:
        """Returns all outputs, which are as many and as large as the run's final state has announced.

        Raises:
            AgentUnreachable: the connection is lost, or it takes too long.
        """
        patience = fetch_seconds(announced)
        try:
            async with asyncio.timeout(patience):
                infos = await self.outputs(announced.output_count, announced.output_bytes)
                if (len(infos), sum(info.size for info in infos)) != (announced.output_count, announced.output_bytes):
                    raise AgentMisbehaved("the agent lists fewer outputs than it has announced")
                return infos, [await self.read(info) for info in infos]
        except TimeoutError:
            raise AgentUnreachable(f"the agent has not handed over its outputs in {patience:.0f} seconds") from None

    async def outputs(
        self, most: int = protocol.MAX_OUTPUTS, most_bytes: int = protocol.MAX_TOTAL_BYTES
    ) -> list[OutputInfo]:
        """Returns what the agent lists, sorted by the UTF-8 bytes of the outputs' names.

        Args:
            most: how many it may list.
            most_bytes: how many bytes they may have together.
        """
        listing = Listing(most, most_bytes)
        token = ""
        while True:
            request = pb.ListOutputsRequest(run_uid=self._run_uid, page_token=token)
            with _verdicts():
                page = _read(await self._stub.ListOutputs(request, timeout=CALL_TIMEOUT))
                listing.add(page.outputs)
            token = page.next_page_token
            if not token:
                return listing.found
            if not page.outputs:
                raise AgentMisbehaved("the agent lists an empty page that is not the last")

    async def read(self, info: OutputInfo) -> Output:
        """Returns one of the listed outputs with its value."""
        request = pb.ReadOutputRequest(run_uid=self._run_uid, name=info.name)
        call = self._stub.ReadOutput(request, timeout=CALL_TIMEOUT + info.size / READ_BYTES_PER_SECOND)
        arriving = arriving_output(info)
        try:
            with _verdicts():
                async for reply in call:
                    arriving.add(_read(reply).chunk)
                return arrived_output(info, arriving.finish())
        finally:
            call.cancel()

    async def source(self) -> Source | None:
        """Returns the copy of what the run is made from; None from an agent that is too old to have one."""
        request = pb.ReadSourceRequest(run_uid=self._run_uid)
        call = self._stub.ReadSource(request, timeout=CALL_TIMEOUT + protocol.MAX_SOURCE_BYTES / READ_BYTES_PER_SECOND)
        messages = (_read(reply) async for reply in call)
        try:
            with _verdicts():
                try:
                    first = await anext(messages, pb.ReadSourceResponse())
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        return None
                    raise
                arriving = arriving_source(first)
                async for message in messages:
                    arriving.add(message.chunk)
                return Source(arriving.finish(), first.info.too_large)
        finally:
            call.cancel()

    async def acknowledge(self, digest: str) -> None:
        """Tells the agent that everything is stored; it ends. Safe to repeat.

        Args:
            digest: `outputs_digest` of what was stored.
        """
        request = pb.AcknowledgeRequest(run_uid=self._run_uid, outputs_digest=digest)
        with _verdicts():
            _read(await self._stub.Acknowledge(request, timeout=CALL_TIMEOUT))


def outputs_digest(infos: list[OutputInfo]) -> str:
    """Returns the digest that acknowledges these outputs."""
    return protocol.outputs_digest((info.name, bytes.fromhex(info.sha256)) for info in infos)


def fetch_seconds(announced: RunState) -> float:
    """Returns how long the outputs of a run may take to come, all together."""
    return FETCH_TIMEOUT + announced.output_bytes / READ_BYTES_PER_SECOND + announced.output_count / READS_PER_SECOND


def _read(reply: _Reply | None) -> _Reply:
    # What grpcio gives, whatever its types say, for bytes that are no message of the method.
    if reply is None:
        raise AgentMisbehaved("the agent sends what is no message of the protocol")
    return reply


_STRANGERS = {
    "Hostname Verification Check failed": "what answers there has the certificate of another run",
    "CERTIFICATE_VERIFY_FAILED": "what answers there has no certificate of this operator's authority for an agent, or "
    "one that is not valid now",
    "TSI_PROTOCOL_FAILURE": "what answers there does not speak TLS 1.3",
}
"""What gRPC says of a peer that is not the agent, and what that means."""


@contextmanager
def _verdicts() -> Iterator[None]:
    """Turns what goes wrong in a call, and what no honest agent says, into an `AgentError`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _verdict(error) from None
    except ValueError as error:
        raise AgentMisbehaved(f"the agent broke the protocol: {error}") from None


def _verdict(error: grpc.aio.AioRpcError) -> AgentError:
    code, details = error.code(), error.details() or ""
    words = next((words for sign, words in _STRANGERS.items() if sign in details), "")
    words = words or printable(details.rpartition("last error: ")[2], 200)
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}:
        return AgentUnreachable(f"no answer from the agent: {words}")
    return AgentMisbehaved(f"the agent answered {code.name}: {words}")
