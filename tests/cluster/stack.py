"""Outhaul on a cluster of its own: control plane, stand-in kubelet, CRDs and the operator, for tests, demo and `make up`."""

import os
import sys
from pathlib import Path
from typing import Self

from cluster import packages, waiting
from cluster.controlplane import ControlPlane
from cluster.kubelet import StandInKubelet
from cluster.processes import Process

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests"
OPERATOR_NAMESPACE = "outhaul-system"
KUBELET, OPERATOR = "kubelet", "operator"
OPERATOR_ACCOUNT = "outhaul-operator"


def operator_user() -> str:
    """The name by which the API server knows the operator's service account."""
    return f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}"


class Stack:
    """A control plane with a stand-in kubelet and the operator beside it, as processes.

    The operator runs under its own service account and the role of `deploy/`, never as an administrator.

    Args:
        control_plane: where; it is started and stopped by whoever made it.
        path: folders that the pods' containers search for programs before the environment's.
    """

    def __init__(
        self, control_plane: ControlPlane, path: tuple[Path, ...] = (REPOSITORY / "samples/terraform",)
    ) -> None:
        self.control_plane = control_plane
        self._path = path

    def start(self) -> Self:
        """Starts what is not running, and waits until it is ready."""
        packages.ensure({"bwrap": "bubblewrap"})
        self.install()
        self.start_kubelet()
        self.start_operator()
        return self

    def stop(self) -> None:
        """Ends the operator and the kubelet, with every container."""
        self.control_plane.processes.stop(OPERATOR, grace=10)
        self.control_plane.processes.stop(KUBELET, grace=10)

    def install(self) -> None:
        """Applies the CRDs, the operator's namespace and its role, as `deploy/` has them; not its Deployment."""
        kubectl = self.control_plane.kubectl
        # The API server is older than 1.25: see docs/install.md.
        kubectl("apply", "--validate=false", "-f", "-", stdin=kubectl("kustomize", str(REPOSITORY / "crds")))
        everything = kubectl("kustomize", str(REPOSITORY / "deploy"))
        kept = [one for one in everything.split("\n---\n") if "\nkind: Deployment\n" not in f"\n{one}\n"]
        kubectl("apply", "--validate=false", "-f", "-", stdin="\n---\n".join(kept))

    def start_kubelet(self) -> None:
        """Starts the stand-in kubelet, unless it runs, and waits until its node is ready."""
        plane = self.control_plane
        root = plane.root / "kubelet"
        root.mkdir(exist_ok=True)
        one = StandInKubelet(
            plane.kubeconfig, root, path=[*self._path, Path(sys.prefix, "bin")], binds=[REPOSITORY / "samples"]
        )
        search = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        plane.processes.start(KUBELET, one.command, env={"PYTHONPATH": search}, group=True)

        def ready() -> bool:
            answer = plane.kubectl(
                "get", "nodes", "-o", 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
            )
            return "True" in answer

        waiting.until(ready, what="the stand-in kubelet's node is ready", timeout=60)

    def start_operator(self) -> Process:
        """Starts the operator, unless it runs; it needs no more to be ready than to be told of objects."""
        plane = self.control_plane
        kubeconfig = plane.service_account_kubeconfig(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
        command = [sys.executable, "-m", "outhaul_operator", "--kubeconfig", kubeconfig, "--liveness-port", "0"]
        command += ["--operator-namespace", OPERATOR_NAMESPACE, "--agent-image", "outhaul-agent"]
        return plane.processes.start(OPERATOR, command)

    def kill_operator(self) -> None:
        """Ends the operator as a crash would (SIGKILL)."""
        process = self.control_plane.processes.find(OPERATOR)
        if process is not None:
            process.kill()
            self.control_plane.processes.stop(OPERATOR)

    def container_log(self, namespace: str, pod: str, container: str = "agent") -> str:
        """What a container has printed so far."""
        file = self.control_plane.root / "kubelet" / "logs" / f"{namespace}_{pod}_{container}.log"
        return file.read_text(errors="replace") if file.exists() else ""
