"""A Kubernetes control plane of one's own: etcd, kube-apiserver and kube-controller-manager, for as long as it is wanted.

It needs no root and nothing outside its directory, and any number of them run side by side. `kubelet` and `node` add what runs pods; they
use `processes`, `authority` and the kubeconfigs from here.
"""

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from cluster import binaries, kubeconfigs, ports
from cluster.client import Client
from cluster.errors import CommandFailed, ComponentFailed, NotInTime, RequestFailed
from cluster.pki import Authority, Pair, write_private
from cluster.processes import Process, Processes
from cluster.waiting import until

ETCD, APISERVER, CONTROLLERS = "etcd", "kube-apiserver", "kube-controller-manager"
COMPONENTS = (ETCD, APISERVER, CONTROLLERS)
"""What `start` starts, in this order."""

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""The address of the API server to pods, once a node redirects it."""

NODE_ADDRESS = "10.244.0.1"
"""The host's address on a node's pod network: `advertise` of a control plane with real pods."""

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlane:
    """One control plane and its directory.

    Args:
        root: where its state is kept; a temporary directory, removed by `stop`, when not given.
        bind: the address on which the API server listens; `0.0.0.0` for pods of a real node.
        advertise: the API server's address to pods (`NODE_ADDRESS`); without it there are no endpoints of the service `kubernetes`.
        audit: whether to log each request, for `audit_events`.
        apiserver_args: further arguments of kube-apiserver.
        controller_args: further arguments of kube-controller-manager.
        detached: it outlives this process, until `stop` of an object with the same root.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        bind: str = "127.0.0.1",
        advertise: str | None = None,
        audit: bool = False,
        apiserver_args: Sequence[str] = (),
        controller_args: Sequence[str] = (),
        detached: bool = False,
    ) -> None:
        self._temporary = root is None
        self.root = Path(tempfile.mkdtemp(prefix="outhaul-cluster-")) if root is None else root.resolve()
        self.processes = Processes(self.root, detached=detached)
        self.authority = Authority(self.root / "pki")
        self._bind, self._advertise, self._audit = bind, advertise, audit
        self._extra = {APISERVER: list(apiserver_args), CONTROLLERS: list(controller_args)}
        self._programs: dict[str, Path] = {}
        self._choose_ports()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The API server's address on this machine."""
        return f"https://{self.host}:{self.port}"

    @property
    def host(self) -> str:
        """The API server's host name on this machine."""
        return "127.0.0.1" if self._bind in {"0.0.0.0", "::"} else self._bind  # noqa: S104 - compared, not bound

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.root / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON object a line, one line a request, when `audit` is wanted."""
        return self.root / "log" / "audit.log"

    def start(self, components: Sequence[str] = COMPONENTS) -> Self:
        """Starts what is not running, leaves the rest, and waits until all of it is ready.

        Raises:
            ComponentFailed: one ended or was not ready in time; with the end of its log.
        """
        self._programs = binaries.ensure(*components, "kubectl")
        try:
            for attempt in range(3):
                try:
                    self._start(components)
                    break
                except ComponentFailed as error:
                    # Somebody took the port between its choice and its use: only possible before the first start.
                    if attempt == 2 or "address already in use" not in str(error) or self._has_data():
                        raise
                    self.processes.stop_all()
                    (self.root / "ports.json").unlink()
                    self._choose_ports()
        except BaseException:
            if not self.processes.detached:
                self.processes.stop_all()
            raise
        return self

    def stop(self) -> None:
        """Ends what runs, the newest first, and removes the directory if it is a temporary one."""
        self.processes.stop_all(grace=3.0)
        for component in reversed(COMPONENTS):  # also what another process started, detached
            self.processes.stop(component, grace=3.0)
        if self._temporary:
            shutil.rmtree(self.root, ignore_errors=True)

    def running(self) -> dict[str, bool]:
        """Which components run."""
        return {component: self.processes.find(component) is not None for component in COMPONENTS}

    def stop_apiserver(self, *, kill: bool = False) -> None:
        """Ends the API server alone: in order, or as a crash would."""
        self.processes.stop(APISERVER, grace=0 if kill else 1.0)

    def start_apiserver(self) -> None:
        """Starts the API server again and waits until it is ready."""
        self.start((APISERVER,))

    def restart_apiserver(self, *, kill: bool = False) -> None:
        """Ends the API server and starts it again, on the same port and with the same objects."""
        self.stop_apiserver(kill=kill)
        self.start_apiserver()

    def kubeconfig_for(self, user: str, groups: Sequence[str] = (), *, server: str | None = None) -> Path:
        """A kubeconfig of any user, by client certificate.

        Args:
            user: the user's name, as in RBAC.
            groups: their groups; `system:masters` may do everything.
            server: the API server's address, where it is not this machine's.
        """
        name = "-".join([user, *groups]).replace("/", "_").replace(":", "_")
        pair = self.authority.issue(f"user-{name}", user, organizations=groups)
        path = self.root / f"{name}.kubeconfig"
        return kubeconfigs.with_certificate(
            path, server=server or self.url, ca=self.authority.ca.certificate, user=user, pair=pair
        )

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, seconds: int = 86400, server: str | None = None
    ) -> Path:
        """A kubeconfig of a service account that exists, by a token that the API server issues."""
        token = self.service_account_token(namespace, name, seconds=seconds)
        path = self.root / f"{namespace}_{name}.kubeconfig"
        ca = self.authority.ca.certificate
        return kubeconfigs.with_token(path, server=server or self.url, ca=ca, user=name, token=token)

    def service_account_token(self, namespace: str, name: str, *, seconds: int = 86400) -> str:
        """A token of a service account that exists."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
        return str(answer["status"]["token"])

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Any:
        """Sends one request to the API server, as the administrator.

        Raises:
            RequestFailed: the API server answered with an error.
            OSError: it did not answer.
        """
        return self._client.request(method, path, body, content_type=content_type, timeout=timeout)

    def create_namespace(self, name: str) -> None:
        """Makes a namespace and waits for its service account, without which no pod is admitted."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until(lambda: self._exists(path), what=f"the default service account of {name}")

    def kubectl(
        self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None, timeout: float = 60.0
    ) -> str:
        """Runs kubectl, as the administrator unless another kubeconfig is given, and returns its standard output.

        Raises:
            CommandFailed: it returned an error; with its standard error.
        """
        program = self._programs.get("kubectl") or binaries.ensure("kubectl")["kubectl"]
        command = [
            str(program),
            f"--kubeconfig={kubeconfig or self.kubeconfig}",
            f"--cache-dir={self.root / 'kubectl'}",
            *arguments,
        ]
        ended = subprocess.run(
            command,
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env={**os.environ, "KUBERC": "off"},
        )
        if ended.returncode != 0:
            raise CommandFailed(
                f"kubectl {' '.join(arguments)} returned {ended.returncode}: {ended.stderr.strip()}"
            )
        return ended.stdout

    def audit_events(self, user: str | None = None) -> list[dict[str, Any]]:
        """The requests that were answered so far, oldest first, those of one user if one is given.

        A watch is in it once it has ended. A request of our own, made and looked for, shows that the log has caught up.
        """
        marker = f"/readyz?caught-up={uuid.uuid4()}"
        self.request("GET", marker)

        def caught_up() -> list[dict[str, Any]] | None:
            lines = self.audit_log.read_text().splitlines() if self.audit_log.exists() else []
            events = [json.loads(line) for line in lines if line.endswith("}")]
            return events if any(event["requestURI"] == marker for event in events) else None

        events = until(
            caught_up, what="the audit log (was the control plane made with audit=True?)", timeout=10
        )
        return [event for event in events if user in {None, event["user"].get("username")}]

    def _choose_ports(self) -> None:
        chosen = ports.remembered(self.root / "ports.json", ("apiserver", "etcd", "etcd-peer"))
        self.port, self._etcd_port, self._etcd_peer_port = (
            chosen[name] for name in ("apiserver", "etcd", "etcd-peer")
        )
        pki = self.authority
        admin = pki.issue("admin", "admin", organizations=["system:masters"])
        self._client = Client(self.host, self.port, ca=pki.ca.certificate, pair=admin)
        for path, user, pair in (
            (self.kubeconfig, "admin", admin),
            (
                self._controllers_kubeconfig,
                f"system:{CONTROLLERS}",
                pki.issue(CONTROLLERS, f"system:{CONTROLLERS}"),
            ),
        ):
            kubeconfigs.with_certificate(path, server=self.url, ca=pki.ca.certificate, user=user, pair=pair)

    @property
    def _controllers_kubeconfig(self) -> Path:
        return self.root / f"{CONTROLLERS}.kubeconfig"

    def _has_data(self) -> bool:
        return (self.root / "etcd" / "member" / "snap" / "db").exists() and self.running()[ETCD]

    def _start(self, components: Sequence[str]) -> None:
        arguments = {ETCD: self._etcd, APISERVER: self._apiserver, CONTROLLERS: self._controllers}
        probes = {
            ETCD: self._etcd_ready,
            APISERVER: self._apiserver_ready,
            CONTROLLERS: self._controllers_ready,
        }
        for component in components:
            command = [str(self._programs[component]), *arguments[component]()]
            process = self.processes.start(component, command, cwd=self.root, umask=0o077)
            self._wait(process, probes[component])

    def _wait(self, process: Process, probe: Callable[[], bool], timeout: float = 60.0) -> None:
        def ready() -> bool:
            if not process.running():
                raise ComponentFailed(
                    f"{process.name} ended while it started; the end of {process.log}:\n{process.tail()}"
                )
            return probe()

        try:
            until(ready, what=f"{process.name} to be ready", timeout=timeout)
        except NotInTime as error:
            raise ComponentFailed(f"{error}; the end of {process.log}:\n{process.tail()}") from error

    def _etcd_pair(self) -> Pair:
        return self.authority.issue("etcd", "etcd", names=["localhost", "127.0.0.1"])

    def _etcd(self) -> list[str]:
        client, peer = (f"https://127.0.0.1:{port}" for port in (self._etcd_port, self._etcd_peer_port))
        pair, ca = self._etcd_pair(), self.authority.ca.certificate
        return [
            f"--data-dir={self.root / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # With certificates no API server can end up on the etcd of another cluster.
            *(
                f"--{side}{option}"
                for side in ("", "peer-")
                for option in (
                    f"cert-file={pair.certificate}",
                    f"key-file={pair.key}",
                    f"trusted-ca-file={ca}",
                    "client-cert-auth",
                )
            ),
            "--unsafe-no-fsync",
            "--logger=zap",
        ]

    def _etcd_ready(self) -> bool:
        ca = self.authority.ca.certificate
        return Client("127.0.0.1", self._etcd_port, ca=ca, pair=self._etcd_pair()).answers("/health")

    def _apiserver(self) -> list[str]:
        pki, ca, etcd = self.authority, self.authority.ca.certificate, self._etcd_pair()
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "127.0.0.1",
            "::1",
        ]
        serving = pki.issue("apiserver", "kube-apiserver", names=[*names, SERVICE_ADDRESS, NODE_ADDRESS])
        kubelets = pki.issue(
            "kubelet-client", "kube-apiserver-kubelet-client", organizations=["system:masters"]
        )
        signing = pki.signing_key("service-accounts")
        arguments = [
            f"--etcd-servers=https://127.0.0.1:{self._etcd_port}",
            f"--etcd-cafile={ca}",
            f"--etcd-certfile={etcd.certificate}",
            f"--etcd-keyfile={etcd.key}",
            f"--bind-address={self._bind}",
            f"--secure-port={self.port}",
            f"--cert-dir={self.root / 'pki'}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={ca}",
            f"--kubelet-client-certificate={kubelets.certificate}",
            f"--kubelet-client-key={kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={signing}",
            f"--service-account-key-file={signing.with_suffix('.pub')}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
        ]
        # Loopback may not be an endpoint: the API server would only complain about it again and again.
        arguments.append(
            f"--advertise-address={self._advertise}" if self._advertise else "--endpoint-reconciler-type=none"
        )
        if self._audit:
            policy = self.root / "audit-policy.json"
            write_private(policy, json.dumps(_AUDIT_POLICY).encode())
            arguments += [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        return [*arguments, *self._extra[APISERVER]]

    def _apiserver_ready(self) -> bool:
        return self._client.answers("/readyz")

    def _controllers(self) -> list[str]:
        ca = self.authority.ca
        arguments = [
            f"--kubeconfig={self._controllers_kubeconfig}",
            f"--service-account-private-key-file={self.authority.signing_key('service-accounts')}",
            f"--root-ca-file={ca.certificate}",
            "--use-service-account-credentials=true",
            f"--cluster-signing-cert-file={ca.certificate}",
            f"--cluster-signing-key-file={ca.key}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",  # its thirty controllers start one after the other, held back by this
            "--kube-api-burst=400",
        ]
        if self._programs[CONTROLLERS].parent == binaries.cache():
            arguments.append(
                "--port=0"
            )  # 1.20 listens there unless told not to, 1.24 no longer knows the flag
        return [*arguments, *self._extra[CONTROLLERS]]

    def _controllers_ready(self) -> bool:
        return self._exists("/api/v1/namespaces/default/serviceaccounts/default")

    def _exists(self, path: str) -> bool:
        return self._client.answers(path)
