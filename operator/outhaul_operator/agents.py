"""The operator's end of a run's agent: dial it, watch it, fetch its outputs, let it go.

The task of a run uses it, and nothing else in the operator knows gRPC. The agent runs beside other people's
commands, so it is taken for hostile: every call has a deadline, everything is counted and measured before it
is kept, digests are checked, and what it says is never put into an error as it came.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio
from outhaul_api.vocabulary import OutputType
from outhaul_grpc import client, protocol
from outhaul_grpc.layout import PORT, PROTOCOL_VERSIONS
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentStub

from outhaul_operator.agentstates import RunState, from_wire, printable
from outhaul_operator.trust import Leaf

if TYPE_CHECKING:  # it is in the stubs alone
    from outhaul_grpc.v1.agent_pb2_grpc import AgentAsyncStub

CALL_TIMEOUT = 10.0
"""Seconds that a short call may take, connecting included."""
IDLE_TIMEOUT = 60.0
"""Seconds without any word on a watch, in which an agent has three heartbeats."""
READ_BYTES_PER_SECOND = 256 * 1024
"""The slowest transfer of a value that is waited for."""
WATCH_BURST = 200
"""States that a watch may bring without a pause: more than an honest run has changes."""
WATCH_PAUSE = 1.0
"""Seconds between two states after that; the stream pushes back on the agent meanwhile."""
MAX_VERSIONS = 64

_Reply = TypeVar("_Reply")
_SHA256 = re.compile(r"[0-9a-f]{64}")


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


@dataclass(frozen=True)
class OutputInfo:
    """One output without its value, as an agent lists it."""

    name: str
    type: OutputType
    sensitive: bool
    size: int
    """Of the value, in bytes."""
    sha256: str
    """Of the value, in hex."""


@dataclass(frozen=True)
class Output:
    """One output."""

    name: str
    type: OutputType
    sensitive: bool
    data: bytes = field(repr=False)
    """The value: raw for strings and bytes, compact JSON for the other types."""


@dataclass(frozen=True)
class Source:
    """The copy of what a run was made from."""

    data: bytes = field(repr=False)
    """Packed by the agent, for agents; empty where there is none."""
    too_large: bool
    """Whether there is none since it would be too large."""


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
        try:
            reply = _read(await self._stub.GetInfo(pb.GetInfoRequest(), timeout=CALL_TIMEOUT))
        except grpc.aio.AioRpcError as error:
            raise _verdict(error) from None
        if reply.run_uid != self._run_uid:
            raise AgentMisbehaved("the agent says that it is another run's")
        version = printable(reply.agent_version, 64)
        common = protocol.common_versions(reply.protocol_versions)
        if not common:
            theirs = ", ".join(map(str, sorted(reply.protocol_versions)[:MAX_VERSIONS])) or "none"
            ours = ", ".join(map(str, PROTOCOL_VERSIONS))
            raise ProtocolMismatch(
                f"the agent (version {version}) speaks protocol {theirs}, this operator speaks {ours}: "
                "use an agent image of the operator's version"
            )
        return AgentInfo(version, common[0])

    async def watch(self) -> AsyncIterator[RunState]:
        """Yields the state now and after each change; the last one is final.

        Raises:
            AgentUnreachable: the connection is lost, or nothing was heard for too long.
        """
        call = self._stub.Watch(pb.WatchRequest(run_uid=self._run_uid))
        last: RunState | None = None
        try:
            for count in range(2**31):
                state = await self._next_state(call)
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
        try:
            reply = _read(await asyncio.wait_for(call.read(), IDLE_TIMEOUT))
        except grpc.aio.AioRpcError as error:
            raise _verdict(error) from None
        except TimeoutError:
            raise AgentUnreachable(f"the agent has said nothing for {IDLE_TIMEOUT:g} seconds") from None
        if not isinstance(reply, pb.WatchResponse):
            raise AgentUnreachable("the agent ended the stream of states before the run has ended")
        try:
            return from_wire(reply.state)
        except ValueError as error:
            raise AgentMisbehaved(f"the agent broke the protocol: {error}") from None

    async def outputs(self) -> list[OutputInfo]:
        """Returns all outputs that the agent holds, sorted by the UTF-8 bytes of their names."""
        found: list[OutputInfo] = []
        total = 0
        token = ""
        while True:
            request = pb.ListOutputsRequest(run_uid=self._run_uid, page_token=token)
            try:
                page = _read(await self._stub.ListOutputs(request, timeout=CALL_TIMEOUT))
            except grpc.aio.AioRpcError as error:
                raise _verdict(error) from None
            for one in page.outputs:
                info = _checked_info(one)
                if found and info.name.encode() <= found[-1].name.encode():
                    raise AgentMisbehaved("the agent lists outputs twice or out of order")
                total += info.size
                found.append(info)
                if len(found) > protocol.MAX_OUTPUTS or total > protocol.MAX_TOTAL_BYTES:
                    raise AgentMisbehaved("the agent lists more outputs than an agent may hold")
            token = page.next_page_token
            if not token:
                return found
            if not page.outputs:
                raise AgentMisbehaved("the agent lists an empty page that is not the last")

    async def read(self, info: OutputInfo) -> Output:
        """Returns one of the listed outputs with its value."""
        request = pb.ReadOutputRequest(run_uid=self._run_uid, name=info.name)
        call = self._stub.ReadOutput(request, timeout=CALL_TIMEOUT + info.size / READ_BYTES_PER_SECOND)
        chunks = (_read(reply).chunk async for reply in call)
        try:
            data = await _assembled(chunks, info.size, info.sha256)
        except grpc.aio.AioRpcError as error:
            raise _verdict(error) from None
        finally:
            call.cancel()
        return Output(info.name, info.type, info.sensitive, data)

    async def source(self) -> Source | None:
        """Returns the copy of what the run is made from; None from an agent that is too old to have one."""
        request = pb.ReadSourceRequest(run_uid=self._run_uid)
        limit = protocol.MAX_SOURCE_BYTES
        call = self._stub.ReadSource(request, timeout=CALL_TIMEOUT + limit / READ_BYTES_PER_SECOND)
        messages = (_read(reply) async for reply in call)
        try:
            first = await anext(messages, pb.ReadSourceResponse())
            info = first.info
            if not first.HasField("info") or info.size > limit or (info.size and info.too_large):
                raise AgentMisbehaved("the agent does not say what there is of its source, or more than it may hold")
            chunks = (message.chunk async for message in messages)
            return Source(await _assembled(chunks, info.size, info.sha256), info.too_large)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise _verdict(error) from None
        finally:
            call.cancel()

    async def acknowledge(self, digest: str) -> None:
        """Tells the agent that everything is stored; it ends. Safe to repeat.

        Args:
            digest: `outputs_digest` of what was stored.
        """
        request = pb.AcknowledgeRequest(run_uid=self._run_uid, outputs_digest=digest)
        try:
            _read(await self._stub.Acknowledge(request, timeout=CALL_TIMEOUT))
        except grpc.aio.AioRpcError as error:
            raise _verdict(error) from None


def outputs_digest(infos: list[OutputInfo]) -> str:
    """Returns the digest that acknowledges these outputs."""
    return protocol.outputs_digest((info.name, bytes.fromhex(info.sha256)) for info in infos)


async def _assembled(chunks: AsyncIterator[bytes], size: int, sha256: str) -> bytes:
    """Returns what an agent sends in pieces, if it is what it has said before."""
    data = bytearray()
    async for chunk in chunks:
        if not 0 < len(chunk) <= protocol.MAX_CHUNK_BYTES:
            raise AgentMisbehaved("the agent sends pieces of a size that none may have")
        if len(data) + len(chunk) > size:
            raise AgentMisbehaved("the agent sends more than it has listed")
        data += chunk
    if len(data) != size:
        raise AgentMisbehaved("the agent sends less than it has listed")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise AgentMisbehaved("the agent sends what has not the digest that it has listed")
    return bytes(data)


def _read(reply: _Reply | None) -> _Reply:
    # What grpcio gives, whatever its types say, for bytes that are no message of the method.
    if reply is None:
        raise AgentMisbehaved("the agent sends what is no message of the protocol")
    return reply


def _checked_info(info: pb.OutputInfo) -> OutputInfo:
    if len(info.name.encode()) > protocol.MAX_NAME_BYTES:
        raise AgentMisbehaved("the agent lists an output with a name that is too long")
    if info.type not in OutputType.__members__.values():
        raise AgentMisbehaved("the agent lists an output of a type that nobody knows")
    if not _SHA256.fullmatch(info.sha256):
        raise AgentMisbehaved("the agent lists an output without a digest")
    return OutputInfo(info.name, OutputType(info.type), info.sensitive, info.size, info.sha256)


_STRANGERS = {
    "Hostname Verification Check failed": "what answers there has the certificate of another run",
    "CERTIFICATE_VERIFY_FAILED": "what answers there has no certificate of this operator's authority for an agent, or "
    "one that is not valid now",
    "TSI_PROTOCOL_FAILURE": "what answers there does not speak TLS 1.3",
}
"""What gRPC says of a peer that is not the agent, and what that means."""


def _verdict(error: grpc.aio.AioRpcError) -> AgentError:
    code, details = error.code(), error.details() or ""
    words = next((words for sign, words in _STRANGERS.items() if sign in details), "")
    words = words or printable(details.rpartition("last error: ")[2], 200)
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}:
        return AgentUnreachable(f"no answer from the agent: {words}")
    return AgentMisbehaved(f"the agent answered {code.name}: {words}")
