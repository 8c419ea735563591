"""Outhaul on the real node, installed as a user installs it: `kubectl apply -k`, with images of one's own.

What `deploy/examples/operator` and `deploy/examples/terraform-tenant` say to copy and change is written here as
kustomizations that name the repository's directories. Nothing else is done to the cluster.
"""

import json
import os
from pathlib import Path
from typing import Any

import yaml
from cluster.controlplane import ControlPlane
from cluster.errors import NotInTime
from cluster.objects import Objects, condition_of
from cluster.stack import OPERATOR_NAMESPACE, REPOSITORY, operator_user
from cluster.waiting import until
from outhaul_operator.leadership import LEASE

Json = dict[str, Any]

OPERATOR_LABEL = "app.kubernetes.io/name=outhaul-operator"
RESTRICTED: Json = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security contexts with which a namespace that enforces `restricted` takes a pod."""

_HEAD = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}


class Deployment:
    """The operator as a pod, and what its users do beside it.

    Args:
        control_plane: a cluster whose node has the images.
        folder: where kustomizations are written.
        operator_image: the operator's image.
        agent_image: the image of runs whose AgentConfigs name none.
        terraform_image: the image of runs in namespaces that are prepared for Terraform.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        folder: Path,
        *,
        operator_image: str,
        agent_image: str,
        terraform_image: str,
    ) -> None:
        self.control_plane = control_plane
        self._folder = folder
        self._operator_image, self._agent_image = operator_image, agent_image
        self._terraform_image = terraform_image
        self.restarts_at_first = 0
        """How often operators had to be started again until they were first available."""

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Runs kubectl as the cluster's administrator."""
        return self.control_plane.kubectl(*arguments, **options)

    # -- the operator

    def install(self) -> None:
        """Applies `deploy`, with the images of this machine, and waits until the operator's probes pass."""
        # Other tests apply and delete it on the same cluster; a namespace takes its time to go.
        path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}"
        until(lambda: not self._is_going(path), what=f"{OPERATOR_NAMESPACE} of an earlier test to be gone", timeout=60)
        # The API server is older than 1.25: see docs/install.md.
        self.kubectl("apply", "-k", str(self._operator_overlay()))
        try:
            self.wait_until_available()
        except NotInTime as error:
            raise NotInTime(f"{error}; the end of its log:\n{self.operator_log()[-4000:]}") from None
        statuses = [pod["status"]["containerStatuses"][0] for pod in self._operator_pods()]
        self.restarts_at_first = sum(status["restartCount"] for status in statuses)

    def uninstall(self) -> None:
        """Deletes what `install` applied, and does not wait."""
        self.kubectl("delete", "--wait=false", "--ignore-not-found", "-k", str(self._operator_overlay()))

    def wait_until_available(self) -> None:
        """Waits until the Deployment has both its pods, ready."""

        def available() -> bool:
            path = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/outhaul-operator"
            deployment = self.control_plane.request("GET", path)
            found = condition_of(deployment, "Available")
            current = deployment["status"].get("observedGeneration") == deployment["metadata"]["generation"]
            return current and found is not None and found["status"] == "True"

        until(available, what="the operator to be available", timeout=90)

    def operator_pod(self) -> Json:
        """Waits until one of the operator's pods leads, and is not on its way out, and returns it."""

        def leader() -> Json | None:
            path = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/{LEASE}"
            name = self.control_plane.request("GET", path)["spec"].get("holderIdentity")
            pods = [pod for pod in self._operator_pods() if pod["metadata"]["name"] == name]
            return pods[0] if pods and pods[0]["status"].get("containerStatuses") else None

        return until(leader, what="a pod of the operator that leads", timeout=60)

    def _operator_pods(self) -> list[Json]:
        path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods?labelSelector={OPERATOR_LABEL}"
        items: list[Json] = self.control_plane.request("GET", path)["items"]
        return [pod for pod in items if not pod["metadata"].get("deletionTimestamp")]

    def operator_process(self) -> int:
        """Waits for the process on this machine of the operator that leads, and returns its number."""
        uid = self.operator_pod()["metadata"]["uid"]

        def look() -> int | None:
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    ours = uid in (folder / "cgroup").read_text()
                    command = (folder / "cmdline").read_bytes()
                except OSError:  # it has ended meanwhile
                    continue
                if ours and b"outhaul-operator" in command:
                    return int(folder.name)
            return None

        return until(look, what=f"the process of the operator's pod {uid}")

    def operator_log(self, *, previous: bool = False) -> str:
        """What the operator that leads has printed, or the container before its last restart."""
        name = self.operator_pod()["metadata"]["name"]
        return self.kubectl("logs", "-n", OPERATOR_NAMESPACE, name, *(["--previous"] if previous else []))

    def refusals(self) -> list[str]:
        """What the API server refused to the operator for want of rights."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.control_plane.audit_events(operator_user())
            # A namespace that ends takes nothing new, with the same code: that is no want of a right.
            if event["responseStatus"]["code"] == 401
            or event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    # -- its users

    def namespace(self, name: str) -> Objects:
        """Makes a namespace with nothing in it, that admits restricted pods alone, as the one of a tenant does."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.control_plane.create_namespace(name, labels)
        return Objects(self.control_plane, name)

    def tenant(self, name: str) -> Objects:
        """Makes a namespace that is prepared for Terraform, after `deploy/examples/terraform-tenant`."""
        image = {"op": "replace", "path": "/spec/image", "value": self._terraform_image}
        folder = self._overlay(
            name,
            ["deploy/examples/terraform-tenant"],
            namespace=name,
            patches=[{"target": {"kind": "AgentConfig", "name": "default"}, "patch": yaml.safe_dump([image])}],
        )
        self.kubectl("apply", "-k", str(folder))
        return Objects(self.control_plane, name)

    def apply_sample(self, objects: Objects, path: str) -> None:
        """Applies something under `samples/`, as its comments say."""
        option = "-k" if (REPOSITORY / path).is_dir() else "-f"
        self.kubectl("apply", "-n", objects.namespace, option, str(REPOSITORY / path))

    def run_application(self, objects: Objects, manifest: str) -> str:
        """Runs a pod to its end, as an application that uses outputs, and returns what it printed.

        Args:
            objects: its namespace.
            manifest: the pod, as YAML.
        """
        name = yaml.safe_load(manifest)["metadata"]["name"]
        self.kubectl("apply", "-n", objects.namespace, "-f", "-", stdin=manifest)

        def phase(pod: Json) -> str | None:
            found = pod.get("status", {}).get("phase")
            return found if found in {"Succeeded", "Failed"} else None

        ended = objects.until("Pod", name, phase, what="it has ended")
        said = self.log(objects, name)
        assert ended == "Succeeded", said
        self.kubectl("delete", "pod", "-n", objects.namespace, name, "--force", "--grace-period=0")
        objects.gone("Pod", name)
        return said

    def log(self, objects: Objects, pod: str) -> str:
        """What a pod has printed."""
        return self.kubectl("logs", "-n", objects.namespace, pod)

    def printed(self, objects: Objects, pod: str, words: str) -> None:
        """Waits until a pod has printed something."""
        objects.until("Pod", pod, lambda one: one["status"].get("containerStatuses"), what="it has a container")
        started = lambda one: one["status"]["phase"] != "Pending"  # noqa: E731
        objects.until("Pod", pod, started, what="it has started")
        until(lambda: words in self.log(objects, pod), what=f"pod {pod} to print {words!r}", interval=0.2)

    # -- kustomizations

    def _operator_overlay(self) -> Path:
        name, _, tag = self._operator_image.rpartition(":")
        variables = [{"name": "OUTHAUL_AGENT_IMAGE", "value": self._agent_image}]
        patch = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "outhaul-operator", "namespace": OPERATOR_NAMESPACE},
            "spec": {"template": {"spec": {"containers": [{"name": "operator", "env": variables}]}}},
        }
        return self._overlay(
            "operator",
            ["deploy"],
            images=[{"name": "outhaul-operator", "newName": name, "newTag": tag}],
            patches=[{"patch": yaml.safe_dump(patch)}],
        )

    def _overlay(self, name: str, resources: list[str], **fields: Any) -> Path:
        """Writes a kustomization that changes directories of the repository, and returns its own directory."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        relative = [os.path.relpath(REPOSITORY / one, folder.resolve()) for one in resources]
        (folder / "kustomization.yaml").write_text(json.dumps({**_HEAD, "resources": relative, **fields}))
        return folder

    def _is_going(self, path: str) -> bool:
        names = self.control_plane.request("GET", "/api/v1/namespaces")["items"]
        return any(
            one["metadata"].get("deletionTimestamp")
            for one in names
            if f"/api/v1/namespaces/{one['metadata']['name']}" == path
        )
