"""Runs whose agent never starts: they end after their AgentConfig's `startTimeout`, with the words of Kubernetes."""

from typing import Any

from cluster.objects import Json, Objects
from cluster.stack import Stack

NOWHERE = {"podTemplate": {"spec": {"nodeSelector": {"disk": "none"}}}}
SPEC: dict[str, Any] = {
    "engine": "exec",
    "commands": {
        "install": [{"name": "start", "command": ["true"]}],
        "uninstall": [{"name": "stop", "command": ["true"]}],
    },
}


def given_up(objects: Objects, config: dict[str, Any], **fields: Any) -> Json:
    """Installs a service with this AgentConfig, and waits until it is stalled; returns its newest run's status."""
    objects.create("AgentConfig", "default", spec=config)
    objects.install("service", **SPEC, **fields)
    objects.condition("Installation", "service", "Stalled", "True", "RunFailed")
    status: Json = objects.runs("service")[-1]["status"]
    assert (status["phase"], status["started"]) == ("Failed", False)
    assert "it was given up after the AgentConfig's startTimeout, 5 s" in status["message"]
    return status


def test_an_image_that_never_comes(objects: Objects) -> None:
    """The pod goes, another attempt may follow, and a deletion has nothing to uninstall: nothing was installed."""
    config = {"image": "outhaul-does-not-exist", "startTimeout": "5s"}
    status = given_up(objects, config, retry={"limit": 1, "backoff": "1s"})
    assert status["reason"] == "ImagePullFailed"
    assert "outhaul-does-not-exist" in status["message"]
    runs = [one["metadata"]["name"] for one in objects.runs("service")]
    assert len(runs) == 2
    for run in runs:
        objects.gone("Pod", run)
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")


def test_a_pod_that_no_node_takes(objects: Objects) -> None:
    """The scheduler's words are the reason."""
    status = given_up(objects, {**NOWHERE, "startTimeout": "5s"})
    assert status["reason"] == "Unschedulable"
    assert "0/1 nodes are available" in status["message"]
    assert objects.names("Pod") == []


def test_a_pod_that_is_refused(objects: Objects) -> None:
    """A run that never got a pod waits no longer than one whose pod does not start."""
    objects.limit("none", {"pods": "0"})
    status = given_up(objects, {"startTimeout": "5s"})
    assert status["reason"] == "PodRefused"
    assert "exceeded quota: none" in status["message"]


def test_a_missing_volume(objects: Objects) -> None:
    """What the kubelet says in events alone is the reason."""
    status = given_up(objects, {"startTimeout": "5s"}, source={"configMapRef": {"name": "nowhere"}})
    assert status["reason"] in {"VolumeNotReady", "PodPending"}


def test_the_wait_goes_on_over_a_restart(objects: Objects, stack: Stack, alive: None) -> None:
    """An operator that starts in the middle of it makes no second pod, and gives the run up all the same."""
    objects.create("AgentConfig", "default", spec={**NOWHERE, "startTimeout": "10s"})
    objects.install("service", **SPEC)
    objects.condition("Installation", "service", "Ready", "False", "Unschedulable")
    (run,) = objects.names("AgentAction")
    before = objects.get("Pod", run)["metadata"]["uid"]
    stack.kill_operator()
    assert objects.get("Pod", run)["metadata"]["uid"] == before
    stack.start_operator()
    assert objects.ended(run)["status"]["reason"] == "Unschedulable"
    made = [
        one
        for one in stack.control_plane.audit_events()
        if one["verb"] == "create" and one.get("objectRef", {}).get("namespace") == objects.namespace
    ]
    assert sum(one["objectRef"]["resource"] == "pods" and "subresource" not in one["objectRef"] for one in made) == 1
