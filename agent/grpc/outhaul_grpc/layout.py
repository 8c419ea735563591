"""What is where in a run's pod, and what the two sides call each other.

The operator's pod builder, its certificates and the agent all read these names here, so they cannot disagree.
"""

PROTOCOL_VERSIONS = (1,)
"""Every protocol version that this code speaks, as agent and as operator."""

RUN_DIR = "/outhaul/run"
"""Where the run's Secret is mounted."""

RUN_FILE = "run.json"
"""In the run's Secret: a `RunSpec` in protobuf's JSON form."""

CERTIFICATE_FILE = "tls.crt"
"""In the run's Secret: the agent's certificate chain (PEM)."""

KEY_FILE = "tls.key"
"""In the run's Secret: the agent's private key (PEM)."""

ROOTS_FILE = "ca.crt"
"""In the run's Secret: the roots that the operator's certificate must come from (PEM)."""

WORK_DIR = "/outhaul/work"
"""Where commands run by default; an empty, writable volume."""

OUTPUTS_DIR = "/outhaul/outputs"
"""Where commands can leave outputs; an empty, writable volume. They find it in OUTHAUL_OUTPUTS."""

HOME_DIR = "/outhaul/home"
"""The commands' HOME; an empty, writable volume."""

KEPT_DIR = "/outhaul/kept"
"""Where an uninstall finds the copy of what an earlier run was made from."""

KEPT_FILE = "source.tar.gz"
"""That copy, there and in its Secret."""

PORT = 7465
"""Where the agent listens, on the pod's own address."""

RUN_DIR_VARIABLE = "OUTHAUL_RUN_DIR"
WORK_DIR_VARIABLE = "OUTHAUL_WORK_DIR"
OUTPUTS_VARIABLE = "OUTHAUL_OUTPUTS"
KEPT_DIR_VARIABLE = "OUTHAUL_KEPT_DIR"
POD_IP_VARIABLE = "OUTHAUL_POD_IP"
"""The address to listen on; the pod gets it from the downward API. Without it the agent listens on all."""
PORT_VARIABLE = "OUTHAUL_PORT"
TERMINATION_LOG_VARIABLE = "OUTHAUL_TERMINATION_LOG"

AGENT_VARIABLES = frozenset(
    {
        RUN_DIR_VARIABLE,
        WORK_DIR_VARIABLE,
        OUTPUTS_VARIABLE,
        KEPT_DIR_VARIABLE,
        POD_IP_VARIABLE,
        PORT_VARIABLE,
        TERMINATION_LOG_VARIABLE,
    }
)
"""What the agent reads of its environment, which no run may set: it could not be reached, or would leave no word."""

TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LIMIT = 4096
"""Bytes of a termination message that Kubernetes keeps."""

OPERATOR_URI = "spiffe://outhaul.dev/operator"
"""The only client that an agent answers: the URI in the operator's certificate."""


def socket_address(ip: str, port: int) -> str:
    """Returns how gRPC writes an IPv4 or IPv6 address with a port."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def server_name(run_uid: str) -> str:
    """Returns the DNS name of a run's agent. It is in no DNS: the operator expects it in the certificate."""
    return f"{run_uid}.run.outhaul.dev"


def run_uri(namespace: str, name: str, run_uid: str) -> str:
    """Returns the URI of a run's agent, which is in its certificate for people who audit."""
    return f"spiffe://outhaul.dev/run/{namespace}/{name}/{run_uid}"
