"""An Installation from its creation on: installed, upgraded, asked for again; with a script and with Terraform."""

from typing import Any

import pytest
from cluster.objects import Objects, condition_of, requests_in
from cluster.stack import REPOSITORY, Stack, operator_user

pytestmark = pytest.mark.versions

MODULE = (REPOSITORY / "samples/terraform/main.tf").read_text()


def greeting(who: str, *, before: str = "true") -> dict[str, Any]:
    """The spec of an Installation that greets somebody."""
    script = f'{before}; printf "Hello, %s!" "$OUTHAUL_PARAMETER_who" > "$OUTHAUL_OUTPUTS/greeting"'
    return {
        "engine": "exec",
        "parameters": {"who": who},
        "commands": {"install": [{"name": "greet", "command": ["sh", "-c", script]}]},
    }


def database(**parameters: Any) -> dict[str, Any]:
    """The spec of an Installation of the sample module."""
    return {"engine": "terraform", "source": {"files": {"main.tf": MODULE}}, "parameters": parameters}


def test_a_script_s_outputs_reach_the_latest_secret(objects: Objects) -> None:
    """A file that a script leaves is an output: its bytes are in the Secret that the Installation's status names."""
    objects.install("greeting", **greeting("world"))
    status = objects.ready("greeting")["status"]
    assert status["binding"] == {"name": "greeting-outputs"}
    assert objects.secret("greeting-outputs") == {"greeting": b"Hello, world!"}


def test_the_status_tells_what_was_installed(objects: Objects) -> None:
    """A ready Installation's status names its run, its outputs and its phase, and nothing is under way."""
    objects.install("greeting", **greeting("world"))
    installation = objects.ready("greeting")
    status = installation["status"]
    assert (status["phase"], status["outputs"]) == ("Succeeded", ["greeting"])
    assert status["lastSucceeded"] == status["action"]
    assert (status["action"]["action"], status["action"]["number"]) == ("install", 1)
    assert {one["type"]: one["status"] for one in status["conditions"]} == {"Ready": "True", "OutputsReady": "True"}
    assert objects.said("Installation", "greeting", "Normal", "Dispatched")
    assert objects.said("Installation", "greeting", "Normal", "Succeeded")


def test_a_run_leaves_a_record(objects: Objects) -> None:
    """The record of a run has its name, says where each value is, and shows none that may be a secret."""
    objects.install("greeting", **greeting("world"))
    run = objects.ready("greeting")["status"]["action"]["name"]
    record = objects.get("InstallationOutput", run)
    assert record["spec"] | {"generation": 0} == {
        "name": "greeting",
        "namespace": objects.namespace,
        "installation": "greeting",
        "action": run,
        "generation": 0,
    }
    assert record["status"]["phase"] == "Current"
    (shown,) = record["status"]["outputs"]
    assert len(shown.pop("fingerprint")) == 64
    assert [shown] == [
        {
            "name": "greeting",
            "type": "string",
            "sensitive": True,
            "secretKeyRef": {"name": f"{run}-outputs", "key": "greeting"},
            "size": 13,
        }
    ]
    assert objects.secret(f"{run}-outputs") == {"greeting": b"Hello, world!"}


def test_a_run_tells_how_each_step_went(objects: Objects) -> None:
    """The AgentAction of a run that has ended says when, in which pod, and with which exit codes."""
    objects.install("greeting", **greeting("world"))
    run = objects.ready("greeting")["status"]["action"]["name"]
    status = objects.get("AgentAction", run)["status"]
    (step,) = status["steps"]
    assert (step["name"], step["phase"], step["exitCode"]) == ("greet", "Succeeded", 0)
    assert (status["phase"], status["pod"], status["output"]) == ("Succeeded", run, run)
    assert status["startedAt"] <= status["finishedAt"]
    wanted = {"Scheduled", "Started", "Completed", "OutputsCollected"}
    assert {one["type"] for one in status["conditions"] if one["status"] == "True"} == wanted


def test_a_changed_parameter_upgrades(objects: Objects) -> None:
    """A changed parameter gives a second record, the first is superseded, the same latest Secret has new values."""
    objects.install("greeting", **greeting("world"))
    objects.ready("greeting")
    before = objects.get("Secret", "greeting-outputs")["metadata"]
    objects.respec("greeting", parameters={"who": "moon"})
    objects.ready("greeting")
    first, second = (run["metadata"]["name"] for run in objects.runs("greeting"))
    assert objects.records("greeting") == {first: "Superseded", second: "Current"}
    assert objects.get("AgentAction", second)["spec"]["action"] == "upgrade"
    assert objects.secret("greeting-outputs") == {"greeting": b"Hello, moon!"}
    after = objects.get("Secret", "greeting-outputs")["metadata"]
    assert after["uid"] == before["uid"]
    assert after["annotations"]["outhaul.dev/run"] == second


def test_a_new_retry_annotation_asks_for_a_run(objects: Objects) -> None:
    """A value that was not there before runs the Installation once more, and once only; an empty one does not."""
    objects.install("greeting", **greeting("world"))
    objects.ready("greeting")
    objects.annotate("greeting", {"outhaul.dev/retry": "again"})
    objects.ran("greeting", 2)
    objects.annotate("greeting", {"unrelated": "annotation"})
    objects.annotate("greeting", {"outhaul.dev/retry": "", "outhaul.dev/recollect": "", "outhaul.dev/cancel": ""})
    objects.respec("greeting", outputs={"historyLimit": 3})
    objects.ready("greeting")
    objects.settle()
    assert [run["metadata"]["annotations"].get("outhaul.dev/retry") for run in objects.runs("greeting")] == [
        None,
        "again",
    ]


def test_equal_outputs_leave_the_latest_secret_alone(objects: Objects) -> None:
    """A run that brings what is there already does not touch the latest Secret, so nobody who watches it wakes up."""
    objects.install("greeting", **greeting("world"))
    objects.ready("greeting")
    before = objects.get("Secret", "greeting-outputs")["metadata"]["resourceVersion"]
    objects.annotate("greeting", {"outhaul.dev/retry": "again"})
    objects.ran("greeting", 2)
    objects.ready("greeting")
    assert objects.get("Secret", "greeting-outputs")["metadata"]["resourceVersion"] == before


def test_a_change_during_a_run_waits_for_its_end(objects: Objects) -> None:
    """A spec that changes while a run is under way waits, says so, and then supersedes what that run brought."""
    objects.install("greeting", **greeting("world", before="sleep 3"))
    objects.until("Installation", "greeting", lambda one: one.get("status", {}).get("action"), what="it has a run")
    (run,) = objects.runs("greeting")
    objects.condition("AgentAction", run["metadata"]["name"], "Started")
    objects.respec("greeting", **greeting("moon"))
    waiting = objects.condition("Installation", "greeting", "Ready", "False", "WaitingForRun")
    assert run["metadata"]["name"] in waiting["message"]
    objects.ready("greeting")
    first, second = objects.runs("greeting")
    assert first["status"]["phase"] == "Succeeded"
    assert first["status"]["finishedAt"] <= second["metadata"]["creationTimestamp"]
    assert objects.records("greeting")[first["metadata"]["name"]] == "Superseded"
    assert objects.secret("greeting-outputs") == {"greeting": b"Hello, moon!"}


def test_outputs_stay_readable_during_an_upgrade(objects: Objects) -> None:
    """While an upgrade runs the record stays Current, the outputs stay, and the Installation says Reconciling."""
    objects.install("greeting", **greeting("world"))
    first = objects.ready("greeting")["status"]["action"]["name"]
    objects.respec("greeting", **greeting("moon", before="sleep 3"))
    objects.condition("Installation", "greeting", "Reconciling")
    assert objects.records("greeting") == {first: "Current"}
    assert objects.secret("greeting-outputs") == {"greeting": b"Hello, world!"}
    assert objects.condition("Installation", "greeting", "OutputsReady")
    objects.ready("greeting")


def test_another_deletion_policy_starts_no_run(objects: Objects) -> None:
    """Changing deletionPolicy alone is taken note of, moves the finalizer, and runs nothing."""
    objects.install("greeting", **greeting("world"))
    assert objects.ready("greeting")["metadata"]["finalizers"] == ["outhaul.dev/uninstall"]
    objects.respec("greeting", deletionPolicy="Orphan")
    installation = objects.ready("greeting")
    assert installation["status"]["observedGeneration"] == 2
    assert "finalizers" not in installation["metadata"]
    objects.settle()
    assert len(objects.runs("greeting")) == 1


def test_nothing_is_run_again_because_a_run_was_cleaned_up(objects: Objects) -> None:
    """An Installation whose AgentAction and pod were deleted stays as it is: installed, with its outputs."""
    objects.install("greeting", **greeting("world"))
    run = objects.ready("greeting")["status"]["action"]["name"]
    objects.delete("Pod", run)
    objects.delete("AgentAction", run)
    objects.gone("AgentAction", run)
    objects.annotate("greeting", {"unrelated": "annotation"})
    objects.settle()
    assert objects.runs("greeting") == []
    assert condition_of(objects.ready("greeting"), "OutputsReady") is not None
    assert objects.secret("greeting-outputs") == {"greeting": b"Hello, world!"}


def test_a_run_s_pod_goes_after_its_time(objects: Objects) -> None:
    """`ttlSecondsAfterFinished` after the end of a run its pod and its own Secret go; what it brought stays."""
    objects.create("AgentConfig", "default", spec={"ttlSecondsAfterFinished": 1})
    objects.install("greeting", **greeting("world"))
    run = objects.ready("greeting")["status"]["action"]["name"]
    objects.gone("Pod", run)
    assert objects.names("Secret") == sorted([f"{run}-outputs", "greeting-outputs"])
    assert objects.records("greeting") == {run: "Current"}


def test_a_restarted_operator_leaves_the_idle_alone(objects: Objects, stack: Stack) -> None:
    """An operator that starts again starts nothing and writes nothing where nothing is to be done."""
    objects.install("greeting", **greeting("world"))
    objects.ready("greeting")
    objects.settle()
    before = len(stack.control_plane.audit_events(operator_user()))
    version = objects.get("Installation", "greeting")["metadata"]["resourceVersion"]
    stack.kill_operator()
    stack.start_operator()
    objects.settle()
    since = stack.control_plane.audit_events(operator_user())[before:]
    assert requests_in(since, objects.namespace, {"create", "update", "patch", "delete"}) == []
    assert objects.get("Installation", "greeting")["metadata"]["resourceVersion"] == version


def test_terraform_s_outputs_keep_their_types(tenant: Objects) -> None:
    """Terraform's outputs are typed in the record, exact in the Secret, and the sensitive one is only there."""
    tenant.create("ConfigMap", "module", data={"main.tf": MODULE})
    spec = {"source": {"configMapRef": {"name": "module"}}, "parameters": {"name": "shop", "zones": ["a", "b"]}}
    tenant.install("database", **spec)
    run = tenant.ready("database")["status"]["action"]["name"]
    outputs = tenant.get("InstallationOutput", run)["status"]["outputs"]
    assert {one["name"]: (one["type"], one.get("value")) for one in outputs} == {
        "host": ("string", "shop.db.internal"),
        "password": ("string", None),
        "port": ("number", 5432),
        "settings": ("object", {"pool": 10, "tls": True}),
        "zones": ("array", ["a", "b"]),
    }
    values = tenant.secret("database-outputs")
    assert len(values.pop("password")) == 24
    assert values == {
        "host": b"shop.db.internal",
        "port": b"5432",
        "settings": b'{"pool":10,"tls":true}',
        "zones": b'["a","b"]',
    }


def test_terraform_s_state_outlives_a_run(tenant: Objects) -> None:
    """An upgrade finds the state of the run before: what need not change, such as a made-up password, does not."""
    tenant.install("database", **database(name="shop"))
    tenant.ready("database")
    before = tenant.secret("database-outputs")
    tenant.respec("database", parameters={"name": "store"})
    tenant.ready("database")
    after = tenant.secret("database-outputs")
    assert (before["host"], after["host"]) == (b"shop.db.internal", b"store.db.internal")
    assert before["password"] == after["password"]
