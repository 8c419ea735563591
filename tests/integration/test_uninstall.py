"""The end of what was installed: deletion, deletion without an uninstall, and `uninstalled: true`."""

from typing import Any

import pytest
from cluster.objects import Json, Objects
from cluster.stack import REPOSITORY, Stack
from cluster.waiting import until

pytestmark = pytest.mark.versions

COLLECTED = 90.0
"""Seconds: the garbage collector of a new cluster learns of our kinds within a minute."""


def service(uninstall: str = "echo stopped", **fields: Any) -> dict[str, Any]:
    """The spec of an Installation that has something to uninstall."""
    install = 'printf up > "$OUTHAUL_OUTPUTS/state"'
    return {
        "engine": "exec",
        "commands": {
            "install": [{"name": "start", "command": ["sh", "-c", install]}],
            "uninstall": [{"name": "stop", "command": ["sh", "-c", uninstall]}],
        },
        **fields,
    }


def second_run(objects: Objects, name: str) -> str:
    """Waits until an Installation has its second run; returns the run's name."""

    def probe(obj: Json) -> str | None:
        action = obj["status"]["action"]
        return str(action["name"]) if action["number"] == 2 else None

    return objects.until("Installation", name, probe, what="it has a second run")


def test_deletion_uninstalls_and_leaves_nothing(objects: Objects, stack: Stack) -> None:
    """A deleted Installation stays until its uninstall run has succeeded, and then leaves nothing at all."""
    objects.install("service", **service("sleep 2; echo stopped"))
    objects.ready("service")
    objects.delete("Installation", "service")
    run = second_run(objects, "service")
    assert objects.get("AgentAction", run)["spec"]["action"] == "uninstall"
    objects.gone("Installation", "service")
    assert "stopped" in stack.container_log(objects.namespace, run)
    until(lambda: not objects.left(), what="nothing is left", timeout=COLLECTED)


def test_records_are_invalid_once_the_uninstall_has_begun(objects: Objects) -> None:
    """From the start of an uninstall on, the records do not pass for current any more."""
    objects.install("service", **service("sleep 2"))
    objects.ready("service")
    objects.delete("Installation", "service")
    second_run(objects, "service")
    assert set(objects.records("service").values()) == {"Invalidated"}


def test_a_failed_uninstall_keeps_the_installation(objects: Objects) -> None:
    """An uninstall that fails is said on the Installation, which stays, until a person asks again or gives it up."""
    objects.install("service", **service("exit 3"))
    objects.ready("service")
    objects.delete("Installation", "service")
    stalled = objects.condition("Installation", "service", "Stalled", "True", "UninstallFailed")
    assert "'stop' failed with exit code 3" in stalled["message"]
    assert "deletionPolicy Orphan" in stalled["message"]
    assert objects.said("Installation", "service", "Warning", "UninstallFailed")
    objects.respec("service", deletionPolicy="Orphan")
    objects.gone("Installation", "service")


def test_orphan_deletes_without_an_uninstall(objects: Objects, stack: Stack) -> None:
    """With deletionPolicy Orphan an Installation goes at once, and no uninstall is run."""
    objects.install("service", **service(deletionPolicy="Orphan"))
    objects.ready("service")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    objects.settle()
    created = [
        one["requestURI"]
        for one in stack.control_plane.audit_events()
        if one["verb"] == "create" and one.get("objectRef", {}).get("namespace") == objects.namespace
    ]
    assert sum("/agentactions" in uri for uri in created) == 1


def test_an_installation_without_uninstall_commands_goes_at_once(objects: Objects) -> None:
    """Engine exec without uninstall commands has nothing to run when the Installation is deleted."""
    objects.install("service", engine="exec", commands=service()["commands"] | {"uninstall": []})
    objects.ready("service")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")


def test_uninstalled_true_uninstalls_and_keeps_the_object(objects: Objects) -> None:
    """`uninstalled: true` runs the uninstall; the object stays and is ready, its latest Secret goes."""
    objects.install("service", **service())
    objects.ready("service")
    objects.respec("service", uninstalled=True)
    status = objects.ready("service")["status"]
    assert status["phase"] == "Uninstalled"
    assert {"binding", "lastSucceeded"}.isdisjoint(status)
    assert status["outputs"] == []
    assert objects.condition("Installation", "service", "OutputsReady", "False", "NoOutputs")
    assert objects.find("Secret", "service-outputs") is None
    assert set(objects.records("service").values()) == {"Invalidated"}


def test_uninstalled_false_installs_again(objects: Objects) -> None:
    """Taking `uninstalled` back installs anew: an install, not an upgrade, with a record and a latest Secret."""
    objects.install("service", **service())
    objects.ready("service")
    objects.respec("service", uninstalled=True)
    objects.ready("service")
    objects.respec("service", uninstalled=False)
    objects.ready("service")
    third = objects.runs("service")[2]
    assert third["spec"]["action"] == "install"
    assert objects.records("service")[third["metadata"]["name"]] == "Current"
    assert objects.secret("service-outputs") == {"state": b"up"}


def test_uninstalled_without_uninstall_commands_installs_again(objects: Objects) -> None:
    """Where nothing uninstalls, `uninstalled: true` takes no run and withdraws the outputs; taken back, it installs."""
    objects.install("service", engine="exec", commands=service()["commands"] | {"uninstall": []})
    objects.ready("service")
    objects.respec("service", uninstalled=True)
    status = objects.ready("service")["status"]
    assert status["phase"] == "Uninstalled"
    assert {"binding", "lastSucceeded"}.isdisjoint(status)
    assert objects.condition("Installation", "service", "OutputsReady", "False", "NoOutputs")
    assert set(objects.records("service").values()) == {"Invalidated"}
    assert len(objects.runs("service")) == 1
    objects.respec("service", uninstalled=False)
    objects.ready("service")
    _, second = objects.runs("service")
    assert second["spec"]["action"] == "install"
    assert objects.records("service")[second["metadata"]["name"]] == "Current"
    assert objects.secret("service-outputs") == {"state": b"up"}


def test_an_installation_that_is_uninstalled_from_the_start_runs_nothing(objects: Objects) -> None:
    """An Installation that is created with `uninstalled: true` is ready without any run."""
    objects.install("service", **service(uninstalled=True))
    assert objects.ready("service")["status"]["phase"] == "Uninstalled"
    assert objects.runs("service") == []


def test_deletion_of_what_never_started_runs_nothing(objects: Objects) -> None:
    """An Installation whose only run never got a pod going is deleted without an uninstall."""
    objects.create("AgentConfig", "default", spec={"image": "outhaul-does-not-exist"})
    objects.install("service", **service())
    objects.condition("Installation", "service", "Ready", "False", "ImagePullFailed")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")


def test_deletion_destroys_and_forgets_the_state(tenant: Objects, stack: Stack) -> None:
    """Deleting runs `terraform destroy` and leaves nothing: no pod, no Secret, no state, no lock, no record."""
    module = (REPOSITORY / "samples/terraform/main.tf").read_text()
    tenant.install("database", source={"files": {"main.tf": module}}, parameters={"name": "shop"})
    tenant.ready("database")
    assert tenant.find("Secret", "tfstate-default-database") is not None
    tenant.delete("Installation", "database")
    run = second_run(tenant, "database")
    tenant.gone("Installation", "database")
    assert "Destroy complete! Resources: 2 destroyed." in stack.container_log(tenant.namespace, run)
    until(lambda: not tenant.left(), what="nothing is left", timeout=COLLECTED)
