"""How many runs of an Installation are kept."""

import pytest
from builders import action, installation
from outhaul_api.agentaction import AgentAction
from outhaul_operator.history import expired


def runs(*phases: str | None) -> list[AgentAction]:
    """The runs of an Installation, `run-1` first, with these phases; None: it has not ended."""
    return [
        action(
            {"installation": {"name": "shop", "number": number}},
            {"phase": phase} if phase is not None else {},
            name=f"run-{number}",
        )
        for number, phase in enumerate(phases, start=1)
    ]


OK, BAD = "Succeeded", "Failed"


@pytest.mark.parametrize(
    ("limit", "phases", "current", "gone"),
    [
        (2, [], None, []),
        (2, [OK, OK], 2, []),
        (2, [OK, OK, OK], 3, [1]),
        (2, [OK, OK, OK, OK], 4, [1, 2]),
        (2, [OK, OK, BAD, BAD], 2, [1]),
        (1, [OK, BAD, BAD], 1, [2]),
        (1, [BAD, BAD, BAD], None, [1, 2]),
        (1, [None, OK], 2, []),
        (1, [OK, None], 1, []),
        (5, [OK] * 5, 5, []),
    ],
)
def test_what_is_too_old(limit: int, phases: list[str | None], current: int | None, gone: list[int]) -> None:
    """The oldest runs beyond the limit go, but neither the one whose outputs are shown nor one that has not ended."""
    last = {"name": f"run-{current}", "action": "install", "generation": 1, "digest": "d"}
    status = {"lastSucceeded": last} if current is not None else {}
    shop = installation({"outputs": {"historyLimit": limit}}, status)
    for order in (1, -1):
        found = expired(shop, runs(*phases)[::order])
        assert [one.metadata.name for one in found] == [f"run-{number}" for number in gone]


def test_the_source_of_what_is_installed_is_kept() -> None:
    """The run whose copy of its source an uninstall would use stays, when newer ones have only read outputs again."""
    condition = {
        "type": "SourceKept",
        "status": "True",
        "reason": "SourceKept",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }
    first, *others = runs(OK, OK, OK)
    first = first.model_copy(update={"status": first.status.model_validate({"phase": OK, "conditions": [condition]})})
    last = {"name": "run-3", "action": "recollect", "generation": 1, "digest": "d"}
    shop = installation({"outputs": {"historyLimit": 1}}, {"lastSucceeded": last})
    assert [one.metadata.name for one in expired(shop, [first, *others])] == ["run-2"]
