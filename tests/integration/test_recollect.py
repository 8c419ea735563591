"""Outputs that are read again without applying anything: because somebody asks, or because they were lost."""

from typing import Any

from cluster.objects import Json, Objects
from cluster.stack import REPOSITORY, Stack

MODULE = (REPOSITORY / "samples/terraform/main.tf").read_text()
RECOLLECT = {"outhaul.dev/recollect": "now"}


def reader(before: str = "true", **fields: Any) -> dict[str, Any]:
    """The spec of an Installation whose only output, `word`, is read from a ConfigMap by a command."""
    source = {"command": {"command": ["cat", "word"], "format": "text", "name": "word"}}
    script = f"{before}; echo applied"
    return {
        "engine": "exec",
        "source": {"configMapRef": {"name": "words"}},
        "commands": {"install": [{"name": "apply", "command": ["sh", "-c", script]}]},
        "outputs": {"from": [source]},
        **fields,
    }


def writer(before: str = "true") -> dict[str, Any]:
    """The spec of an Installation whose output is a file of its pod."""
    script = f'{before}; printf here > "$OUTHAUL_OUTPUTS/word"'
    return {"engine": "exec", "commands": {"install": [{"name": "apply", "command": ["sh", "-c", script]}]}}


def lose_outputs(objects: Objects, stack: Stack, name: str, spec: Json) -> str:
    """Has a run succeed while there is no operator, and its agent give up waiting for one; returns the run's name."""
    objects.create("AgentConfig", "default", spec={"linger": "1s"})
    objects.install(name, **spec)
    action = objects.until("Installation", name, lambda one: one.get("status", {}).get("action"), what="it has a run")
    run: str = action["name"]
    objects.condition("AgentAction", run, "Started")
    stack.kill_operator()
    try:
        objects.until("Pod", run, lambda one: one["status"]["phase"] == "Succeeded", what="its agent has ended")
        objects.patch("AgentConfig", "default", {"spec": {"linger": "10m"}})
    finally:
        stack.start_operator()
    return run


def test_recollecting_publishes_without_applying(objects: Objects, stack: Stack) -> None:
    """The annotation reads outputs again and publishes them: a new record of the same generation, nothing applied."""
    objects.create("ConfigMap", "words", data={"word": "old"})
    objects.install("service", **reader())
    first = objects.ready("service")["status"]["action"]["name"]
    objects.patch("ConfigMap", "words", {"data": {"word": "new"}})
    objects.annotate("service", RECOLLECT)
    second = objects.ran("service", 2)
    name = second["metadata"]["name"]
    assert (second["spec"]["action"], second["spec"].get("commands", [])) == ("recollect", [])
    assert second["spec"]["installation"]["generation"] == 1
    objects.ready("service")
    assert objects.records("service") == {first: "Superseded", name: "Current"}
    assert objects.secret("service-outputs") == {"word": b"new"}
    assert "applied" in stack.container_log(objects.namespace, first)
    assert "applied" not in stack.container_log(objects.namespace, name)


def test_recollecting_is_asked_for_once(objects: Objects) -> None:
    """A value of the annotation counts once; whatever else changes, it is not done again."""
    objects.create("ConfigMap", "words", data={"word": "old"})
    objects.install("service", **reader())
    objects.ready("service")
    objects.annotate("service", RECOLLECT)
    objects.ran("service", 2)
    objects.ready("service")
    objects.annotate("service", {"unrelated": "annotation"})
    objects.settle()
    assert [one["spec"].get("action", "install") for one in objects.runs("service")] == ["install", "recollect"]
    objects.respec("service", parameters={"a": 1})
    objects.ran("service", 3)
    objects.ready("service")
    objects.settle()
    assert [one["spec"]["action"] for one in objects.runs("service")][1:] == ["recollect", "upgrade"]


def test_recollecting_from_terraform(tenant: Objects, stack: Stack) -> None:
    """Terraform's outputs are read from its state: the same values, a new record, and no apply."""
    tenant.install("database", engine="terraform", source={"files": {"main.tf": MODULE}}, parameters={"name": "shop"})
    tenant.ready("database")
    before = tenant.secret("database-outputs")
    tenant.annotate("database", RECOLLECT)
    run = tenant.ran("database", 2)["metadata"]["name"]
    tenant.ready("database")
    assert tenant.secret("database-outputs") == before
    assert tenant.records("database")[run] == "Current"
    assert "Apply complete" not in stack.container_log(tenant.namespace, run)


def test_files_cannot_be_recollected(objects: Objects) -> None:
    """Outputs that were files of a pod cannot be read again; the Installation says so, and what to do instead."""
    objects.install("service", **writer())
    objects.ready("service")
    objects.annotate("service", RECOLLECT)
    message = objects.condition("Installation", "service", "Stalled", "True", "CannotRecollect")["message"]
    assert "gone with the pod" in message
    assert "outhaul.dev/retry" in message
    assert objects.condition("Installation", "service", "OutputsReady")
    assert objects.secret("service-outputs") == {"word": b"here"}
    objects.annotate("service", {"outhaul.dev/retry": "then"})
    objects.ran("service", 2)
    objects.ready("service")


def test_lost_outputs_are_recollected(objects: Objects, stack: Stack) -> None:
    """A run whose agent ended before its outputs were stored is not run again: its outputs are read again."""
    objects.create("ConfigMap", "words", data={"word": "found"})
    lost = lose_outputs(objects, stack, "service", reader("sleep 5"))
    assert objects.ended(lost)["status"]["reason"] == "OutputsLost"
    objects.ready("service")
    first, second = objects.runs("service")
    assert (first["metadata"]["name"], second["spec"]["action"]) == (lost, "recollect")
    assert objects.secret("service-outputs") == {"word": b"found"}
    assert "applied" not in stack.container_log(objects.namespace, second["metadata"]["name"])


def test_lost_files_need_another_run(objects: Objects, stack: Stack) -> None:
    """Where lost outputs were files, nothing is run without being asked for, and the Installation says what to do."""
    lost = lose_outputs(objects, stack, "service", writer("sleep 5"))
    message = objects.condition("Installation", "service", "Stalled", "True", "CannotRecollect")["message"]
    assert "outhaul.dev/retry" in message
    assert [one["metadata"]["name"] for one in objects.runs("service")] == [lost]
    objects.annotate("service", {"outhaul.dev/retry": "again"})
    objects.ran("service", 2)
    objects.ready("service")
    assert objects.secret("service-outputs") == {"word": b"here"}
