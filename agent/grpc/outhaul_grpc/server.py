"""The server side of the wire: one TLS port that answers nobody but the operator.

The agent uses it, and so do tests that play an agent. Credentials are static: the run's certificate outlives
the run, and credentials that change under a running server crash grpcio (docs/architecture.md).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from outhaul_grpc.layout import OPERATOR_URI
from outhaul_grpc.protocol import MAX_WIRE_BYTES

if TYPE_CHECKING:  # these take their arguments in the stubs alone
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Context = grpc.aio.ServicerContext[Any, Any]

_OPERATOR = {
    "transport_security_type": b"ssl",
    # Older versions do not come through the handshake (see the package); it is looked at all the same.
    "ssl_tls_version": b"TLSv1.3",
    "x509_subject_alternative_name": OPERATOR_URI.encode(),
}

OPTIONS: list[tuple[str, int]] = [
    # A second server on the same port is an error, not a silent partner.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_WIRE_BYTES),
    ("grpc.max_send_message_length", MAX_WIRE_BYTES),
    # The operator pings every 30 seconds; the default tolerance is minutes, then the connection is closed.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A peer that vanished while it watched is noticed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]
MAX_CALLS = 32
"""Calls that are served at once; the operator makes a handful."""


def create_server() -> grpc.aio.Server:
    """Returns a server without a port and without services. Only the operator's calls reach its handlers."""
    return grpc.aio.server(
        interceptors=[OperatorOnly()],
        options=OPTIONS,
        maximum_concurrent_rpcs=MAX_CALLS,
    )


def server_credentials(*, certificate: bytes, key: bytes, roots: bytes) -> grpc.ServerCredentials:
    """Returns credentials that show the PEM `certificate` and demand one that `roots` have signed."""
    return grpc.ssl_server_credentials([(key, certificate)], roots, require_client_auth=True)


def is_operator(auth_context: Mapping[str, Iterable[bytes]]) -> bool:
    """Tells whether a peer is the operator: TLS 1.3, and its certificate names the operator's URI and nothing else.

    Args:
        auth_context: what gRPC says about the peer; it has checked the certificate against the roots already.
    """
    return all(list(auth_context.get(key, ())) == [value] for key, value in _OPERATOR.items())


class OperatorOnly(grpc.aio.ServerInterceptor):
    """Refuses every call whose peer is not the operator, whatever the method, known or not."""

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler":
        """Returns the method's handler behind the check; kinds of calls that the contract lacks get none."""
        handler = await continuation(handler_call_details)
        if handler is not None and handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _checked(handler.unary_unary),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler is not None and handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _checked_stream(handler.unary_stream),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(_checked(_unknown))


async def _unknown(_request: Any, context: "_Context") -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the agent has no such method")


async def _check(context: "_Context") -> None:
    if not is_operator(context.auth_context()):
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only the operator may call this agent")


def _checked(behavior: Any) -> Any:
    async def checked(request: Any, context: "_Context") -> Any:
        await _check(context)
        return await behavior(request, context)

    return checked


def _checked_stream(behavior: Any) -> Any:
    async def checked(request: Any, context: "_Context") -> AsyncIterator[Any]:
        await _check(context)
        async for response in behavior(request, context):
            yield response

    return checked
