"""What happens to a run whose operator, pod, image or memory is taken away while it works, on a real node."""

import json
import os
import signal
from typing import Any

import pytest
from cluster.objects import Objects, condition_of
from cluster.stack import OPERATOR_NAMESPACE
from node.deployments import Deployment

pytestmark = [pytest.mark.node, pytest.mark.versions]

# It applies until somebody lets it go on, so that a test has all the time that it needs meanwhile.
_MODULE = """
resource "terraform_data" "slow" {
  provisioner "local-exec" {
    command = "echo begun; until [ -e /tmp/go ]; do sleep 0.1; done; echo ended"
  }
}
output "id" { value = terraform_data.slow.id }
"""
_BEGUN, _ENDED = "(local-exec): begun", "(local-exec): ended"
_HUNGRY = [{"name": "eat", "command": ["python3", "-c", "x = bytearray(1 << 30)"]}]


def applying(outhaul: Deployment, objects: Objects) -> str:
    """Installs a module, waits until Terraform applies it, and returns the run's name."""
    objects.install("slow", source={"files": {"main.tf": _MODULE}})
    run: str = objects.until(
        "Installation", "slow", lambda one: one.get("status", {}).get("action", {}).get("name"), what="it has a run"
    )
    outhaul.printed(objects, run, _BEGUN)
    return run


def go_on(outhaul: Deployment, objects: Objects, run: str) -> None:
    """Lets Terraform finish."""
    outhaul.kubectl("exec", "-n", objects.namespace, run, "--", "touch", "/tmp/go")  # noqa: S108 - the pod's own


def assert_ran_once(outhaul: Deployment, objects: Objects, run: str) -> None:
    """One run, one pod, one apply, and the outputs of that."""
    assert objects.ready("slow")["status"]["action"]["name"] == run
    assert objects.names("AgentAction") == [run]
    assert objects.names("Pod") == [run]
    log = outhaul.log(objects, run)
    assert (log.count(_BEGUN), log.count(_ENDED), log.count("Apply complete!")) == (1, 1, 1)
    assert objects.records("slow") == {run: "Current"}
    assert objects.secret("slow-outputs").keys() == {"id"}


def limited(memory: str) -> dict[str, Any]:
    """The spec of an AgentConfig whose pods may take so much memory."""
    container = {"name": "agent", "resources": {"limits": {"memory": memory}}}
    return {"podTemplate": {"spec": {"containers": [container]}}}


def lock_holder(outhaul: Deployment, objects: Objects) -> str:
    """Who holds the lock of the module's state."""
    lease = json.loads(
        outhaul.kubectl("get", "-n", objects.namespace, "lease", "lock-tfstate-default-slow", "-o", "json")
    )
    return str(lease["spec"].get("holderIdentity") or "")


def test_an_operator_s_pod_is_deleted_while_terraform_applies(outhaul: Deployment, tenant: Objects) -> None:
    """The operator that waited finds the run where it is: Terraform ran once, and its outputs are there."""
    run = applying(outhaul, tenant)
    old = outhaul.operator_pod()["metadata"]["name"]
    outhaul.kubectl("delete", "pod", "-n", OPERATOR_NAMESPACE, old, "--force", "--grace-period=0")
    assert outhaul.operator_pod()["metadata"]["name"] != old
    go_on(outhaul, tenant, run)
    assert_ran_once(outhaul, tenant, run)
    outhaul.wait_until_available()


def test_an_operator_is_killed_while_terraform_applies(outhaul: Deployment, tenant: Objects) -> None:
    """SIGKILL of the process that leads; the run ends meanwhile, and the operator that leads next takes its outputs."""
    run = applying(outhaul, tenant)
    pod = outhaul.operator_pod()
    os.kill(outhaul.operator_process(), signal.SIGKILL)
    go_on(outhaul, tenant, run)
    assert_ran_once(outhaul, tenant, run)
    operators = Objects(outhaul.control_plane, OPERATOR_NAMESPACE)
    before = pod["status"]["containerStatuses"][0]["restartCount"]
    operators.until(
        "Pod",
        pod["metadata"]["name"],
        lambda one: one["status"]["containerStatuses"][0]["restartCount"] == before + 1,
        what="it was started again",
    )
    outhaul.wait_until_available()


def test_a_pod_is_deleted_while_terraform_applies(outhaul: Deployment, tenant: Objects) -> None:
    """Terraform hears of it and releases its lock; the run ends as cancelled, and nothing is run again by itself."""
    run = applying(outhaul, tenant)
    assert lock_holder(outhaul, tenant)
    outhaul.kubectl("delete", "pod", "-n", tenant.namespace, run)
    status = tenant.ended(run)["status"]
    assert (status["phase"], status["reason"]) in {("Cancelled", "Cancelled"), ("Failed", "PodLost")}
    assert "stop" in status["message"] or "gone" in status["message"]
    assert lock_holder(outhaul, tenant) == ""
    stalled = tenant.condition("Installation", "slow", "Stalled")
    assert run in stalled["message"]
    tenant.settle()
    assert tenant.names("AgentAction") == [run]


def test_a_run_is_cancelled_while_terraform_applies(outhaul: Deployment, tenant: Objects) -> None:
    """Terraform is told to stop, releases its lock, and the run says so; nothing is run again by itself."""
    run = applying(outhaul, tenant)
    assert lock_holder(outhaul, tenant)
    tenant.annotate("slow", {"outhaul.dev/cancel": "now"})
    status = tenant.ended(run)["status"]
    assert (status["phase"], status["reason"]) == ("Cancelled", "Cancelled")
    assert lock_holder(outhaul, tenant) == ""
    tenant.condition("Installation", "slow", "Stalled")
    tenant.settle()
    assert tenant.names("AgentAction") == [run]


def test_an_image_that_never_comes(objects: Objects) -> None:
    """A run that is given up has never started, by what the kubelet says in the end; nothing is to be uninstalled."""
    spec = {"image": "localhost/not-there:test", "pullPolicy": "IfNotPresent", "startTimeout": "10s"}
    objects.create("AgentConfig", "default", spec=spec)
    commands = {name: [{"name": name, "command": ["true"]}] for name in ("install", "uninstall")}
    objects.install("greeting", engine="exec", commands=commands)
    objects.condition("Installation", "greeting", "Stalled", "True", "RunFailed")
    (run,) = objects.runs("greeting")
    status = run["status"]
    assert (status["phase"], status["reason"], status.get("started")) == ("Failed", "ImagePullFailed", False)
    objects.gone("Pod", run["metadata"]["name"])
    objects.delete("Installation", "greeting")
    objects.gone("Installation", "greeting")


@pytest.mark.parametrize(("policy", "quoted"), [("Never", "ErrImageNeverPull"), ("IfNotPresent", "ErrImagePull")])
def test_an_image_that_is_not_there(objects: Objects, agent_image: str, policy: str, quoted: str) -> None:
    """The run and its Installation quote what the kubelet says; another run starts once that is mended."""
    absent = {"image": "localhost/not-there:test", "pullPolicy": policy}
    objects.create("AgentConfig", "default", spec=absent)
    objects.install("greeting", engine="exec", commands={"install": [{"name": "greet", "command": ["true"]}]})
    ready = objects.condition("Installation", "greeting", "Ready", "False", "ImagePullFailed")
    (run,) = objects.runs("greeting")
    assert quoted in objects.said("AgentAction", run["metadata"]["name"], "Warning", "ImagePullFailed")
    assert "localhost/not-there:test" in str(objects.events("AgentAction", run["metadata"]["name"]))
    assert "cannot get its image" in ready["message"]
    objects.patch("AgentConfig", "default", {"spec": {"image": agent_image}})
    objects.annotate("greeting", {"outhaul.dev/retry": "mended"})
    objects.gone("Pod", run["metadata"]["name"])
    assert objects.ran("greeting", 2)["status"]["phase"] == "Succeeded"


def test_a_command_that_takes_too_much_memory(objects: Objects) -> None:
    """The step is named, and that memory may be why."""
    objects.create("AgentConfig", "default", spec=limited("128Mi"))
    objects.install("hungry", engine="exec", commands={"install": _HUNGRY})
    status = objects.ran("hungry", 1)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "CommandFailed")
    assert "'eat'" in status["message"]
    assert "memory" in status["message"]
    assert [(step["name"], step["exitCode"]) for step in status["steps"]] == [("eat", 137)]


def test_an_agent_that_has_too_little_memory(objects: Objects) -> None:
    """What Kubernetes says of the pod, OOMKilled, is the reason of the run's failure, with what to do."""
    objects.create("AgentConfig", "default", spec=limited("12Mi"))
    objects.install("hungry", engine="exec", commands={"install": _HUNGRY})
    status = objects.ran("hungry", 1)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "OOMKilled")
    assert "podTemplate" in status["message"]
    stalled = condition_of(objects.get("Installation", "hungry"), "Stalled")
    assert stalled is not None
    assert "memory" in stalled["message"]
