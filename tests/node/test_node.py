"""The node that the tests run real pods on: it does what a node does, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster import images, remains
from cluster.controlplane import ControlPlane
from cluster.node import Node
from cluster.remains import Claim
from cluster.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.versions, pytest.mark.usefixtures("node")]

Finished = Callable[..., dict[str, Any]]

_ASK_API = """
import os, ssl, urllib.error, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}/api/v1/secrets"
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(f"{account}/token").read()})
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=f"{account}/ca.crt"))
except urllib.error.HTTPError as error:
    print(url, error.code, error.read().decode())
"""

_MODULE = """
terraform {
  backend "kubernetes" { secret_suffix = "pod" }
}
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "echo started; exec sleep 60" }
}
"""

_START_AND_WAIT = """
import sys, time
from pathlib import Path
from cluster import images
from cluster.controlplane import ControlPlane
from cluster.node import Node
plane = ControlPlane(Path(sys.argv[1])).start()
node = Node(plane, pause=images.pause()).start()
node.load(images.base())
plane.kubectl("run", "sleeper", f"--image={images.BASE}", "--restart=Never", "--", "sleep", "3600")
plane.kubectl("wait", "pod/sleeper", "--for=condition=Ready")
print(node.claim.number, flush=True)
time.sleep(3600)
"""


def start_pod(control_plane: ControlPlane, namespace: str, name: str, container: dict[str, Any], **spec: Any) -> str:
    """Makes a pod of one container, and returns its path in the API."""
    pod = {
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "imagePullPolicy": "Never", **container}],
            **spec,
        },
    }
    control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def running(control_plane: ControlPlane, pod: str) -> dict[str, Any]:
    """Waits until a pod is ready and returns its status."""

    def status() -> dict[str, Any] | None:
        found: dict[str, Any] = control_plane.request("GET", pod)["status"]
        ready = any(each.get("ready") for each in found.get("containerStatuses", []))
        return found if ready else None

    return until(status, what=f"{pod} to be ready", timeout=60)


@pytest.fixture
def finished(control_plane: ControlPlane, namespace: str, base_image: str) -> Finished:
    """Runs a command in a pod to its end: `finished("name", "exit 1")` returns how the container ended."""

    def run(name: str, script: str, volumes: Any = (), **container: Any) -> dict[str, Any]:
        container = {"image": base_image, "command": ["sh", "-c", script], **container}
        pod = start_pod(control_plane, namespace, name, container, volumes=list(volumes))

        def terminated() -> dict[str, Any] | None:
            statuses = control_plane.request("GET", pod)["status"].get("containerStatuses", [])
            return next((each["state"].get("terminated") for each in statuses), None)

        return until(terminated, what=f"{pod} to end", timeout=60)

    return run


def left(claim: Claim) -> list[str]:
    """What is on this machine of a node, in words."""
    found = [f"process {pid}" for pid in remains.processes(claim)]
    found += [f"control group {path}" for path in remains.control_groups(claim)]
    found += [f"firewall rule {rule}" for _, rule in remains.rules(claim)]
    found += [f"bridge {link['ifname']}" for link in remains.links() if link["ifname"] == claim.name]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found + [f"mount {mount}" for mount in mounts if str(claim.root) in mount]


def test_it_is_ready_under_an_address_of_its_own_network(node: Node, control_plane: ControlPlane) -> None:
    """The node is ready and its address is the one that pods and the API server use."""
    status = control_plane.request("GET", f"/api/v1/nodes/{node.name}")["status"]
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"
    assert {"type": "InternalIP", "address": node.address} in status["addresses"]


def test_a_pod_ends_with_its_commands_exit_code(finished: Finished) -> None:
    """What a container's command returns is in the pod's status."""
    assert finished("seven", "exit 7")["exitCode"] == 7


def test_a_termination_message_is_reported(finished: Finished) -> None:
    """What a container writes to its termination log is in the pod's status."""
    assert finished("last-words", "printf farewell > /dev/termination-log")["message"] == "farewell"


def test_a_pod_that_takes_too_much_memory_is_killed_for_it(finished: Finished) -> None:
    """A memory limit holds, and the status says that it did."""
    hungry = "exec python3 -c 'x = bytearray(300 << 20)'"
    assert finished("hungry", hungry, resources={"limits": {"memory": "64Mi"}})["reason"] == "OOMKilled"


def test_logs_can_be_read(finished: Finished, control_plane: ControlPlane, namespace: str) -> None:
    """`kubectl logs` shows what a container printed, on both streams."""
    finished("talker", "echo out; echo err >&2")
    assert sorted(control_plane.kubectl("logs", "--namespace", namespace, "talker").split()) == ["err", "out"]


def test_a_secret_is_mounted(finished: Finished, control_plane: ControlPlane, namespace: str) -> None:
    """A Secret's bytes are in the file that it is mounted as."""
    secret = {"metadata": {"name": "given"}, "stringData": {"word": "open sesame"}}
    control_plane.request("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    volume = {"name": "given", "secret": {"secretName": "given"}}
    mount = {"name": "given", "mountPath": "/given"}
    ended = finished("reader", "cat /given/word > /dev/termination-log", [volume], volumeMounts=[mount])
    assert ended["message"] == "open sesame"


def test_a_pod_calls_the_api_at_its_service_address(
    finished: Finished, control_plane: ControlPlane, namespace: str
) -> None:
    """A service account's token is known to the API server, which says what that account may not do."""
    finished("caller", 'exec python3 -c "$SCRIPT"', env=[{"name": "SCRIPT", "value": _ASK_API}])
    log = control_plane.kubectl("logs", "--namespace", namespace, "caller")
    url, code, answer = log.split(" ", 2)
    assert (url, code) == ("https://10.96.0.1:443/api/v1/secrets", "403")
    assert f"system:serviceaccount:{namespace}:default" in json.loads(answer)["message"]


def test_this_machine_and_other_pods_reach_a_pod(
    finished: Finished, control_plane: ControlPlane, namespace: str, base_image: str
) -> None:
    """A pod's address answers on the host and in another pod; commands can be run in it meanwhile."""
    serve = "cd /srv && echo hello > index.html && exec python3 -m http.server 8000"
    pod = start_pod(control_plane, namespace, "server", {"image": base_image, "command": ["sh", "-c", serve]})
    url = f"http://{running(control_plane, pod)['podIP']}:8000/"
    until(lambda: _answers(url), what=f"{url} to answer")
    fetch = f"exec python3 -c 'import urllib.request as r; print(r.urlopen(\"{url}\").read())'"
    assert finished("client", fetch)["exitCode"] == 0
    listing = control_plane.kubectl("exec", "--namespace", namespace, "server", "--", "ls", "/srv")
    assert listing.strip() == "index.html"


def test_the_agents_image_runs_as_an_ordinary_user(
    finished: Finished, control_plane: ControlPlane, namespace: str, agent_image: str
) -> None:
    """The image's own user is not root, needs no writable root, and has the agent on its PATH."""
    script = "id -u; command -v outhaul-agent; exec python3 -c 'import outhaul_agent, outhaul_grpc'"
    restricted = {
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    ended = finished("agent", script, image=agent_image, securityContext=restricted)
    log = control_plane.kubectl("logs", "--namespace", namespace, "agent")
    assert (ended["exitCode"], log.split()) == (0, ["65532", "/opt/outhaul/bin/outhaul-agent"]), log


def test_the_terraform_image_runs_terraform(
    finished: Finished, control_plane: ControlPlane, namespace: str, terraform_image: str
) -> None:
    """The image adds a working `terraform` to the agent's."""
    ended = finished("terraform", "terraform version && command -v outhaul-agent", image=terraform_image)
    log = control_plane.kubectl("logs", "--namespace", namespace, "terraform")
    assert ended["exitCode"] == 0, log
    assert log.startswith("Terraform v1.")


def test_a_pod_deleted_while_terraform_runs_leaves_no_lock(
    control_plane: ControlPlane, namespace: str, terraform_image: str
) -> None:
    """State and lock are kept in the cluster by the pod's own account; SIGTERM of the pod releases the lock."""
    kubectl = partial(control_plane.kubectl, "--namespace", namespace)
    kubectl("create", "role", "state", "--verb=*", "--resource=secrets,leases.coordination.k8s.io")
    kubectl("create", "rolebinding", "state", "--role=state", f"--serviceaccount={namespace}:default")
    script = 'cd /tmp && echo "$MODULE" > main.tf && terraform init && exec terraform apply -auto-approve -no-color'
    environment = {"MODULE": _MODULE, "KUBE_IN_CLUSTER_CONFIG": "true", "KUBE_NAMESPACE": namespace}
    container = {
        "image": terraform_image,
        "command": ["sh", "-c", script],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    pod = start_pod(control_plane, namespace, "apply", container, terminationGracePeriodSeconds=30)
    running(control_plane, pod)
    until(lambda: "(local-exec): started" in kubectl("logs", "apply"), what="the provisioner to start")
    holder = ("get", "lease", "lock-tfstate-default-pod", "--output=jsonpath={.spec.holderIdentity}")
    assert kubectl(*holder)
    kubectl("delete", "pod", "apply")
    assert not kubectl(*holder)


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name leaves room for those of the sockets in it, as a test's own name does not."""
    return tmp_path_factory.mktemp("n")


@pytest.mark.usefixtures("base_image")
def test_a_stopped_node_leaves_nothing(short: Path, node: Node) -> None:
    """After `stop` no process, control group, rule, bridge or mount is left; a second node is not touched."""
    with ControlPlane(short / "cluster") as plane:
        second = Node(plane, pause=images.pause()).start()
        claim = second.claim
        second.load(images.base())
        plane.kubectl("run", "sleeper", f"--image={images.BASE}", "--restart=Never", "--", "sleep", "3600")
        plane.kubectl("wait", "pod/sleeper", "--for=condition=Ready")
        assert claim.number != node.claim.number
        assert {words.split()[0] for words in left(claim)} == {"process", "control", "firewall", "bridge"}
        second.stop()
        assert left(claim) == []
        assert plane.kubectl("get", "nodes,pods") == ""
    assert node.ctr("version")
    assert {words.split()[0] for words in left(node.claim)} >= {"control", "firewall", "bridge"}


@pytest.mark.usefixtures("base_image")
def test_what_a_killed_run_left_is_removed_by_the_next(short: Path, node: Node) -> None:
    """A run that was killed leaves pods, rules and a bridge; the next start finds and removes just those."""
    script = [sys.executable, "-c", _START_AND_WAIT, str(short / "cluster")]
    environment = {**os.environ, "PYTHONPATH": str(Path(remains.__file__).parents[1])}
    with subprocess.Popen(script, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        claim = Claim(int(run.stdout.readline()), short / "cluster" / "node")
        run.send_signal(signal.SIGKILL)
    assert left(claim)
    until(lambda: claim in remains.sweep_leftovers(), what="the leftovers to be seen as such", timeout=10)
    assert left(claim) == []
    assert node.ctr("version")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - http, made above
            return bool(answer.read() == b"hello\n")
    except OSError:
        return False
