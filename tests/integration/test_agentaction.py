"""A run that somebody writes by hand: an AgentAction without an Installation."""

import base64
from typing import Any

import pytest
from cluster.objects import Json, Objects, condition_of
from cluster.stack import Stack

OUTPUTS = [{"directory": {"path": "/outhaul/outputs"}}]


def action(script: str, **fields: Any) -> dict[str, Any]:
    """The spec of a run of one shell script, whose files are its outputs."""
    return {"commands": [{"name": "main", "command": ["sh", "-c", script]}], "outputs": OUTPUTS, **fields}


def succeeded(objects: Objects, name: str) -> None:
    """Waits until a run has succeeded."""
    status = objects.ended(name)["status"]
    assert status["phase"] == "Succeeded", status


def refused(objects: Objects, name: str) -> str:
    """Waits until a run has failed for its spec, before it had a pod; returns the message of object and event."""
    run = objects.ended(name)
    status: Json = run["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "InvalidSpec")
    failed = condition_of(run, "Failed")
    assert failed is not None
    assert (failed["status"], failed["message"]) == ("True", status["message"])
    assert objects.said("AgentAction", name, "Warning", "InvalidSpec") == status["message"]
    assert "create a corrected AgentAction" in status["message"]
    assert objects.names("Pod") == []
    message: str = status["message"]
    return message


def test_a_run_by_hand_brings_its_outputs(objects: Objects) -> None:
    """A run by hand gets a record and a Secret of its own, says that it succeeded, and has no latest Secret."""
    objects.create("AgentAction", "by-hand", spec=action('printf value > "$OUTHAUL_OUTPUTS/key"'))
    succeeded(objects, "by-hand")
    record = objects.get("InstallationOutput", "by-hand")
    assert record["status"]["phase"] == "Current"
    assert "installation" not in record["spec"]
    assert objects.secret("by-hand-outputs") == {"key": b"value"}
    assert objects.names("Secret") == ["by-hand-outputs", "by-hand-run"]
    assert objects.said("AgentAction", "by-hand", "Normal", "Succeeded")


def test_a_run_without_outputs_succeeds(objects: Objects) -> None:
    """A run that brings nothing has a record all the same, and an empty Secret that can be mounted."""
    objects.create("AgentAction", "by-hand", spec=action("true"))
    succeeded(objects, "by-hand")
    assert objects.get("InstallationOutput", "by-hand")["status"]["outputs"] == []
    assert objects.secret("by-hand-outputs") == {}


def test_porter_s_form(objects: Objects) -> None:
    """`command` with `args`, as Porter's AgentAction has them, is one step that is called run."""
    spec = {"command": ["sh", "-c"], "args": ['cp "$0" "$OUTHAUL_OUTPUTS"', "hello"], "outputs": OUTPUTS}
    files = {"hello": base64.b64encode(b"world").decode()}
    objects.create("AgentAction", "by-hand", spec=spec | {"files": files})
    (step,) = objects.ended("by-hand")["status"]["steps"]
    assert (step["name"], step["phase"]) == ("run", "Succeeded")
    assert objects.secret("by-hand-outputs") == {"hello": b"world"}


def test_the_environment_comes_from_where_it_is_kept(objects: Objects) -> None:
    """Variables come from the spec, a ConfigMap and a Secret, as in a pod; the operator reads neither."""
    objects.create("ConfigMap", "settings", data={"COLOUR": "green"})
    objects.create("Secret", "credentials", stringData={"token": "hunter2"})
    reference = {"secretKeyRef": {"name": "credentials", "key": "token"}}
    spec = action(
        'printf "$COLOUR $SIZE $TOKEN" > "$OUTHAUL_OUTPUTS/all"',
        envFrom=[{"configMapRef": {"name": "settings"}}],
        env=[{"name": "SIZE", "value": "large"}, {"name": "TOKEN", "valueFrom": reference}],
    )
    objects.create("AgentAction", "by-hand", spec=spec)
    succeeded(objects, "by-hand")
    assert objects.secret("by-hand-outputs") == {"all": b"green large hunter2"}


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        pytest.param({}, "either commands, or command with args", id="neither form"),
        pytest.param(action("true", command=["true"]), "either commands, or command with args", id="both forms"),
        pytest.param(
            action("true", outputs=[{"directory": {"path": "/a"}, "manifest": {"path": "b"}}]),
            "spec.outputs[0] must have exactly one of directory, command and manifest",
            id="two sources in one",
        ),
        pytest.param(
            action("true", outputs=[{"command": {"command": ["date"], "format": "text"}}]),
            "spec.outputs[0].command.name is needed with format text",
            id="text without a name",
        ),
        pytest.param(action("true", files={"../a": "YQ=="}), "spec.files: '../a' has '..'", id="a path that leads out"),
        pytest.param(
            action("true", files={"a": "YQ==", "a/b": "YQ=="}),
            "'a' and 'a/b' cannot both be files",
            id="a file as a directory",
        ),
        pytest.param(action("echo a\0b"), "spec.commands[0].command[2] has a NUL character", id="a NUL"),
        pytest.param(
            action("true", env=[{"name": "OUTHAUL_PORT", "value": "1"}]),
            "OUTHAUL_PORT is a variable that the agent needs",
            id="a variable of the agent's",
        ),
    ],
)
def test_a_mistake_in_a_run_by_hand(objects: Objects, spec: Json, fault: str) -> None:
    """A run with a mistake in its spec fails before it has a pod, and the message names the mistake and the remedy."""
    objects.create("AgentAction", "by-hand", spec=spec)
    assert fault in refused(objects, "by-hand")


def test_a_missing_agent_config(objects: Objects) -> None:
    """A run by hand waits for an AgentConfig that it names, says so, and starts once it is there."""
    objects.create("AgentAction", "by-hand", spec=action("true", agentConfig={"name": "special"}))
    waiting = objects.condition("AgentAction", "by-hand", "Started", "False", "AgentConfigNotFound")
    assert objects.said("AgentAction", "by-hand", "Warning", "AgentConfigNotFound") == waiting["message"]
    objects.create("AgentConfig", "special", spec={})
    succeeded(objects, "by-hand")


@pytest.mark.parametrize(("taken", "runs"), [("by-hand-run", False), ("by-hand-outputs", True)])
def test_a_secret_in_the_way(objects: Objects, stack: Stack, taken: str, *, runs: bool) -> None:
    """A Secret that is not ours but has a name that a run needs fails it by that name, and is left as it is."""
    objects.create("Secret", taken, stringData={"mine": "alone"})
    objects.create("AgentAction", "by-hand", spec=action('echo ran; printf value > "$OUTHAUL_OUTPUTS/key"'))
    status = objects.ended("by-hand")["status"]
    assert status["reason"] == "NameTaken"
    assert f"Secret {taken} exists and is not of this run" in status["message"]
    assert objects.secret(taken) == {"mine": b"alone"}
    assert ("ran" in stack.container_log(objects.namespace, "by-hand")) is runs


def test_a_pod_in_the_way(objects: Objects) -> None:
    """A pod that has the name of a run's but is not the run's fails it, and is left alone."""
    container = {"name": "c", "image": "any", "command": ["sleep", "600"]}
    spec = {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "containers": [container]}
    uid = objects.create("Pod", "by-hand", spec=spec)["metadata"]["uid"]
    objects.create("AgentAction", "by-hand", spec=action("true"))
    status = objects.ended("by-hand")["status"]
    assert status["reason"] == "NameTaken"
    assert "pod by-hand exists and is not of this run" in status["message"]
    assert objects.get("Pod", "by-hand")["metadata"]["uid"] == uid


def test_a_run_that_only_claims_an_installation(objects: Objects) -> None:
    """A run that names an Installation it is not owned by is refused, and changes nothing for the Installation."""
    command = {"name": "main", "command": ["sh", "-c", 'printf real > "$OUTHAUL_OUTPUTS/key"']}
    objects.install("service", engine="exec", commands={"install": [command]})
    installation = objects.ready("service")
    claim = {"name": "service", "uid": installation["metadata"]["uid"], "generation": 9, "number": 9}
    objects.create("AgentAction", "by-hand", spec=action('printf forged > "$OUTHAUL_OUTPUTS/key"', installation=claim))
    run = objects.ended("by-hand")["status"]
    assert (run["phase"], run["reason"]) == ("Failed", "InvalidSpec")
    assert "spec.installation is for the operator's own runs" in run["message"]
    objects.settle()
    assert objects.secret("service-outputs") == {"key": b"real"}
    assert objects.get("Installation", "service")["status"]["action"] == installation["status"]["action"]
    run = installation["status"]["action"]["name"]
    assert objects.get("InstallationOutput", run)["status"]["phase"] == "Current"


def test_a_deleted_run_takes_its_pod_along(objects: Objects) -> None:
    """Deleting a run that is under way ends its pod, and nobody starts it again."""
    objects.create("AgentAction", "by-hand", spec=action("sleep 600"))
    objects.condition("AgentAction", "by-hand", "Started")
    objects.delete("AgentAction", "by-hand")
    objects.gone("AgentAction", "by-hand")
    objects.settle()
    assert objects.names("AgentAction") == []
