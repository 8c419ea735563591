"""What Kubernetes does to pods of runs: each ends with a reason and Kubernetes' words, ran once, and leaves nothing.

The kubelet, the scheduler and the controllers decide. All of it happens side by side in one namespace, since most of
it takes its time. What a command, an operator or an image does wrong is in `test_interruptions`.
"""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster.node import Node
from cluster.objects import Json, Objects
from cluster.stack import operator_user
from cluster.waiting import until
from node.deployments import RESTRICTED, RESTRICTED_CONTAINER, Deployment

pytestmark = [pytest.mark.slow, pytest.mark.node, pytest.mark.versions]

LONG = 180.0
"""Seconds for what Kubernetes looks at each minute, or twice before it acts."""
SLOT, OTHER_SLOT = "test.outhaul.dev/slot", "test.outhaul.dev/other-slot"
LOST = "lost"
"""A node that has no kubelet."""

_WAIT = "echo begun; until [ -e /tmp/go ]; do sleep 0.1; done; echo ended"
_FILL = f"head -c 8000000 /dev/zero > large; {_WAIT}"
_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for what in ("not-ready", "unreachable")
]
PODS: dict[str, Json] = {
    "unscheduled": {"nodeSelector": {"disk": "none"}},
    "evicted": {"volumes": [{"name": "work", "emptyDir": {"sizeLimit": "1Mi"}}]},
    "overdue": {"activeDeadlineSeconds": 15},
    "killed": {},
    "unboxed": {},
    "preempted": {"containers": [{"name": "agent", "resources": {"limits": {SLOT: "1"}}}]},
    "displaced": {"containers": [{"name": "agent", "resources": {"limits": {OTHER_SLOT: "1"}}}]},
    "drained": {},
    "lost": {"nodeName": LOST, "tolerations": _TOLERATIONS},
    "agentless": {},
}
"""What the pods of each Installation have beside the usual."""
CONFIGS: dict[str, Json] = {"unscheduled": {"startTimeout": "10s"}}
SPECS: dict[str, Json] = {
    # The next attempt's pod waits until there is room for it again.
    "preempted": {"retry": {"limit": 1, "backoff": "1s"}},
    # Neither is there a node for an uninstall, nor surely the time.
    "lost": {"deletionPolicy": "Orphan"},
    "overdue": {"deletionPolicy": "Orphan"},
}


def command(name: str, script: str) -> Json:
    """A command that is a shell script."""
    return {"name": name, "command": ["sh", "-c", script]}


@pytest.fixture(scope="module")
def slots(node: Node) -> Iterator[None]:
    """The node has room for one pod each of two kinds that nobody else needs."""
    path = f"/api/v1/nodes/{node.name}/status"
    capacities = [f"/status/capacity/{slot.replace('/', '~1')}" for slot in (SLOT, OTHER_SLOT)]

    def patch(operations: list[Json]) -> None:
        node.control_plane.request("PATCH", path, operations, content_type="application/json-patch+json")

    patch([{"op": "add", "path": capacity, "value": "1"} for capacity in capacities])
    yield
    patch([{"op": "remove", "path": capacity} for capacity in capacities])


@pytest.fixture(scope="module")
def lost_node(node: Node) -> Iterator[None]:
    """A second node, whose kubelet has been heard once and never again."""
    plane = node.control_plane
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    taints = [{"key": "test.outhaul.dev/no-kubelet", "effect": "NoSchedule"}]
    plane.request("POST", "/api/v1/nodes", {"metadata": {"name": LOST}, "spec": {"taints": taints}})
    status = {"status": {"conditions": [{**ready, **times}], "capacity": {"pods": "10"}}}
    plane.request("PATCH", f"/api/v1/nodes/{LOST}/status", status, content_type="application/merge-patch+json")
    yield
    plane.kubectl("delete", "node", LOST, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def shared(outhaul: Deployment, node: Node, base_image: str, slots: None, lost_node: None) -> Iterator[Objects]:
    """A namespace with an Installation for each thing that may happen to its pod."""
    objects = outhaul.namespace(f"pods-{uuid.uuid4().hex[:10]}")
    for name, pod in PODS.items():
        config = {**CONFIGS.get(name, {}), "podTemplate": {"spec": pod}}
        if name == "agentless":
            config |= {"image": base_image, "pullPolicy": "Never"}
        objects.create("AgentConfig", name, spec=config)
        install = command("wait", _FILL if name == "evicted" else _WAIT)
        commands = {"install": [install], "uninstall": [command("stop", "true")]}
        objects.install(name, engine="exec", commands=commands, agentConfig={"name": name}, **SPECS.get(name, {}))
    seem_to_run(objects, run_of(objects, "lost"), node.address)
    yield objects
    outhaul.kubectl("delete", "node", LOST, "--ignore-not-found", "--wait=false")
    assert_nothing_is_left(objects)
    objects.delete_namespace()


def assert_nothing_is_left(objects: Objects) -> None:
    """No run had a second pod, and deleted Installations are uninstalled and leave nothing."""
    created = [
        one["objectRef"]
        for one in objects.control_plane.audit_events(operator_user())
        if one["verb"] == "create" and one["responseStatus"]["code"] == 201 and "objectRef" in one
    ]
    theirs = (objects.namespace, "pods", None)
    pods = [one for one in created if (one.get("namespace"), one["resource"], one.get("subresource")) == theirs]
    assert len(pods) == len(objects.names("AgentAction")) >= len(PODS)
    for name in PODS:
        # Some may still be at work, where not all tests were run.
        objects.annotate(name, {"outhaul.dev/cancel": "now"})
        objects.delete("Installation", name)
    for name in PODS:
        objects.gone("Installation", name, timeout=LONG)
    until(lambda: objects.left() == [], what="what the runs had is gone", timeout=LONG)


def run_of(objects: Objects, name: str) -> str:
    """Waits until an Installation has a run, and returns the first one's name."""
    objects.until("Installation", name, lambda one: one.get("status", {}).get("action"), what="it has a run")
    return str(objects.runs(name)[0]["metadata"]["name"])


def seem_to_run(objects: Objects, pod: str, address: str) -> None:
    """Writes that a pod runs, as the kubelet would that its node lacks; nobody answers at its address."""
    objects.until("Pod", pod, lambda one: one, what="it is there")
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    container = {"name": "agent", "state": running, "ready": True, "restartCount": 0, "image": "", "imageID": ""}
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": address, "conditions": [ready], "containerStatuses": [container]}
    path = f"/api/v1/namespaces/{objects.namespace}/pods/{pod}/status"
    kind = "application/merge-patch+json"
    objects.control_plane.request("PATCH", path, {"status": status}, content_type=kind)


def begun(outhaul: Deployment, objects: Objects, name: str) -> str:
    """Waits until the command of an Installation's first run has begun; returns the run's name."""
    run = run_of(objects, name)
    outhaul.printed(objects, run, "begun")
    return run


def failed(objects: Objects, name: str, reason: str, *words: str, timeout: float = 60.0) -> Json:
    """Waits until an Installation's first run has ended; it has failed for this reason, and says so everywhere."""
    run = objects.ended(run_of(objects, name), timeout=timeout)
    status: Json = run["status"]
    assert (status["phase"], status["reason"]) == ("Failed", reason), status
    for one in words:
        assert one in status["message"], status
    assert objects.said("AgentAction", run["metadata"]["name"], "Warning", reason) == status["message"]
    if name != "preempted":
        stalled = objects.condition("Installation", name, "Stalled", "True", "RunFailed")
        assert status["message"] in stalled["message"]
        assert objects.names("AgentAction").count(run["metadata"]["name"]) == len(objects.runs(name)) == 1
    return status


def assert_begun_once(outhaul: Deployment, objects: Objects, run: str) -> None:
    """The command was started once, and did not come to its end."""
    log = outhaul.log(objects, run)
    assert (log.count("begun"), log.count("ended\n")) == (1, 0), log


def taking(slot: str, image: str) -> Json:
    """The spec of a restricted pod that takes a slot of the node, but for what gives it the right to."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"limits": {slot: "1"}},
        "securityContext": RESTRICTED_CONTAINER,
    }
    return {"terminationGracePeriodSeconds": 0, "securityContext": RESTRICTED, "containers": [container]}


def kill(node: Node, container: str) -> None:
    """Has a container's first process ended by SIGKILL, as containerd's own command does it."""
    node.ctr("tasks", "kill", "--signal", "SIGKILL", container.removeprefix("containerd://"))


def sandbox(node: Node, pod: Json) -> str:
    """The container that holds a pod's network."""
    labels = {"io.cri-containerd.kind": "sandbox", "io.kubernetes.pod.uid": pod["metadata"]["uid"]}
    wanted = ",".join(f'labels."{key}"=={value}' for key, value in labels.items())
    return node.ctr("containers", "list", "--quiet", wanted).strip()


def test_no_node_takes_it(shared: Objects) -> None:
    """The scheduler's words are told, the run has never started, and its pod goes."""
    status = failed(shared, "unscheduled", "Unschedulable", "nodes are available", "startTimeout, 10 s")
    assert status["started"] is False
    shared.gone("Pod", run_of(shared, "unscheduled"))


def test_its_image_has_no_agent(shared: Objects) -> None:
    """The runtime's words are told, and the run has never started."""
    status = failed(shared, "agentless", "ContainerNotStarted", "outhaul-agent", "executable file not found")
    assert status["started"] is False


def test_its_agent_is_killed(shared: Objects, outhaul: Deployment, node: Node) -> None:
    """The container is not started again: what was half done may not be done twice."""
    run = begun(outhaul, shared, "killed")
    kill(node, shared.get("Pod", run)["status"]["containerStatuses"][0]["containerID"])
    status = failed(shared, "killed", "AgentCrashed", "ended with code 137")
    assert [(step["name"], step["phase"]) for step in status["steps"]] == [("wait", "Running")]
    assert shared.get("Pod", run)["status"]["containerStatuses"][0]["restartCount"] == 0
    assert_begun_once(outhaul, shared, run)


def test_its_sandbox_is_lost(shared: Objects, outhaul: Deployment, node: Node) -> None:
    """The kubelet stops a pod whose network is gone; nobody has cancelled the run, so it has failed."""
    run = begun(outhaul, shared, "unboxed")
    kill(node, sandbox(node, shared.get("Pod", run)))
    status = failed(shared, "unboxed", "PodLost", "was stopped", "told to stop before it was done")
    assert [(step["name"], step["phase"]) for step in status["steps"]] == [("wait", "Failed")]
    assert shared.get("Pod", run)["status"]["containerStatuses"][0]["restartCount"] == 0
    assert_begun_once(outhaul, shared, run)


def test_its_time_is_over(shared: Objects) -> None:
    """The kubelet's words are told where a pod template sets a deadline, however far the run has come."""
    failed(shared, "overdue", "TimedOut", "DeadlineExceeded: Pod was active on the node longer than", timeout=LONG)


def test_it_is_preempted(shared: Objects, outhaul: Deployment, node: Node, base_image: str) -> None:
    """The scheduler's words are told; it is a failure that a retry mends, once there is room."""
    run = begun(outhaul, shared, "preempted")
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    important["metadata"] = {"name": shared.namespace}
    spec = {"priorityClassName": shared.namespace, **taking(SLOT, base_image)}
    outhaul.kubectl("apply", "-f", "-", stdin=json.dumps(important))
    try:
        shared.create("Pod", "important", spec=spec)
        failed(shared, "preempted", "Evicted", "PreemptionByScheduler: default-scheduler: preempting")
        shared.condition("Installation", "preempted", "Reconciling", "True", "Unschedulable")
    finally:
        shared.delete("Pod", "important")
        outhaul.kubectl("delete", "priorityclass", shared.namespace)
    second = shared.runs("preempted")[1]["metadata"]["name"]
    assert second != run
    outhaul.printed(shared, second, "begun")
    outhaul.kubectl("exec", "-n", shared.namespace, second, "--", "touch", "/tmp/go")  # noqa: S108 - the pod's own
    assert shared.ready("preempted")["status"]["action"]["name"] == second
    log = outhaul.log(shared, second)
    assert (log.count("begun"), log.count("ended\n")) == (1, 1)


def test_its_node_is_drained(shared: Objects, outhaul: Deployment) -> None:
    """A pod that is evicted through the API stops, and the run has failed: nobody has cancelled it."""
    run = begun(outhaul, shared, "drained")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": run}}
    path = f"/api/v1/namespaces/{shared.namespace}/pods/{run}/eviction"
    shared.control_plane.request("POST", path, eviction)
    status = failed(shared, "drained", "Evicted", "EvictionByEvictionAPI", "told to stop before it was done")
    assert [(step["name"], step["phase"]) for step in status["steps"]] == [("wait", "Failed")]


def test_its_kubelet_needs_its_place(shared: Objects, outhaul: Deployment, node: Node, base_image: str) -> None:
    """A kubelet that has to admit a critical pod ends another one, and its words are told."""
    begun(outhaul, shared, "displaced")
    spec = {"priorityClassName": "system-node-critical", "nodeName": node.name, **taking(OTHER_SLOT, base_image)}
    critical = Objects(shared.control_plane, "kube-system")
    critical.create("Pod", shared.namespace, spec=spec)
    try:
        failed(shared, "displaced", "Evicted", "TerminationByKubelet")
    finally:
        critical.delete("Pod", shared.namespace)


def test_its_node_is_gone(shared: Objects, outhaul: Deployment) -> None:
    """While nobody knows what has become of the node, the run goes on; with the node it is lost, in Kubernetes' words.

    Until then it is told that nobody answers.
    """
    run = run_of(shared, "lost")
    is_going = lambda one: one["metadata"].get("deletionTimestamp")  # noqa: E731
    shared.until("Pod", run, is_going, what="Kubernetes wants it gone", timeout=LONG)
    is_told = lambda one: one["status"].get("reason") == "AgentUnreachable"  # noqa: E731
    shared.until("AgentAction", run, is_told, what="nobody answers")
    assert shared.get("AgentAction", run)["status"]["phase"] == "Running"
    # Somebody sees that it does not come back. What was on it goes a minute later.
    outhaul.kubectl("delete", "node", LOST)
    failed(shared, "lost", "PodLost", "DeletionByPodGC: PodGC: node no longer exists", timeout=LONG)
    shared.gone("Pod", run)


def test_it_takes_too_much_room(shared: Objects) -> None:
    """The kubelet evicts it, and its words are told."""
    failed(shared, "evicted", "Evicted", "Usage of EmptyDir volume", "exceeds the limit", timeout=LONG)
    assert shared.get("Pod", run_of(shared, "evicted"))["status"]["reason"] == "Evicted"


def test_its_agent_is_killed_while_it_holds_outputs(objects: Objects, outhaul: Deployment, node: Node) -> None:
    """The commands had succeeded, so nothing is run again: the outputs are read again, where that is possible."""
    hard = {"count/secrets": str(len(objects.all("Secret")) + 1)}
    objects.limit("none", hard)
    source: Any = {"command": {"command": ["echo", "up"], "format": "text", "name": "state"}}
    install = [command("apply", "echo begun")]
    objects.install("service", engine="exec", commands={"install": install}, outputs={"from": [source]})
    objects.condition("Installation", "service", "Reconciling", "True", "OutputsRefused")
    run = run_of(objects, "service")
    kill(node, objects.get("Pod", run)["status"]["containerStatuses"][0]["containerID"])
    objects.until("Pod", run, lambda one: one["status"]["phase"] == "Failed", what="its agent is gone")
    objects.delete("ResourceQuota", "none")
    status = objects.ended(run)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "OutputsLost")
    assert "every command succeeded" in status["message"]
    assert "code 137" in status["message"]
    objects.ready("service")
    assert [one["spec"]["action"] for one in objects.runs("service")] == ["install", "recollect"]
    assert objects.secret("service-outputs") == {"state": b"up\n"}
    assert outhaul.log(objects, run).count("begun") == 1
