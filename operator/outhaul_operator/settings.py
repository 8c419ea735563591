"""The operator's settings: flags, each with an environment variable for manifests."""

import argparse
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from outhaul_api.common import Duration, seconds
from pydantic import TypeAdapter, ValidationError

from outhaul_operator import logs


@dataclass(frozen=True)
class Settings:
    """What the operator was started with."""

    namespace: str
    """The operator's own namespace: its authority, and the AgentConfig that applies to all."""
    identity: str
    """Tells this process from every other that runs; a pod's name, since one process of it runs at a time."""
    lease_seconds: float
    """How long a leader that is not heard of is waited for."""
    agent_image: str | None
    """The agent's image where no AgentConfig names one."""
    watch_namespaces: tuple[str, ...]
    """The namespaces to work in; empty: all."""
    kubeconfig: str | None
    """A kubeconfig's path; None: the pod's service account, else kubectl's default."""
    http_port: int
    """Where `/healthz`, `/readyz` and `/metrics` are served; 0: nowhere."""
    resync_seconds: float
    """How often everything is looked at, and each latest Secret compared."""
    watch_timeout_seconds: float
    """After how long a silence a watch is opened anew; one that stays silent for three times as long is wedged."""
    root_lifetime: timedelta
    """Of the roots that the operator makes; each signs for two thirds of it."""
    ca_secret: str | None
    """The Secret, in the operator's namespace, with the authority that an admin brings; None: it makes its own."""
    log_format: logs.Format
    """How a line of the log looks."""
    debug: bool
    """Whether to log every step."""


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Reads the command line; exits with a message where it is wrong.

    Args:
        arguments: The command line; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="outhaul-operator", description="The Outhaul operator.")
    parser.add_argument(
        "--operator-namespace",
        default=os.environ.get("POD_NAMESPACE", "outhaul-system"),
        help="the operator's own namespace (POD_NAMESPACE; default outhaul-system)",
    )
    parser.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME") or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        help="what no other operator that runs is called (POD_NAME; default: the host's name and something random)",
    )
    parser.add_argument(
        "--lease-seconds",
        type=float,
        default=float(os.environ.get("OUTHAUL_LEASE_SECONDS", "15")),
        help="how long a leader that is not heard of is waited for (OUTHAUL_LEASE_SECONDS; default 15)",
    )
    parser.add_argument(
        "--agent-image",
        default=os.environ.get("OUTHAUL_AGENT_IMAGE"),
        help="the agent's image where no AgentConfig names one (OUTHAUL_AGENT_IMAGE)",
    )
    parser.add_argument(
        "--namespace",
        action="append",
        default=[name for name in os.environ.get("OUTHAUL_NAMESPACES", "").split(",") if name],
        help="a namespace to work in, may be repeated (OUTHAUL_NAMESPACES, with commas; default: all)",
    )
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"), help="a kubeconfig file (KUBECONFIG)")
    parser.add_argument(
        "--http-port",
        type=int,
        default=int(os.environ.get("OUTHAUL_HTTP_PORT", "8080")),
        help="where /healthz, /readyz and /metrics are served, 0 for nowhere (OUTHAUL_HTTP_PORT; default 8080)",
    )
    parser.add_argument(
        "--resync-seconds",
        type=float,
        default=float(os.environ.get("OUTHAUL_RESYNC_SECONDS", "600")),
        help="how often everything is looked at again (OUTHAUL_RESYNC_SECONDS; default 600)",
    )
    parser.add_argument(
        "--watch-timeout-seconds",
        type=float,
        default=float(os.environ.get("OUTHAUL_WATCH_TIMEOUT_SECONDS", "70")),
        help="after how long a silence a watch is opened anew (OUTHAUL_WATCH_TIMEOUT_SECONDS; default 70)",
    )
    parser.add_argument(
        "--root-lifetime",
        type=_duration,
        default=os.environ.get("OUTHAUL_ROOT_LIFETIME", "87600h"),
        help="how long a root certificate of the operator's own lives; another one takes its place after two thirds "
        "of it (OUTHAUL_ROOT_LIFETIME; default 87600h)",
    )
    parser.add_argument(
        "--ca-secret",
        default=os.environ.get("OUTHAUL_CA_SECRET") or None,
        help="a Secret in the operator's namespace with an authority of your own (OUTHAUL_CA_SECRET)",
    )
    parser.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        default=os.environ.get("OUTHAUL_LOG_FORMAT", "text"),
        help="how a line of the log looks: json or text (OUTHAUL_LOG_FORMAT; default text)",
    )
    parser.add_argument("--debug", action="store_true", help="log every step")
    given = parser.parse_args(arguments)
    return Settings(
        namespace=given.operator_namespace,
        identity=given.identity,
        lease_seconds=given.lease_seconds,
        agent_image=given.agent_image,
        watch_namespaces=tuple(given.namespace),
        kubeconfig=given.kubeconfig,
        http_port=given.http_port,
        resync_seconds=given.resync_seconds,
        watch_timeout_seconds=given.watch_timeout_seconds,
        root_lifetime=given.root_lifetime,
        ca_secret=given.ca_secret,
        log_format=given.log_format,
        debug=given.debug,
    )


def _duration(text: str) -> timedelta:
    """Reads a Kubernetes duration; the message of its error is shown to whoever gave it."""
    try:
        return timedelta(seconds=seconds(TypeAdapter(Duration).validate_python(text)))
    except (ValidationError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 90m or 87600h") from None
