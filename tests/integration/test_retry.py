"""A failed run that is followed by another one by itself, and what may not start at all for now."""

from datetime import datetime
from typing import Any

import pytest
from cluster.objects import Json, Objects, condition_of
from cluster.stack import Stack


def service(**fields: Any) -> dict[str, Any]:
    """The spec of a service that can be installed and uninstalled once the ConfigMap `gate` has a key for that."""
    install = 'test -e may-install && printf "$OUTHAUL_PARAMETER_size" > "$OUTHAUL_OUTPUTS/size"'
    return {
        "engine": "exec",
        "source": {"configMapRef": {"name": "gate"}},
        "parameters": {"size": 1},
        "commands": {
            "install": [{"name": "start", "command": ["sh", "-c", install]}],
            "uninstall": [{"name": "stop", "command": ["test", "-e", "may-uninstall"]}],
        },
        **fields,
    }


@pytest.fixture
def gate(objects: Objects) -> Objects:
    """The namespace with the ConfigMap, which opens nothing yet."""
    objects.create("ConfigMap", "gate", data={"README": "who looks for a file finds it here, or not"})
    return objects


def opened(objects: Objects, *gates: str) -> None:
    """Lets the service be installed or uninstalled from now on; a ConfigMap's change starts no run."""
    objects.patch("ConfigMap", "gate", {"data": dict.fromkeys(gates, "")})


def attempts(objects: Objects) -> list[int]:
    """The attempts of the service's runs."""
    return [one["spec"]["installation"].get("attempt", 1) for one in objects.runs("service")]


def run(objects: Objects, number: int) -> Json:
    """Waits until the service has a run of this number; returns its AgentAction."""

    def probe(obj: Json) -> str | None:
        action = obj.get("status", {}).get("action", {})
        return action.get("name") if action.get("number") == number else None

    return objects.get("AgentAction", objects.until("Installation", "service", probe, what=f"it has run {number}"))


def test_a_failed_run_is_tried_again_until_it_succeeds(gate: Objects) -> None:
    """It says which attempt comes when; each is counted, and the first that succeeds is the last."""
    gate.install("service", **service(retry={"limit": 100, "backoff": "1s"}))
    said = gate.condition("Installation", "service", "Reconciling", "True", "RetryScheduled")
    assert "of 101 starts at 20" in said["message"]
    assert "has failed: step 'start' failed with exit code 1" in said["message"]
    run(gate, 3)
    opened(gate, "may-install")
    status = gate.ready("service")["status"]
    tried = attempts(gate)
    assert tried == list(range(tried[0], tried[0] + len(tried)))
    assert status["action"]["attempt"] == tried[-1] >= 3
    assert gate.secret("service-outputs") == {"size": b"1"}
    assert gate.said("Installation", "service", "Warning", "RetryScheduled")


def test_after_its_limit_a_person_has_to_act_and_may_ask_again(gate: Objects) -> None:
    """An AgentConfig's limit counts where the spec has none; asked again, the count begins anew."""
    gate.create("AgentConfig", "default", spec={"retryLimit": 1})
    gate.install("service", **service(retry={"backoff": "1s"}))
    stalled = gate.condition("Installation", "service", "Stalled", "True", "RunFailed")
    assert "has failed, as the 1 before it" in stalled["message"]
    gate.settle()
    assert attempts(gate) == [1, 2]
    gate.annotate("service", {"outhaul.dev/retry": "again"})
    gate.ran("service", 4)
    gate.condition("Installation", "service", "Stalled", "True", "RunFailed")
    gate.settle()
    assert attempts(gate) == [1, 2, 1, 2]


def test_a_failed_uninstall_is_tried_again(gate: Objects) -> None:
    """Deletion goes on by itself once what was in its way is gone."""
    opened(gate, "may-install")
    gate.install("service", **service(retry={"limit": 100, "backoff": "1s"}))
    gate.ready("service")
    gate.delete("Installation", "service")
    gate.condition("Installation", "service", "Reconciling", "True", "RetryScheduled")
    opened(gate, "may-uninstall")
    gate.gone("Installation", "service")


def test_a_failed_upgrade_leaves_the_last_good_outputs(gate: Objects) -> None:
    """The latest Secret and its record stay as they are while an upgrade fails, waits, and fails again."""
    opened(gate, "may-install")
    gate.install("service", **service(retry={"limit": 1, "backoff": "1s"}))
    first = gate.ready("service")["status"]["action"]["name"]
    gate.patch("ConfigMap", "gate", {"data": {"may-install": None}})
    gate.respec("service", parameters={"size": 2})
    gate.condition("Installation", "service", "Stalled", "True", "RunFailed")
    status = gate.get("Installation", "service")["status"]
    assert (status["lastSucceeded"]["name"], status["outputs"]) == (first, ["size"])
    assert gate.secret("service-outputs") == {"size": b"1"}
    assert gate.records("service")[first] == "Current"
    shown = condition_of(gate.get("Installation", "service"), "OutputsReady")
    assert shown is not None
    assert shown["status"] == "True"


def test_a_pause_outlives_the_operator(gate: Objects, stack: Stack, alive: None) -> None:
    """Killed in the middle of a pause, the operator goes on with it: no attempt is lost, none comes early."""
    gate.install("service", **service(retry={"limit": 1, "backoff": "10s"}))
    gate.condition("Installation", "service", "Reconciling", "True", "RetryScheduled")
    stack.kill_operator()
    opened(gate, "may-install")
    stack.start_operator()
    assert gate.ready("service")["status"]["action"]["attempt"] == 2
    first, second = gate.runs("service")
    ended, began = first["status"]["finishedAt"], second["metadata"]["creationTimestamp"]
    # Both are in whole seconds.
    assert (datetime.fromisoformat(began) - datetime.fromisoformat(ended)).total_seconds() >= 9


def test_a_suspended_installation_starts_nothing_until_it_is_resumed(gate: Objects) -> None:
    """A new one waits and says so, neither stalled nor at work; then what is due starts."""
    opened(gate, "may-install")
    gate.install("service", **service(suspend=True))
    said = gate.condition("Installation", "service", "Ready", "False", "Suspended")
    assert said["message"].startswith("install is due")
    gate.settle()
    assert gate.runs("service") == []
    conditions = {one["type"] for one in gate.get("Installation", "service")["status"]["conditions"]}
    assert conditions == {"Ready", "Suspended", "OutputsReady"}
    gate.respec("service", suspend=False)
    assert {one["type"] for one in gate.ready("service")["status"]["conditions"]} == {"Ready", "OutputsReady"}


def test_what_is_installed_stays_ready_while_it_is_suspended(gate: Objects) -> None:
    """Until something is due, which is said, and which a deletion does not wait for: it uninstalls all the same."""
    opened(gate, "may-install", "may-uninstall")
    gate.install("service", **service())
    gate.ready("service")
    gate.respec("service", suspend=True)
    gate.condition("Installation", "service", "Suspended")
    gate.ready("service")
    gate.respec("service", parameters={"size": 2})
    gate.condition("Installation", "service", "Ready", "False", "Suspended")
    assert gate.condition("Installation", "service", "OutputsReady")
    gate.settle()
    assert len(gate.runs("service")) == 1
    gate.delete("Installation", "service")
    assert run(gate, 2)["spec"]["action"] == "uninstall"
    gate.gone("Installation", "service")


def test_a_run_under_way_goes_on_when_it_is_suspended(gate: Objects) -> None:
    """It ends as it would have, its outputs are published, and only what comes after it waits."""
    opened(gate, "may-install")
    command = {"name": "start", "command": ["sh", "-c", 'sleep 2; printf up > "$OUTHAUL_OUTPUTS/state"']}
    gate.install("service", **service(commands={"install": [command]}))
    run(gate, 1)
    gate.respec("service", suspend=True)
    gate.condition("Installation", "service", "Suspended")
    gate.ready("service")
    assert gate.secret("service-outputs") == {"state": b"up"}
    assert len(gate.runs("service")) == 1
