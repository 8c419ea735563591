"""What the metrics say of runs and phases."""

from typing import Any

import pytest
from outhaul_operator import metrics
from outhaul_operator.kinds import Kind
from outhaul_operator.observations import Phases, count_end
from outhaul_operator.view import View


def action(phase: str | None, version: int = 1, engine: str | None = "terraform", **spec: Any) -> dict[str, Any]:
    """An AgentAction."""
    labels = {"outhaul.dev/engine": engine} if engine else {}
    metadata = {"namespace": "n", "name": "a", "uid": "u", "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "spec": {"action": "install", **spec}, "status": {"phase": phase} if phase else {}}


def counted(engine: str, done: str, result: str) -> float:
    """How many such runs were counted."""
    labels = {"engine": engine, "action": done, "result": result}
    return metrics.REGISTRY.get_sample_value("outhaul_runs_total", labels) or 0


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        pytest.param("Running", "Succeeded", 1, id="it has succeeded"),
        pytest.param(None, "Succeeded", 1, id="it has succeeded at once"),
        pytest.param("Succeeded", "Succeeded", 0, id="it had succeeded before"),
        pytest.param("Pending", "Running", 0, id="it goes on"),
    ],
)
def test_an_end_is_counted_once(before: str | None, after: str, more: int) -> None:
    """A run counts when it is seen to end, and no other change of it counts."""
    was = counted("terraform", "install", "Succeeded")
    count_end(Kind.AGENT_ACTION, action(before), action(after))
    assert counted("terraform", "install", "Succeeded") == was + more


@pytest.mark.parametrize(
    ("given", "label"),
    [("porter", "porter"), (None, "none"), ("made up by somebody", "other")],
)
def test_labels_are_ours(given: str | None, label: str) -> None:
    """No text that people can write becomes a label's value."""
    was = counted(label, "other", "Failed")
    count_end(Kind.AGENT_ACTION, action("Running"), action("Failed", engine=given, action="made up"))
    assert counted(label, "other", "Failed") == was + 1


def test_what_was_over_when_it_was_first_seen_does_not_count() -> None:
    """An operator that starts finds runs that have ended; it counts what it sees happen."""
    seen: list[tuple[Any, Any]] = []
    view = View(lambda *_: None, lambda _, old, new: seen.append((old["status"], new["status"])))
    view.put(Kind.AGENT_ACTION, action("Succeeded"))
    assert seen == []
    view.put(Kind.AGENT_ACTION, action("Succeeded", version=2))
    assert seen == [({"phase": "Succeeded"}, {"phase": "Succeeded"})]


def test_an_object_of_the_same_name_is_another_one() -> None:
    """What takes a gone object's name has not replaced its state."""
    seen: list[Any] = []
    view = View(lambda *_: None, lambda *change: seen.append(change))
    view.put(Kind.AGENT_ACTION, action("Running"))
    other = action("Succeeded", version=2)
    other["metadata"]["uid"] = "v"
    view.put(Kind.AGENT_ACTION, other)
    assert seen == []


def test_phases_are_counted_at_each_scrape() -> None:
    """Each phase has its number, also where that is 0, and what was not looked at yet has one of its own."""
    view = View(lambda *_: None)
    for name, phase in (("a", "Succeeded"), ("b", "Succeeded"), ("c", None)):
        obj = action(phase)
        obj["metadata"] |= {"name": name, "uid": name}
        view.put(Kind.INSTALLATION, obj)
    view.put(Kind.AGENT_ACTION, action("Running"))
    samples = [sample for family in Phases(view).collect() for sample in family.samples]
    found = {(sample.name, sample.labels["phase"]): sample.value for sample in samples}
    assert found["outhaul_installations", "Succeeded"] == 2
    assert found["outhaul_installations", "none"] == 1
    assert found["outhaul_installations", "Failed"] == 0
    assert found["outhaul_agentactions", "Running"] == 1
    assert sum(found.values()) == 4
