"""The operator is killed (SIGKILL) at some point of a run and starts again: the result is the same, nothing ran twice.

A run goes on in its pod meanwhile. Points in time are reached by what shows them, such as an object or a line of a
log; a quota that keeps the operator from its next step holds it there until it is dead.
"""

from collections.abc import Callable

import pytest
from cluster.objects import Json, Objects, script
from cluster.stack import Stack
from cluster.waiting import until

pytestmark = pytest.mark.usefixtures("alive")

MODULE = """
resource "terraform_data" "database" {
  input = "db.internal"
  provisioner "local-exec" {
    command = "echo the database is made; sleep 4"
  }
}
output "host" { value = terraform_data.database.output }
"""
TERRAFORM = {"source": {"files": {"main.tf": MODULE}}}


def noted(text: str) -> Json:
    """The spec of an Installation of one script, which says in the log that it ran and leaves one output."""
    return script(f'echo it ran; {text}; printf up > "$OUTHAUL_OUTPUTS/state"')


def under_way(objects: Objects, name: str) -> str:
    """Waits until an Installation has a run; returns the run's name."""
    action = objects.until("Installation", name, lambda one: one.get("status", {}).get("action"), what="it has a run")
    return str(action["name"])


def created(objects: Objects, stack: Stack, resource: str) -> int:
    """How many objects of a kind were created in the namespace, by whomever, whatever became of them."""
    found = [
        one["objectRef"]
        for one in stack.control_plane.audit_events()
        if one["verb"] == "create" and one["responseStatus"]["code"] == 201 and "objectRef" in one
    ]
    wanted = (objects.namespace, resource, None)
    return sum((one.get("namespace"), one["resource"], one.get("subresource")) == wanted for one in found)


def assert_ran_once(objects: Objects, stack: Stack, run: str, words: str = "it ran") -> None:
    """There was one run with one pod, its commands ran once, it has one record, and nobody was alarmed."""
    assert objects.names("AgentAction") == [run]
    assert created(objects, stack, "agentactions") == 1
    assert created(objects, stack, "pods") == 1
    assert stack.container_log(objects.namespace, run).count(words) == 1
    (record,) = objects.all("InstallationOutput")
    assert (record["metadata"]["name"], record["status"]["phase"]) == (run, "Current")
    said = objects.events("Installation", record["spec"]["installation"])
    assert [one for one in said if one[0] != "Normal"] == []
    assert len(said) == len(set(said)), "something was said twice"


@pytest.fixture
def hold(objects: Objects) -> Callable[[str, int], Callable[[], None]]:
    """Lets there be only so many objects of a kind in the namespace; what it returns takes that back."""

    def limit(resource: str, count: int) -> Callable[[], None]:
        hard = {f"count/{resource}": str(count)}
        objects.limit("hold", hard)
        return lambda: objects.delete("ResourceQuota", "hold")

    return limit


def test_killed_while_terraform_applies(tenant: Objects, stack: Stack) -> None:
    """Killed while Terraform applies and started again at once, the operator finds the run, and Terraform ran once."""
    tenant.install("database", **TERRAFORM)
    run = under_way(tenant, "database")
    stack.printed(tenant.namespace, run, "the database is made")
    stack.kill_operator()
    stack.start_operator()
    tenant.ready("database")
    assert tenant.secret("database-outputs") == {"host": b"db.internal"}
    assert_ran_once(tenant, stack, run, "Apply complete! Resources: 1 added")


def test_away_while_terraform_ends(tenant: Objects, stack: Stack) -> None:
    """A run that ends while there is no operator holds its outputs until one is there again."""
    tenant.install("database", **TERRAFORM)
    run = under_way(tenant, "database")
    stack.printed(tenant.namespace, run, "the database is made")
    stack.kill_operator()
    stack.printed(tenant.namespace, run, "the run has ended: succeeded, 1 outputs")
    stack.start_operator()
    tenant.ready("database")
    assert tenant.secret("database-outputs") == {"host": b"db.internal"}
    assert_ran_once(tenant, stack, run, "Apply complete! Resources: 1 added")


def test_killed_before_the_pod(objects: Objects, stack: Stack, hold: Callable[[str, int], Callable[[], None]]) -> None:
    """Killed between the run's Secret and its pod, the operator makes the pod later, with the same Secret."""
    release = hold("pods", 0)
    objects.install("service", **noted("true"))
    run = under_way(objects, "service")
    objects.condition("AgentAction", run, "Started", "False", "PodRefused")
    before = objects.get("Secret", f"{run}-run")["metadata"]["uid"]
    stack.kill_operator()
    release()
    stack.start_operator()
    objects.ready("service")
    assert objects.get("Secret", f"{run}-run")["metadata"]["uid"] == before
    assert_ran_once(objects, stack, run)


def test_killed_between_record_and_latest_secret(
    objects: Objects, stack: Stack, hold: Callable[[str, int], Callable[[], None]]
) -> None:
    """Killed after the record and before the latest Secret, the operator publishes what the record tells."""
    # A token of the default account, the run's Secret and its outputs: no room for the latest one.
    release = hold("secrets", len(objects.all("Secret")) + 2)
    objects.install("service", **noted("true"))
    run = under_way(objects, "service")
    objects.until("InstallationOutput", run, lambda _: True, what="it is there")
    stack.kill_operator()
    assert objects.find("Secret", "service-outputs") is None
    assert objects.get("Installation", "service")["status"]["phase"] == "Running"
    release()
    stack.start_operator()
    objects.ready("service")
    assert objects.secret("service-outputs") == {"state": b"up"}
    assert_ran_once(objects, stack, run)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param("AgentAction", "{}", id="run"),
        pytest.param("Secret", "{}-run", id="secret of the run"),
        pytest.param("Pod", "{}", id="pod"),
        pytest.param("Secret", "{}-outputs", id="outputs"),
        pytest.param("InstallationOutput", "{}", id="record"),
        pytest.param("Secret", "service-outputs", id="latest secret"),
    ],
)
def test_killed_at_the_first_sign_of_a_step(objects: Objects, stack: Stack, kind: str, name: str) -> None:
    """Killed as soon as a step shows, the operator goes on from there, whichever it was."""
    objects.install("service", **noted("true"))

    def sign() -> Json | None:
        runs = objects.all("AgentAction")
        return objects.find(kind, name.format(runs[0]["metadata"]["name"])) if runs else None

    until(sign, what=f"the run's {kind}", interval=0, timeout=60)
    stack.kill_operator()
    stack.start_operator()
    run = objects.ready("service")["status"]["action"]["name"]
    assert objects.secret("service-outputs") == {"state": b"up"}
    assert_ran_once(objects, stack, run)


def test_killed_after_the_agent_was_let_go(objects: Objects, stack: Stack) -> None:
    """An agent that has ended, its outputs stored, is taken at its last word by an operator that starts then."""
    objects.install("service", **noted("true"))
    run = under_way(objects, "service")
    stack.printed(objects.namespace, run, "the outputs are stored")
    stack.kill_operator()
    stack.start_operator()
    objects.ready("service")
    assert objects.secret("service-outputs") == {"state": b"up"}
    assert_ran_once(objects, stack, run)


def test_killed_while_it_uninstalls(objects: Objects, stack: Stack) -> None:
    """Killed during an uninstall, the operator sees it through; it runs once, and then the Installation goes."""
    spec = noted("true")
    spec["commands"]["uninstall"] = [{"name": "stop", "command": ["sh", "-c", "echo it stopped; sleep 3"]}]
    objects.install("service", **spec)
    objects.ready("service")
    objects.delete("Installation", "service")
    run = objects.until(
        "Installation",
        "service",
        lambda one: one["status"]["action"]["name"] if one["status"]["action"]["number"] == 2 else None,
        what="it has a second run",
    )
    stack.printed(objects.namespace, run, "it stopped")
    stack.kill_operator()
    stack.start_operator()
    objects.gone("Installation", "service")
    assert stack.container_log(objects.namespace, run).count("it stopped") == 1
    assert created(objects, stack, "agentactions") == 2
