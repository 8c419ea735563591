"""What is left over goes, what was deleted comes back where it must, and neither starts a run."""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.objects import Json, Objects
from cluster.stack import Stack
from cluster.waiting import until


@pytest.fixture(scope="module", autouse=True)
def eager(stack: Stack) -> Iterator[None]:
    """An operator that looks at everything each second."""
    stack.restart_operator("--resync-seconds", "1")
    yield
    stack.restart_operator()


def service(script: str = 'printf up > "$OUTHAUL_OUTPUTS/state"', **fields: Any) -> Json:
    """The spec of an Installation of one script that leaves an output, and that has a copy of its source."""
    command = [{"name": "main", "command": ["sh", "-c", script]}]
    source = {"configMapRef": {"name": "code"}}
    return {"engine": "exec", "commands": {"install": command, "uninstall": command}, "source": source, **fields}


def install(objects: Objects, name: str = "service", **spec: Any) -> str:
    """Creates an Installation and waits for it; returns its run's name."""
    if objects.find("ConfigMap", "code") is None:
        objects.create("ConfigMap", "code", data={"file": "x"})
    objects.install(name, **spec or service())
    return str(objects.ready(name)["status"]["action"]["name"])


def created(stack: Stack, objects: Objects) -> int:
    """How many runs were created in the namespace, whatever became of them."""
    found = [
        one
        for one in stack.control_plane.audit_events()
        if (one["verb"], one["responseStatus"]["code"]) == ("create", 201) and "dryRun" not in one["requestURI"]
    ]
    wanted = (objects.namespace, "agentactions")
    return sum((one["objectRef"].get("namespace"), one["objectRef"]["resource"]) == wanted for one in found)


def test_nothing_that_is_deleted_starts_a_run(objects: Objects, stack: Stack) -> None:
    """Whatever of a finished run somebody deletes, no run follows, also not after a start of the operator."""
    things = [
        ("AgentAction", "{}"),
        ("Pod", "{}"),
        ("Secret", "{}-run"),
        ("Secret", "{}-source"),
        ("Secret", "{}-outputs"),
        ("InstallationOutput", "{}"),
        ("Secret", "service-{number}-outputs"),
    ]
    runs = [install(objects, f"service-{number}") for number in range(len(things))]
    latest = objects.secret(f"service-{len(things) - 1}-outputs")
    for number, ((kind, name), run) in enumerate(zip(things, runs, strict=True)):
        wanted = name.format(run, number=number)
        assert objects.find(kind, wanted) is not None
        objects.delete(kind, wanted)
    stack.restart_operator("--resync-seconds", "1")
    until(
        lambda: objects.find("Secret", f"service-{len(things) - 1}-outputs"), what="what must be there is", timeout=60
    )
    # Two have lost what the latest Secret would be written from, and say so.
    lost = {"service-4", "service-5"}
    for name in lost:
        objects.condition("Installation", name, "OutputsReady", "False", "OutputsLost")
    objects.settle()
    assert objects.secret(f"service-{len(things) - 1}-outputs") == latest
    assert created(stack, objects) == len(things)
    for one in objects.all("Installation"):
        wanted = "Failed" if one["metadata"]["name"] in lost else "Succeeded"
        assert (one["metadata"]["name"], one["status"]["phase"]) == (one["metadata"]["name"], wanted)


def test_what_time_removes_starts_no_run(objects: Objects, stack: Stack) -> None:
    """Pod and Secret of a run go after their time, of one by hand too; what was learned stays, and no run follows."""
    objects.create("AgentConfig", "default", spec={"ttlSecondsAfterFinished": 1})
    run = install(objects)
    objects.create("AgentAction", "by-hand", spec={"commands": [{"name": "main", "command": ["true"]}]})
    objects.ended("by-hand")
    for name in (run, "by-hand"):
        objects.gone("Pod", name)
        objects.gone("Secret", f"{name}-run")
    objects.settle()
    assert objects.names("AgentAction") == sorted([run, "by-hand"])
    assert created(stack, objects) == 2
    assert objects.records("service") == {run: "Current"}
    assert {f"{run}-outputs", f"{run}-source", "by-hand-outputs"} <= set(objects.names("Secret"))


def test_the_secret_of_a_run_whose_pod_is_gone_goes(objects: Objects) -> None:
    """A run's own Secret does not outlive a pod that somebody deletes."""
    run = install(objects)
    assert objects.find("Secret", f"{run}-run") is not None
    objects.delete("Pod", run)
    objects.gone("Secret", f"{run}-run")


def test_the_secret_of_a_run_goes_that_lost_its_pod_unseen(objects: Objects, stack: Stack) -> None:
    """Nor where nobody was there to see it."""
    run = install(objects)
    stack.kill_operator()
    objects.delete("Pod", run)
    objects.gone("Pod", run)
    assert objects.find("Secret", f"{run}-run") is not None
    stack.start_operator("--resync-seconds", "1")
    objects.gone("Secret", f"{run}-run")


def test_parts_of_an_unfinished_publication_go(objects: Objects, stack: Stack) -> None:
    """Parts of a latest Secret that an operator has left which was killed half way go after the next start."""
    install(objects)
    uid = objects.get("Installation", "service")["metadata"]["uid"]
    owner = {"apiVersion": "outhaul.dev/v1alpha1", "kind": "Installation", "name": "service", "uid": uid}
    metadata = {"ownerReferences": [{**owner, "controller": True}]}
    stack.kill_operator()
    for number in (1, 3):
        name = f"service-outputs-{number}"
        objects.create("Secret", name, type="outhaul.dev/outputs", metadata=metadata, stringData={"state": "old"})
    objects.create("Secret", "service-outputs-2", stringData={"state": "somebody else's"})
    stack.start_operator("--resync-seconds", "1")
    for number in (1, 3):
        objects.gone("Secret", f"service-outputs-{number}")
    assert objects.secret("service-outputs-2") == {"state": b"somebody else's"}
    assert objects.secret("service-outputs") == {"state": b"up"}


def test_no_former_name_is_forgotten(objects: Objects, stack: Stack) -> None:
    """A latest Secret goes under whose name a run was published of which the Installation has not taken note."""
    install(objects)
    before = objects.get("Installation", "service")["status"]
    objects.respec("service", parameters={"changed": True}, outputs={"secretName": "second"})
    run = objects.ready("service")["status"]["action"]
    assert objects.get("AgentAction", run["name"])["status"]["latestSecret"] == "second"
    stack.kill_operator()
    # As if it had been killed when the run had ended, and no sooner.
    status = {**before, "action": {key: value for key, value in run.items() if key not in {"phase", "finishedAt"}}}
    path = f"/apis/outhaul.dev/v1alpha1/namespaces/{objects.namespace}/installations/service/status"
    body = [{"op": "add", "path": "/status", "value": status}]
    stack.control_plane.request("PATCH", path, body, content_type="application/json-patch+json")
    objects.respec("service", outputs={"secretName": "third"})
    stack.start_operator("--resync-seconds", "1")
    objects.until("Secret", "third", lambda _: True, what="it is there")
    objects.gone("Secret", "second")
    assert objects.ready("service")["status"]["binding"] == {"name": "third"}


def test_outputs_that_were_overtaken_go(objects: Objects) -> None:
    """Outputs of an install that comes to its end when an uninstall is wanted already do not outlive that."""
    objects.create("ConfigMap", "code", data={"file": "x"})
    objects.install("service", **service('printf up > "$OUTHAUL_OUTPUTS/state"; sleep 3'))
    run = objects.until("Installation", "service", lambda one: one.get("status", {}).get("action"), what="it has a run")
    objects.condition("AgentAction", run["name"], "Started")
    objects.respec("service", uninstalled=True)
    assert objects.ready("service")["status"]["phase"] == "Uninstalled"
    assert objects.get("AgentAction", run["name"])["status"]["phase"] == "Succeeded"
    assert objects.find("Secret", "service-outputs") is None
