"""How many runs are kept, what goes with those that are not, and how records look to people."""

from typing import Any

import pytest
from cluster.objects import Objects
from cluster.waiting import until

COLLECTED = 90.0
"""Seconds: the garbage collector of a new cluster learns of our kinds within a minute."""


def service(word: str, **fields: Any) -> dict[str, Any]:
    """The spec of an Installation that leaves a word; the run of the word `bad` fails, after it has left it."""
    script = 'printf "$OUTHAUL_PARAMETER_word" > "$OUTHAUL_OUTPUTS/word"; test "$OUTHAUL_PARAMETER_word" != bad'
    return {
        "engine": "exec",
        "parameters": {"word": word},
        "commands": {
            "install": [{"name": "speak", "command": ["sh", "-c", script]}],
            "uninstall": [{"name": "hush", "command": ["true"]}],
        },
        **fields,
    }


def run(objects: Objects, number: int, word: str) -> str:
    """Has an Installation run again, with another word, and waits for the end; returns the run's name."""
    objects.respec("service", parameters={"word": word})
    return str(objects.ran("service", number)["metadata"]["name"])


@pytest.fixture
def kept(objects: Objects) -> list[str]:
    """The names of three runs of an Installation that keeps two; the third has failed."""
    objects.install("service", **service("one", outputs={"historyLimit": 2}))
    first = objects.ran("service", 1)["metadata"]["name"]
    return [first, run(objects, 2, "two"), run(objects, 3, "bad")]


def test_old_runs_go_with_everything(objects: Objects, kept: list[str]) -> None:
    """A run beyond `historyLimit` goes with its AgentAction, Secrets, pod and record, and with nothing else."""
    first, second, third = kept
    until(lambda: not [one for one in objects.left() if first in one], what=f"{first} is gone", timeout=COLLECTED)
    assert [one["metadata"]["name"] for one in objects.runs("service")] == [second, third]
    assert objects.records("service") == {second: "Current", third: "Failed"}
    assert objects.secret("service-outputs") == {"word": b"two"}


def test_the_current_run_is_never_too_old(objects: Objects, kept: list[str]) -> None:
    """However many runs have failed since, the one whose outputs are shown stays, until another has succeeded."""
    _, second, third = kept
    objects.annotate("service", {"outhaul.dev/retry": "once more"})
    fourth = objects.ran("service", 4)["metadata"]["name"]
    objects.settle()
    assert objects.records("service") == {second: "Current", third: "Failed", fourth: "Failed"}
    assert objects.secret(f"{second}-outputs") == {"word": b"two"}
    fifth = run(objects, 5, "five")
    objects.ready("service")
    assert [one["metadata"]["name"] for one in objects.runs("service")] == [fourth, fifth]


def test_a_lower_limit_counts_at_once(objects: Objects) -> None:
    """Lowering `historyLimit` lets old runs go without another run."""
    objects.install("service", **service("one"))
    first = objects.ran("service", 1)["metadata"]["name"]
    second = run(objects, 2, "two")
    objects.ready("service")
    assert objects.records("service") == {first: "Superseded", second: "Current"}
    objects.respec("service", outputs={"historyLimit": 1})
    objects.ready("service")
    assert [one["metadata"]["name"] for one in objects.runs("service")] == [second]


def test_records_read_well(objects: Objects) -> None:
    """`kubectl get io` shows each record's installation, phase and outputs; every phase says what it stands for."""
    objects.install("service", **service("one"))
    names = [objects.ran("service", 1)["metadata"]["name"], run(objects, 2, "two"), run(objects, 3, "bad")]

    def table() -> list[list[str]]:
        lines = objects.control_plane.kubectl("get", "io", "-n", objects.namespace).splitlines()
        return [line.split() for line in lines]

    head, *rows = table()
    assert head == ["NAME", "INSTALLATION", "PHASE", "OUTPUTS", "AGE"]
    phases = dict(zip(names, ("Superseded", "Current", "Failed"), strict=True))
    assert {row[0]: row[1:4] for row in rows} == {name: ["service", phase, "word"] for name, phase in phases.items()}
    objects.respec("service", uninstalled=True)
    objects.ready("service")
    phases[names[1]] = "Invalidated"
    assert {row[0]: row[2] for row in table()[1:]} == phases
