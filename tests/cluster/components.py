"""The command lines of a control plane's programs, and nothing else.

Pure: `controlplane` says where keys and ports are and starts what comes back.
"""

from dataclasses import dataclass
from pathlib import Path

from cluster.pki import Pair

ETCD, APISERVER, CONTROLLERS = "etcd", "kube-apiserver", "kube-controller-manager"

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""The address of the API server to pods, once a node redirects it."""

NODE_ADDRESS = "10.244.0.1"
"""The host's address on a node's pod network: `advertise` of a control plane with real pods."""

SERVING_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "127.0.0.1",
    "::1",
    SERVICE_ADDRESS,
    NODE_ADDRESS,
)
"""What the API server may be called."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}
"""One line a request, when it is answered, without bodies."""


@dataclass(frozen=True)
class Layout:
    """Where the programs find keys, ports and directories."""

    root: Path
    ca: Pair
    etcd: Pair
    etcd_port: int
    etcd_peer_port: int
    signing_key: Path

    @property
    def etcd_url(self) -> str:
        """Where etcd serves the API server."""
        return f"https://127.0.0.1:{self.etcd_port}"


def etcd(layout: Layout) -> list[str]:
    """Arguments of etcd: one member, on loopback, for clients with a certificate of this cluster."""
    peer = f"https://127.0.0.1:{layout.etcd_peer_port}"
    arguments = [
        f"--data-dir={layout.root / 'etcd'}",
        f"--listen-client-urls={layout.etcd_url}",
        f"--advertise-client-urls={layout.etcd_url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--logger=zap",
    ]
    for side in ("", "peer-"):  # no API server can end up on the etcd of another cluster
        arguments += [
            f"--{side}cert-file={layout.etcd.certificate}",
            f"--{side}key-file={layout.etcd.key}",
            f"--{side}trusted-ca-file={layout.ca.certificate}",
            f"--{side}client-cert-auth",
        ]
    return arguments


def apiserver(
    layout: Layout, *, port: int, bind: str, advertise: str | None, serving: Pair, kubelet_client: Pair
) -> list[str]:
    """Arguments of kube-apiserver."""
    return [
        f"--etcd-servers={layout.etcd_url}",
        f"--etcd-cafile={layout.ca.certificate}",
        f"--etcd-certfile={layout.etcd.certificate}",
        f"--etcd-keyfile={layout.etcd.key}",
        f"--bind-address={bind}",
        f"--secure-port={port}",
        f"--cert-dir={serving.key.parent}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={layout.ca.certificate}",
        f"--kubelet-client-certificate={kubelet_client.certificate}",
        f"--kubelet-client-key={kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={layout.signing_key}",
        f"--service-account-key-file={layout.signing_key.with_suffix('.pub')}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        # Loopback may not be an endpoint: the API server would only complain about it again and again.
        f"--advertise-address={advertise}" if advertise else "--endpoint-reconciler-type=none",
    ]


def audit(policy: Path, log: Path) -> list[str]:
    """Further arguments of kube-apiserver, for an audit log in one file: it begins another one at 100 MB else."""
    return [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-maxsize=10000"]


def controllers(layout: Layout, *, kubeconfig: Path) -> list[str]:
    """Arguments of kube-controller-manager."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--service-account-private-key-file={layout.signing_key}",
        f"--root-ca-file={layout.ca.certificate}",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={layout.ca.certificate}",
        f"--cluster-signing-key-file={layout.ca.key}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=200",  # its thirty controllers start one after the other, held back by this
        "--kube-api-burst=400",
    ]
