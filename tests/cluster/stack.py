"""Outhaul on a cluster of its own, as processes: for the tests, the demo and `make up`."""

import base64
import http
import http.client
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from cluster import binaries, packages, ports, waiting
from cluster.controlplane import APISERVER, ETCD, ControlPlane
from cluster.errors import ComponentFailed
from cluster.kubelet import StandInKubelet
from cluster.processes import Process
from cluster.progress import say
from cluster.proxy import Proxy

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests"
NEEDS = {"bwrap": "bubblewrap"}
"""What the stand-in kubelet needs beyond Python, and the Debian package that brings it."""

OPERATOR_NAMESPACE = "outhaul-system"
KUBELET, OPERATOR = "kubelet", "operator"
OPERATOR_ACCOUNT = "outhaul-operator"

_TOKEN_SECONDS = 365 * 86400  # the operator has no kubelet that would renew its token
_TOKEN_LEFT = 86400


def operator_user() -> str:
    """The name by which the API server knows the operator's service account."""
    return f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}"


def await_kinds(plane: ControlPlane) -> None:
    """Waits until the API server serves all our kinds: that takes a moment after their definitions were applied."""

    def served() -> bool:
        return len(plane.kubectl("api-resources", "--api-group=outhaul.dev", "-o", "name").split()) == 4

    waiting.until(served, what="the API server serves our kinds", timeout=60)


class Stack:
    """A control plane with a stand-in kubelet and the operator beside it.

    The operator runs under its own service account and the role of `deploy/`, never as an administrator.

    Args:
        control_plane: where; whoever made it stops it.
        path: folders that the pods' containers search for programs before the environment's.
        operator: the command that runs the operator, where it is to be run in another way.
        manifests: the kustomization that says what the operator may do.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        path: tuple[Path, ...] = (REPOSITORY / "samples/terraform",),
        *,
        operator: tuple[str, ...] = (sys.executable, "-m", "outhaul_operator"),
        manifests: Path = REPOSITORY / "deploy",
    ) -> None:
        self.control_plane = control_plane
        self._path = path
        self._operator, self._manifests = operator, manifests

    def start(self) -> Self:
        """Starts what is not running, leaves the rest, and waits until all of it is ready."""
        packages.ensure(NEEDS)
        binaries.ensure(*binaries.CONTROL_PLANE)  # in one build: two take longer
        say("the API server")
        self.control_plane.start((ETCD, APISERVER))
        say("Outhaul's kinds, its namespace and its role")
        self.install()
        # The garbage collector looks for new kinds when it starts, and then every 30 seconds.
        say("the controllers")
        self.control_plane.start()
        say("a node, which stands in for a real one and runs pods as processes")
        self.start_kubelet()
        say("the operator")
        self.start_operator()
        return self

    def stop(self) -> None:
        """Ends the operator and the kubelet, with every container."""
        self.control_plane.processes.stop(OPERATOR, grace=10)
        self.control_plane.processes.stop(KUBELET, grace=10)

    def install(self) -> None:
        """Applies the CRDs, the operator's namespace and its roles, as the manifests have them; not its Deployment."""
        kubectl = self.control_plane.kubectl
        everything = kubectl("kustomize", str(self._manifests))
        kept = [one for one in everything.split("\n---\n") if "\nkind: Deployment\n" not in f"\n{one}\n"]
        kubectl("apply", "-f", "-", stdin="\n---\n".join(kept))
        await_kinds(self.control_plane)

    def start_kubelet(self) -> None:
        """Starts the stand-in kubelet, unless it runs, and waits until its node is ready."""
        plane = self.control_plane
        root = plane.root / "kubelet"
        root.mkdir(exist_ok=True)
        path, binds = [*self._path, Path(sys.prefix, "bin")], [*self._path, REPOSITORY / "samples"]
        one = StandInKubelet(plane.kubeconfig, root, path=path, binds=binds)
        search = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = plane.processes.start(KUBELET, one.command, env={"PYTHONPATH": search}, group=True)

        def ready() -> bool:
            _check(process)
            answer = plane.kubectl(
                "get", "nodes", "-o", 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
            )
            return "True" in answer

        waiting.until(ready, what="the stand-in kubelet's node is ready", timeout=60)

    def start_operator(self, *options: str, server: str | None = None, name: str = OPERATOR) -> Process:
        """Starts an operator unless it runs, and waits until it is ready: it leads, or another one does.

        Args:
            options: further ones of its command line.
            server: the API server's URL, where that is behind a proxy.
            name: tells it from others, as a pod's name does.
        """
        plane = self.control_plane
        found = plane.processes.find(name)
        if found is not None:
            if _seconds_left(self.operator_kubeconfig) > _TOKEN_LEFT:
                return found
            say("the operator's token has expired or soon will: starting it again with a new one")
            found.stop(grace=10)
        plane.service_account_kubeconfig(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, seconds=_TOKEN_SECONDS, server=server)
        process = self.launch_operator(*options, name=name)

        def ready() -> bool:
            _check(process)
            try:
                return self.operator_answer("/readyz", name)[0] == http.HTTPStatus.OK
            except (OSError, http.client.HTTPException):
                return False

        waiting.until(ready, what="the operator to be ready", timeout=60)
        return process

    def launch_operator(self, *options: str, name: str = OPERATOR) -> Process:
        """Starts an operator and does not wait for it; its kubeconfig is that of an operator before it."""
        (port,) = ports.free(1)
        command = [*self._operator, "--kubeconfig", str(self.operator_kubeconfig)]
        command += ["--operator-namespace", OPERATOR_NAMESPACE, "--agent-image", "outhaul-agent"]
        # One that is killed and started again is known by its name, so nobody waits for the end of its Lease; and on a
        # machine with much to do a leader is not too slow to renew it.
        command += ["--http-port", str(port), "--identity", name, "--lease-seconds", "60", *options]
        temporary = self.control_plane.root / "tmp"  # a killed operator leaves a file there
        temporary.mkdir(exist_ok=True)
        self._port_file(name).write_text(str(port))
        return self.control_plane.processes.start(name, command, env={"TMPDIR": str(temporary)})

    def operator_answer(self, path: str, name: str = OPERATOR) -> tuple[int, str]:
        """What an operator answers to a GET of its own endpoints: the status, and the text.

        Raises:
            OSError: nobody answers.
        """
        port = int(self._port_file(name).read_text())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def operator_leads(self, name: str = OPERATOR) -> bool:
        """Whether an operator leads, by its own account."""
        return "\nouthaul_leader 1.0\n" in self.operator_answer("/metrics", name)[1]

    def kill_operator(self, name: str = OPERATOR) -> None:
        """Ends an operator as a crash would (SIGKILL)."""
        process = self.control_plane.processes.find(name)
        if process is not None:
            process.kill()
            self.control_plane.processes.stop(name)

    @contextmanager
    def proxied(self, *options: str) -> Iterator[Proxy]:
        """Has an operator with these further options ask the API server by way of a proxy, as long as that lasts."""
        with Proxy(self.control_plane) as proxy:
            self.kill_operator()
            self.start_operator(*options, server=proxy.url)
            try:
                yield proxy
            finally:
                self.kill_operator()
        self.start_operator()

    def restart_operator(self, *options: str) -> None:
        """Ends the operator in order and starts it again, with these further options."""
        self.control_plane.processes.stop(OPERATOR, grace=10)
        self.start_operator(*options)

    def container_log(self, namespace: str, pod: str, container: str = "agent") -> str:
        """What a container has printed so far, also when its pod is gone."""
        file = self._container_logs / f"{namespace}_{pod}_{container}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def printed(self, namespace: str, pod: str, words: str) -> None:
        """Waits until the agent's container of a pod has printed something."""
        waiting.until(lambda: words in self.container_log(namespace, pod), what=f"{words!r} in the log", timeout=60)

    def container_logs(self, namespace: str, container: str = "agent") -> dict[str, str]:
        """What the containers of a name have printed, by pod, also of pods that are gone."""
        files = self._container_logs.glob(f"{namespace}_*_{container}.log")
        return {file.name.split("_")[1]: file.read_text(errors="replace") for file in files}

    def _port_file(self, name: str) -> Path:
        return self.control_plane.root / f"{name}.port"

    @property
    def _container_logs(self) -> Path:
        return self.control_plane.root / "kubelet" / "logs"

    @property
    def operator_kubeconfig(self) -> Path:
        """The kubeconfig of the operator's service account, once an operator has been started."""
        return self.control_plane.root / f"{OPERATOR_NAMESPACE}_{OPERATOR_ACCOUNT}.kubeconfig"


def _check(process: Process) -> None:
    """Tells why a program is gone that should be there."""
    if not process.running():
        raise ComponentFailed(f"{process.name} ended while it started; the end of {process.log}:\n{process.tail()}")


def _seconds_left(kubeconfig: Path) -> float:
    """How long the token in a kubeconfig is still valid; 0 where there is none."""
    try:
        token = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
        claims = token.split(".")[1]
        expires = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
    except (OSError, ValueError, LookupError):
        return 0.0
    return float(expires) - time.time()
