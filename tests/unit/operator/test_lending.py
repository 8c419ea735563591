"""Which copy of what was installed an uninstall gets, and which nothing would use."""

from typing import Any

import pytest
from builders import action, installation, run
from outhaul_api.agentaction import AgentAction, KeptSource
from outhaul_api.vocabulary import Action
from outhaul_operator import lending
from outhaul_operator.agentactions import agent_action
from outhaul_operator.engines.plan import Plan

OK, BAD = "Succeeded", "Failed"


def one(number: int, phase: str | None, act: str = "upgrade", *, kept: bool | None = True) -> AgentAction:
    """A run; `kept`: what it says of the copy of its source, None: nothing."""
    status: dict[str, Any] = {"phase": phase} if phase is not None else {}
    if kept is not None:
        fields = {"reason": "SourceKept", "lastTransitionTime": "2020-01-01T00:00:00Z"}
        status["conditions"] = [{"type": "SourceKept", "status": str(kept), **fields}]
    spec = {"action": act, "installation": {"name": "shop", "number": number}}
    return action(spec, status, name=f"run-{number}")


CASES = [
    pytest.param([], None, [], id="nothing"),
    pytest.param([one(1, OK, kept=None), one(2, OK, kept=False)], None, [], id="nothing was kept"),
    pytest.param([one(1, OK), one(2, OK)], 2, [1], id="the newest that succeeded"),
    pytest.param([one(1, OK), one(2, BAD)], 1, [2], id="what is known to work comes before what has failed"),
    pytest.param([one(1, BAD), one(2, BAD)], 2, [1], id="the newest that failed, where none has succeeded"),
    pytest.param([one(1, OK), one(2, OK, kept=False), one(3, BAD)], 1, [3], id="one that was not kept does not count"),
    pytest.param([one(1, OK), one(2, OK, "recollect", kept=None)], 1, [], id="reading outputs again keeps nothing"),
    pytest.param([one(1, OK), one(2, None)], 1, [], id="one under way may become the one"),
    pytest.param([one(1, None)], 1, [], id="one under way, alone"),
    pytest.param([one(1, OK), one(2, OK, "uninstall", kept=None)], None, [1], id="what is uninstalled needs none"),
    pytest.param([one(1, OK), one(2, BAD, "uninstall", kept=None)], 1, [], id="a failed uninstall changes nothing"),
    pytest.param(
        [one(1, OK), one(2, OK, "uninstall", kept=None), one(3, BAD)], 3, [1], id="what was there before does not count"
    ),
]


@pytest.mark.parametrize(("runs", "used", "over"), CASES)
def test_which_copy_is_used(runs: list[AgentAction], used: int | None, over: list[int]) -> None:
    """Whatever the order in which runs are seen, one copy is for the uninstall, and the others may go."""
    for order in (1, -1):
        holder = lending.holder(runs[::order])
        assert (holder.metadata.name if holder is not None else None) == (f"run-{used}" if used is not None else None)
        assert sorted(one.metadata.name for one in lending.superseded(runs[::order])) == [f"run-{one}" for one in over]


def plan() -> Plan:
    """An uninstall with a source and an input that are mounted."""
    return Plan(
        commands=[],
        copy_from=["/outhaul/source", "/outhaul/inputs/key"],
        volumes=[
            {"name": "source", "configMap": {"name": "code"}},
            {"name": "input-0", "secret": {"secretName": "login", "items": [], "optional": True}},
        ],
    )


def test_what_is_mounted_may_be_gone() -> None:
    """With a copy the pod starts whatever is gone; without the source, here or in the copy, nothing is run."""
    lent = plan()
    lending.lend(lent, [one(1, OK)])
    wanted = {"secretName": "run-1-source", "required": ["/outhaul/source"]}
    assert lent.kept_source == KeptSource.model_validate(wanted)
    assert lent.volumes[0]["configMap"] == {"name": "code", "optional": True}


def test_without_a_copy_the_source_has_to_be_there() -> None:
    """The pod waits for what is gone, and says so, rather than to uninstall nothing."""
    lent = plan()
    lending.lend(lent, [one(1, OK, kept=False)])
    assert lent == plan()


@pytest.mark.parametrize(
    ("act", "what", "kept"),
    [
        pytest.param(Action.INSTALL, {"copy_from": ["/outhaul/source"]}, True, id="mounted files"),
        pytest.param(Action.UPGRADE, {"copy_from": ["/outhaul/source"]}, True, id="upgrade"),
        pytest.param(Action.INSTALL, {"files": {"a": ""}}, False, id="files of its own"),
        pytest.param(Action.RECOLLECT, {"copy_from": ["/outhaul/source"]}, False, id="recollect"),
        pytest.param(Action.UNINSTALL, {"copy_from": ["/outhaul/source"]}, False, id="uninstall"),
    ],
)
def test_which_runs_keep_a_copy(act: Action, what: dict[str, Any], *, kept: bool) -> None:
    """Those that install something that does not stand in their own spec."""
    made = agent_action(installation(), run(None, act), Plan(commands=[], **what))
    assert made["spec"].get("keepSource", False) is kept
