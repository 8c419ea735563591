"""What the agent serves: the run's state, its outputs, its source, and the standard health service. `runs` owns it.

The wiring in `outhaul_grpc.server` has already refused everybody but the operator.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
from outhaul_grpc import protocol
from outhaul_grpc import server as wire
from outhaul_grpc.layout import PROTOCOL_VERSIONS, socket_address
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentServicer, add_AgentServicer_to_server

from outhaul_agent import __version__
from outhaul_agent.health import Health
from outhaul_agent.outputs import Output
from outhaul_agent.reasons import Reason, RunError
from outhaul_agent.spec import Material
from outhaul_agent.state import FINAL, Progress

_STOP_GRACE = 2.0
"""Seconds for calls that are being answered when the server stops."""


class AgentService(AgentServicer):
    """The methods of the contract. All of them may be repeated."""

    def __init__(self, run_uid: str, progress: Progress) -> None:
        self._run_uid = run_uid
        self._progress = progress
        self._outputs: dict[str, Output] = {}
        self._infos: list[pb.OutputInfo] = []
        self._digest = protocol.outputs_digest([])
        self._source: bytes | None = b""
        self.acknowledged = asyncio.Event()
        """Set once the operator has stored everything."""

    def hold(self, outputs: Sequence[Output]) -> None:
        """Takes the outputs to serve, sorted by the UTF-8 bytes of their names."""
        self._outputs = {output.name: output for output in outputs}
        self._infos = [_info(output) for output in outputs]
        digests = ((info.name, bytes.fromhex(info.sha256)) for info in self._infos)
        self._digest = protocol.outputs_digest(digests)

    @property
    def holds_outputs(self) -> bool:
        """Whether there is any."""
        return bool(self._outputs)

    def hold_source(self, source: bytes | None) -> None:
        """Takes the copy of what the run is made from; None: it is too large, empty: there is none."""
        self._source = source

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:  # noqa: N802
        """Says which run this is."""
        del request, context
        return pb.GetInfoResponse(
            run_uid=self._run_uid,
            agent_version=__version__,
            protocol_versions=PROTOCOL_VERSIONS,
            phase=self._progress.phase,
        )

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        """Streams the state until it is final."""
        await self._check_run(request.run_uid, context)
        while True:
            changed = self._progress.changed
            state = self._progress.snapshot()
            yield pb.WatchResponse(state=state)
            if state.phase in FINAL:
                return
            await _wait(changed, protocol.WATCH_HEARTBEAT)

    async def ListOutputs(  # noqa: N802
        self, request: pb.ListOutputsRequest, context: Any
    ) -> pb.ListOutputsResponse:
        """Lists the outputs that are held; a page's token is the index of its first one."""
        await self._check_final(request.run_uid, context)
        token = request.page_token or "0"
        if not token.isascii() or not token.isdecimal() or int(token[:9]) > len(self._infos):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no page has this token")
        end = int(token) + protocol.MAX_PAGE
        return pb.ListOutputsResponse(
            outputs=self._infos[int(token) : end],
            next_page_token=str(end) if end < len(self._infos) else "",
        )

    async def ReadOutput(  # noqa: N802
        self, request: pb.ReadOutputRequest, context: Any
    ) -> AsyncIterator[pb.ReadOutputResponse]:
        """Streams one value."""
        await self._check_final(request.run_uid, context)
        output = self._outputs.get(request.name)
        if output is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the run has no output of this name")
            return
        for start in range(0, len(output.data), protocol.MAX_CHUNK_BYTES):
            yield pb.ReadOutputResponse(chunk=output.data[start : start + protocol.MAX_CHUNK_BYTES])

    async def ReadSource(  # noqa: N802
        self, request: pb.ReadSourceRequest, context: Any
    ) -> AsyncIterator[pb.ReadSourceResponse]:
        """Streams the copy of what the run is made from, also before the end, which the pod may not live to see."""
        await self._check_run(request.run_uid, context)
        if self._progress.phase == pb.PHASE_PENDING:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the run is still being prepared")
        data = self._source or b""
        info = pb.SourceInfo(size=len(data), sha256=hashlib.sha256(data).hexdigest(), too_large=self._source is None)
        yield pb.ReadSourceResponse(info=info)
        for start in range(0, len(data), protocol.MAX_CHUNK_BYTES):
            yield pb.ReadSourceResponse(chunk=data[start : start + protocol.MAX_CHUNK_BYTES])

    async def Acknowledge(  # noqa: N802
        self, request: pb.AcknowledgeRequest, context: Any
    ) -> pb.AcknowledgeResponse:
        """Lets the agent end, if what was stored is what is held."""
        await self._check_final(request.run_uid, context)
        if request.outputs_digest != self._digest:
            message = "the digest is not that of the outputs that are held"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        if not self.acknowledged.is_set():
            self._progress.acknowledge()
            self.acknowledged.set()
        return pb.AcknowledgeResponse()

    async def _check_run(self, run_uid: str, context: Any) -> None:
        if run_uid != self._run_uid:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is the agent of another run")

    async def _check_final(self, run_uid: str, context: Any) -> None:
        await self._check_run(run_uid, context)
        if self._progress.phase not in FINAL:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the run has not ended yet")


class Server:
    """The agent's port, open from `start` to `stop`."""

    def __init__(self, service: AgentService) -> None:
        self._server = wire.create_server()
        self._health = Health()
        add_AgentServicer_to_server(service, self._server)
        self._server.add_generic_rpc_handlers([self._health.handler()])

    async def start(self, ip: str, port: int, material: Material) -> None:
        """Opens the port.

        Raises:
            RunError: the port or the TLS files cannot be used.
        """
        credentials = wire.server_credentials(certificate=material.certificate, key=material.key, roots=material.roots)
        address = socket_address(ip, port)
        try:
            self._server.add_secure_port(address, credentials)
            await self._server.start()
        except RuntimeError:
            message = f"the agent cannot serve on {address}: the port is taken, or the TLS files do not fit"
            raise RunError(Reason.RUN_FAILED, message) from None

    async def stop(self) -> None:
        """Closes the port once the calls in flight are answered, or after a moment."""
        self._health.shut_down()
        await self._server.stop(_STOP_GRACE)


def _info(output: Output) -> pb.OutputInfo:
    return pb.OutputInfo(
        name=output.name,
        type=output.type,
        sensitive=output.sensitive,
        size=len(output.data),
        sha256=output.sha256.hex(),
    )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
