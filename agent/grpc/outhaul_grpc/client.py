"""The client side of the wire: a channel to one run's agent at a pod's address.

The operator uses it, through its `agents`, and so do tests that play wrong peers. The name that a channel
expects in the peer's certificate *is* the check of its identity: Python's gRPC shows a client no certificate.
"""

import json

import grpc
import grpc.aio

from outhaul_grpc.layout import server_name, socket_address
from outhaul_grpc.protocol import MAX_STATE_BYTES, MAX_WIRE_BYTES

_LIMITS = {
    "methodConfig": [
        {
            "name": [{"service": "outhaul.agent.v1.Agent", "method": method} for method in ("GetInfo", "Watch")],
            "maxResponseMessageBytes": MAX_STATE_BYTES,
        }
    ]
}
"""What is answered while a run goes on, so that runs take little room, however many there are."""

OPTIONS: list[tuple[str, int | str]] = [
    # A pod is dialled by its address: no proxy of the cluster's edge has business there.
    ("grpc.enable_http_proxy", 0),
    # What may be repeated is repeated by the caller, who knows.
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MAX_WIRE_BYTES),
    ("grpc.max_send_message_length", MAX_WIRE_BYTES),
    ("grpc.max_metadata_size", 8192),
    ("grpc.service_config", json.dumps(_LIMITS)),
    # An agent sends no faster than it is read: nothing piles up here.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 * 1024),
    # Agents answer at once or not at all: look again often, not at doubling intervals up to minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # How long one attempt may take: a busy node may need a while for a handshake.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # A watched agent whose node vanished is noticed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A run's connection dies with its channel.
    ("grpc.use_local_subchannel_pool", 1),
]


def channel_credentials(*, certificate: bytes, key: bytes, roots: bytes) -> grpc.ChannelCredentials:
    """Returns credentials that show the PEM `certificate` and accept a server that `roots` have signed."""
    return grpc.ssl_channel_credentials(roots, private_key=key, certificate_chain=certificate)


def open_channel(ip: str, port: int, run_uid: str, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    """Returns a channel to the agent of one run. It connects at the first call, to no other run."""
    options = [*OPTIONS, ("grpc.ssl_target_name_override", server_name(run_uid))]
    return grpc.aio.secure_channel(socket_address(ip, port), credentials, options=options)
