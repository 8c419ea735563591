"""The standard health service, grpc.health.v1.Health, without the library that usually brings it.

Healthy means that the agent answers; what became of the run is in its state. `server` adds it to the port.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from outhaul_grpc.v1 import health_pb2 as pb

SERVICE = "grpc.health.v1.Health"
_KNOWN = {"", "outhaul.agent.v1.Agent", SERVICE}


class Health:
    """Serving until it is shut down."""

    def __init__(self) -> None:
        self._closing = asyncio.Event()

    def shut_down(self) -> None:
        """Reports from now on that nothing is served, and ends the watches."""
        self._closing.set()

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns what a server needs to route the service's methods here."""
        requests = pb.HealthCheckRequest.FromString
        responses = pb.HealthCheckResponse.SerializeToString
        check = grpc.unary_unary_rpc_method_handler(self._check, requests, responses)
        watch = grpc.unary_stream_rpc_method_handler(self._watch, requests, responses)
        return grpc.method_handlers_generic_handler(SERVICE, {"Check": check, "Watch": watch})

    async def _check(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        if request.service not in _KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return self._status()

    async def _watch(self, request: pb.HealthCheckRequest, _context: Any) -> AsyncIterator[pb.HealthCheckResponse]:
        if request.service in _KNOWN:
            yield self._status()
        else:
            yield pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        await self._closing.wait()
        if request.service in _KNOWN:
            yield self._status()

    def _status(self) -> pb.HealthCheckResponse:
        closing = self._closing.is_set()
        status = pb.HealthCheckResponse.NOT_SERVING if closing else pb.HealthCheckResponse.SERVING
        return pb.HealthCheckResponse(status=status)
