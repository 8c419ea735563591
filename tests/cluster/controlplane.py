"""A Kubernetes control plane of one's own: etcd, kube-apiserver and kube-controller-manager.

It needs no root and nothing outside its directory, and any number of them run side by side. `kubelet` and
`node` add what runs pods; they use `processes`, `authority` and the kubeconfigs from here.
"""

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from cluster import binaries, components, kubeconfigs, ports
from cluster.client import USER_AGENT, Client
from cluster.components import APISERVER, CONTROLLERS, ETCD, NODE_ADDRESS, SERVICE_ADDRESS
from cluster.errors import CommandFailed, ComponentFailed, NotInTime
from cluster.pki import Authority, Pair, write_private
from cluster.processes import Process, Processes
from cluster.waiting import until

__all__ = [
    "APISERVER",
    "COMPONENTS",
    "CONTROLLERS",
    "ETCD",
    "NODE_ADDRESS",
    "SERVICE_ADDRESS",
    "ControlPlane",
]

COMPONENTS = (ETCD, APISERVER, CONTROLLERS)
"""What `start` starts, in this order."""

_PORTS = ("apiserver", "etcd", "etcd-peer")
_ATTEMPTS = 3
_GRACE = {CONTROLLERS: 1.0, APISERVER: 1.0, ETCD: 5.0}
"""Seconds to end in: the API server would wait a minute for its watches, and loses nothing when cut short."""


class ControlPlane:
    """One control plane and its directory.

    Args:
        root: where its state is kept; a temporary directory, removed by `stop`, when not given.
        bind: the address on which the API server listens; `0.0.0.0` for pods of a real node.
        advertise: the API server's address to pods (`NODE_ADDRESS`); else `kubernetes` has no endpoints.
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
        self._admin = self.authority.issue("admin", "admin", organizations=["system:masters"])
        self._ports_are_new = False
        self._clients: dict[tuple[str, ...], Client] = {}
        self._audited: list[dict[str, Any]] = []
        self._audited_bytes = 0
        self._choose_ports()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def host(self) -> str:
        """The API server's address on this machine."""
        return "127.0.0.1" if self._bind in {"0.0.0.0", "::"} else self._bind  # noqa: S104 - compared, not bound

    @property
    def url(self) -> str:
        """The API server's URL on this machine."""
        return f"https://{self.host}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.root / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON object a line, one line a request, when `audit` is wanted."""
        return self.root / "log" / "audit.log"

    def start(self, wanted: Sequence[str] = COMPONENTS) -> Self:
        """Starts what is not running, leaves the rest, and waits until all of it is ready.

        Raises:
            ComponentFailed: one ended or was not ready in time; with the end of its log.
        """
        self._programs |= binaries.ensure(*wanted, "kubectl")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                for component in wanted:
                    self._start(component)
            except ComponentFailed as error:
                self._stop_unless_detached()
                taken = "address already in use" in str(error)
                if not (taken and self._ports_are_new and attempt < _ATTEMPTS):
                    raise
                # Somebody took a port between its choice and its use: chosen again, nobody knows it yet.
                (self.root / "ports.json").unlink()
                self._choose_ports()
            except BaseException:
                self._stop_unless_detached()
                raise
            else:
                break
        self._ports_are_new = False
        return self

    def stop(self, *, forget: bool = False) -> None:
        """Ends what runs, what came last first, and removes the directory if it is a temporary one.

        Args:
            forget: removes what etcd has stored as well, some 100 MB; the logs stay.
        """
        for name in self.processes.names():
            if name not in COMPONENTS:
                self.processes.stop(name)
        for component in reversed(COMPONENTS):
            self.processes.stop(component, _GRACE[component])
        if self._temporary:
            shutil.rmtree(self.root, ignore_errors=True)
        elif forget:
            shutil.rmtree(self.root / "etcd", ignore_errors=True)

    def running(self) -> dict[str, bool]:
        """Which components run."""
        return {component: self.processes.find(component) is not None for component in COMPONENTS}

    def stop_apiserver(self, *, kill: bool = False) -> None:
        """Ends the API server alone: in order, or as a crash would."""
        self.processes.stop(APISERVER, 0 if kill else _GRACE[APISERVER])

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
            server: the API server's URL, where it is not this machine's.
        """
        pair = self._issued_to(user, groups)
        path, ca = self.root / f"{pair.key.stem}.kubeconfig", self.authority.ca.certificate
        return kubeconfigs.with_certificate(path, server=server or self.url, ca=ca, user=user, pair=pair)

    def client_for(self, user: str, groups: Sequence[str] = ()) -> Client:
        """A client that is any user, by client certificate."""
        key = (user, *groups)
        if key not in self._clients:
            pair = self._issued_to(user, groups)
            self._clients[key] = Client(self.host, self.port, ca=self.authority.ca.certificate, pair=pair)
        return self._clients[key]

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, seconds: int = 86400, server: str | None = None
    ) -> Path:
        """A kubeconfig of a service account that exists, by a token that the API server issues."""
        token = self.service_account_token(namespace, name, seconds=seconds)
        path, ca = self.root / f"{namespace}_{name}.kubeconfig", self.authority.ca.certificate
        return kubeconfigs.with_token(path, server=server or self.url, ca=ca, user=name, token=token)

    def service_account_token(self, namespace: str, name: str, *, seconds: int = 86400) -> str:
        """A token of a service account that exists."""
        wish = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", wish)
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

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Makes a namespace and waits for what Kubernetes puts into it, without which no pod starts."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        for made in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
            path = f"/api/v1/namespaces/{name}/{made}"
            until(lambda path=path: self._client.answers(path), what=f"{made} of {name}")  # type: ignore[misc]

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        timeout: float = 60.0,
    ) -> str:
        """Runs kubectl, as the administrator unless told otherwise, and returns its standard output.

        Raises:
            CommandFailed: it returned an error; with its standard error.
            NotInTime: it did not end in time.
        """
        program = self._programs.get("kubectl") or binaries.ensure("kubectl")["kubectl"]
        options = [f"--kubeconfig={kubeconfig or self.kubeconfig}", f"--cache-dir={self.root / 'kubectl'}"]
        try:
            ended = subprocess.run(
                [str(program), *options, *arguments],
                input=stdin or "",
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
                env={**os.environ, "KUBERC": "off"},  # the settings of whoever runs the tests
            )
        except subprocess.TimeoutExpired as error:
            raise NotInTime(f"kubectl {' '.join(arguments)} did not end within {timeout:g} s") from error
        if ended.returncode != 0:
            said = ended.stderr.strip()
            raise CommandFailed(f"kubectl {' '.join(arguments)} returned {ended.returncode}: {said}")
        return ended.stdout

    def audit_events(self, user: str | None = None) -> list[dict[str, Any]]:
        """The requests that were answered so far, oldest first; those of one user if one is given.

        Where tests ask in the name of that user, that does not count. A watch is in it once it has ended. A marker of
        our own shows that the log has caught up.
        """
        marker = f"/readyz?caught-up={uuid.uuid4()}"
        self.request("GET", marker)
        seen = len(self._audited)

        def caught_up() -> bool:
            self._read_audit_log()
            return any(event["requestURI"] == marker for event in self._audited[seen:])

        until(caught_up, what="the audit log (is the control plane made with audit=True?)", timeout=60)
        if user is None:
            return list(self._audited)
        return [
            event
            for event in self._audited
            if event["user"].get("username") == user and event.get("userAgent") != USER_AGENT
        ]

    def _read_audit_log(self) -> None:
        """Takes in what has come since: the log of a long run has a hundred thousand lines."""
        if not self.audit_log.exists():
            return
        with self.audit_log.open("rb") as log:
            log.seek(self._audited_bytes)
            for line in log:
                if line.endswith(b"\n"):
                    self._audited.append(json.loads(line))
                    self._audited_bytes += len(line)

    def _issued_to(self, user: str, groups: Sequence[str]) -> Pair:
        name = "-".join([user, *groups]).replace("/", "_").replace(":", "_")
        return self.authority.issue(f"user-{name}", user, organizations=groups)

    def _choose_ports(self) -> None:
        memory = self.root / "ports.json"
        self._ports_are_new = not memory.exists()
        chosen = ports.remembered(memory, _PORTS)
        self.port = chosen["apiserver"]
        pki, ca = self.authority, self.authority.ca
        self._layout = components.Layout(
            root=self.root,
            ca=ca,
            etcd=pki.issue("etcd", "etcd", names=["localhost", "127.0.0.1"]),
            etcd_port=chosen["etcd"],
            etcd_peer_port=chosen["etcd-peer"],
            signing_key=pki.signing_key("service-accounts"),
        )
        self._client = Client(self.host, self.port, ca=ca.certificate, pair=self._admin)
        self._etcd_client = Client("127.0.0.1", chosen["etcd"], ca=ca.certificate, pair=self._layout.etcd)
        kubeconfigs.with_certificate(
            self.kubeconfig, server=self.url, ca=ca.certificate, user="admin", pair=self._admin
        )

    def _start(self, component: str) -> None:
        if component == ETCD:
            arguments, probe = components.etcd(self._layout), lambda: self._etcd_client.answers("/health")
        elif component == APISERVER:
            arguments, probe = self._apiserver_arguments(), lambda: self._client.answers("/readyz")
        elif component == CONTROLLERS:
            # Its first fruit that anybody needs.
            fruit = "/api/v1/namespaces/default/serviceaccounts/default"
            arguments, probe = self._controllers_arguments(), lambda: self._client.answers(fruit)
        else:
            raise ComponentFailed(f"{component}: not of a control plane, which has {', '.join(COMPONENTS)}")
        command = [str(self._programs[component]), *arguments]
        self._await(self.processes.start(component, command, cwd=self.root, umask=0o077), probe)

    def _await(self, process: Process, probe: Callable[[], bool], timeout: float = 180.0) -> None:
        def ready() -> bool:
            if not process.running():
                raise ComponentFailed(f"{process.name} ended while it started")
            return probe()

        try:
            until(ready, what=f"{process.name} to be ready", timeout=timeout)
        except (ComponentFailed, NotInTime) as error:
            raise ComponentFailed(f"{error}; the end of {process.log}:\n{process.tail()}") from error

    def _apiserver_arguments(self) -> list[str]:
        pki, masters = self.authority, ["system:masters"]
        arguments = components.apiserver(
            self._layout,
            port=self.port,
            bind=self._bind,
            advertise=self._advertise,
            serving=pki.issue("apiserver", "kube-apiserver", names=components.SERVING_NAMES),
            kubelet_client=pki.issue("kubelet-client", "kube-apiserver-kubelet-client", organizations=masters),
        )
        if self._audit:
            policy = self.root / "audit-policy.json"
            write_private(policy, json.dumps(components.AUDIT_POLICY).encode())
            arguments += components.audit(policy, self.audit_log)
        return [*arguments, *self._extra[APISERVER]]

    def _controllers_arguments(self) -> list[str]:
        arguments = components.controllers(
            self._layout,
            kubeconfig=self.kubeconfig_for(f"system:{CONTROLLERS}"),
        )
        return [*arguments, *self._extra[CONTROLLERS]]

    def _stop_unless_detached(self) -> None:
        if not self.processes.detached:
            self.processes.stop_all(grace=0)
