"""Which run is due: a table, what holds in every combination, and a simulation of everything that can happen."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis
import pytest
from builders import OTHER_UID, UID, action, installation, owned_by_installation, run
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from outhaul_api.agentaction import AgentAction
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import (
    CANCEL_ANNOTATION,
    DIGEST_ANNOTATION,
    FORMER_CANCEL_ANNOTATION,
    INPUTS_ANNOTATION,
    RECOLLECT_ANNOTATION,
    RETRY_ANNOTATION,
    RETRY_LIMIT_ANNOTATION,
    Action,
    ActionPhase,
    DeletionPolicy,
    Reason,
)
from outhaul_operator import decisions, names
from outhaul_operator.decisions import Absent, BackingOff, Decision, Due, InFlight, Settled, Suspended, decide

INSTALL, UPGRADE, UNINSTALL, RECOLLECT = Action.INSTALL, Action.UPGRADE, Action.UNINSTALL, Action.RECOLLECT
SUCCEEDED, FAILED, CANCELLED = ActionPhase.SUCCEEDED, ActionPhase.FAILED, ActionPhase.CANCELLED

SPEC = {"parameters": {"size": 1}}
OTHER_SPEC = {"parameters": {"size": 2}}
DIGEST = decisions.spec_digest(installation(SPEC))
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
JUST_NOW, LONG_AGO = "2026-01-01T12:00:00Z", "2026-01-01T06:00:00Z"


@dataclass(frozen=True)
class Case:
    """An Installation and its newest run."""

    newest: RunReference | None
    deleting: bool = False
    orphan: bool = False
    uninstalled: bool = False
    changed: bool = False
    retry: str | None = None
    had_success: bool = True
    recollect: str | None = None
    inputs: str | None = None
    compare_inputs: bool = True
    limit: int | None = None
    cancel: str | None = None
    suspended: bool = False

    def decide(self) -> Decision:
        """Asks for the decision."""
        metadata: dict[str, Any] = {}
        if self.deleting:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        tokens = {
            RETRY_ANNOTATION: self.retry,
            RECOLLECT_ANNOTATION: self.recollect,
            CANCEL_ANNOTATION: self.cancel,
        }
        metadata["annotations"] = {key: token for key, token in tokens.items() if token is not None}
        spec = {
            **(OTHER_SPEC if self.changed else SPEC),
            "uninstalled": self.uninstalled,
            "deletionPolicy": "Orphan" if self.orphan else "Delete",
            "suspend": self.suspended,
            "retry": {"limit": self.limit} if self.limit is not None else {},
        }
        status = {"lastSucceeded": run(digest=DIGEST).to_json()} if self.had_success else {}
        return decide(
            installation(spec, status, **metadata),
            self.newest,
            self.inputs,
            compare_inputs=self.compare_inputs,
            now=NOW,
        )

    @property
    def to_uninstall(self) -> bool:
        """Whether nothing is wanted."""
        return self.deleting or self.uninstalled


def newest(act: Action, phase: ActionPhase | None, **changes: Any) -> RunReference:
    """Returns a run of the unchanged spec that no token asked for."""
    return run(phase, act, **{"digest": DIGEST, "number": 2, **changes})


ENDED = [newest(act, phase) for act in Action for phase in (SUCCEEDED, FAILED, CANCELLED)]
IN_FLIGHT = [newest(act, None) for act in Action]
NEVER_STARTED = newest(INSTALL, CANCELLED, started=False, first=True, number=2)


def same(phase: ActionPhase, act: Action = INSTALL) -> RunReference:
    """Returns a run that the retry token `a` asked for."""
    return newest(act, phase, retry="a")


def failed(act: Action = INSTALL, finished_at: str = LONG_AGO, **changes: Any) -> RunReference:
    """Returns a run that has failed at some time."""
    return newest(act, FAILED, **{"reason": "CommandFailed", "finished_at": finished_at, **changes})


# fmt: off
TABLE: list[tuple[str, Case, Decision]] = [
    ("nothing yet, something is wanted", Case(None), Due(INSTALL)),
    ("nothing yet, with a retry token", Case(None, retry="a"), Due(INSTALL)),
    ("nothing yet, nothing is wanted", Case(None, uninstalled=True), Absent()),
    ("nothing yet, deleted", Case(None, deleting=True), Absent()),
    ("nothing yet, deleted as an orphan", Case(None, deleting=True, orphan=True), Absent()),

    ("installed", Case(newest(INSTALL, SUCCEEDED)), Settled(newest(INSTALL, SUCCEEDED))),
    ("upgraded", Case(newest(UPGRADE, SUCCEEDED)), Settled(newest(UPGRADE, SUCCEEDED))),
    ("installed, to be an orphan one day", Case(newest(INSTALL, SUCCEEDED), orphan=True),
     Settled(newest(INSTALL, SUCCEEDED))),
    ("installed, changed", Case(newest(INSTALL, SUCCEEDED), changed=True), Due(UPGRADE)),
    ("installed, a new token", Case(newest(INSTALL, SUCCEEDED), retry="a"), Due(UPGRADE)),
    ("installed, an empty token", Case(newest(INSTALL, SUCCEEDED), retry=""), Settled(newest(INSTALL, SUCCEEDED))),
    ("installing, cancelled by nothing", Case(newest(INSTALL, None), cancel=""),
     InFlight(newest(INSTALL, None), newer_is_due=False)),
    ("installed, another token", Case(same(SUCCEEDED), retry="b"), Due(UPGRADE)),
    ("installed, the same token", Case(same(SUCCEEDED), retry="a"), Settled(same(SUCCEEDED))),
    ("installed, the token taken away", Case(same(SUCCEEDED)), Settled(same(SUCCEEDED))),
    ("installed, to be uninstalled", Case(newest(INSTALL, SUCCEEDED), uninstalled=True), Due(UNINSTALL)),
    ("installed, deleted", Case(newest(INSTALL, SUCCEEDED), deleting=True), Due(UNINSTALL)),
    ("installed, deleted and changed", Case(newest(INSTALL, SUCCEEDED), deleting=True, changed=True), Due(UNINSTALL)),
    ("installed, deleted as an orphan", Case(newest(INSTALL, SUCCEEDED), deleting=True, orphan=True), Absent()),

    ("failed", Case(newest(INSTALL, FAILED), had_success=False), Settled(newest(INSTALL, FAILED))),
    ("failed, changed", Case(newest(INSTALL, FAILED), changed=True, had_success=False), Due(INSTALL)),
    ("failed, a new token", Case(newest(INSTALL, FAILED), retry="a", had_success=False), Due(INSTALL)),
    ("failed, the same token", Case(same(FAILED), retry="a", had_success=False), Settled(same(FAILED))),
    ("failed upgrade, changed", Case(newest(UPGRADE, FAILED), changed=True), Due(UPGRADE)),
    ("failed, deleted", Case(newest(INSTALL, FAILED), deleting=True, had_success=False), Due(UNINSTALL)),
    ("failed, to be uninstalled", Case(newest(INSTALL, FAILED), uninstalled=True, had_success=False), Due(UNINSTALL)),
    ("cancelled", Case(newest(INSTALL, CANCELLED), had_success=False), Settled(newest(INSTALL, CANCELLED))),
    ("cancelled, deleted", Case(newest(UPGRADE, CANCELLED), deleting=True), Due(UNINSTALL)),

    ("never started, deleted", Case(NEVER_STARTED, deleting=True, had_success=False), Absent()),
    ("never started, not wanted", Case(NEVER_STARTED, uninstalled=True, had_success=False), Absent()),
    ("never started, changed", Case(NEVER_STARTED, changed=True, had_success=False), Due(INSTALL)),
    ("a later one never started, deleted", Case(newest(UPGRADE, CANCELLED, started=False), deleting=True),
     Due(UNINSTALL)),

    ("uninstalled", Case(newest(UNINSTALL, SUCCEEDED), uninstalled=True, had_success=False), Absent()),
    ("uninstalled, changed", Case(newest(UNINSTALL, SUCCEEDED), uninstalled=True, changed=True), Absent()),
    ("uninstalled, a new token", Case(newest(UNINSTALL, SUCCEEDED), uninstalled=True, retry="a"), Absent()),
    ("uninstalled, deleted", Case(newest(UNINSTALL, SUCCEEDED), deleting=True), Absent()),
    ("uninstalled, wanted again", Case(newest(UNINSTALL, SUCCEEDED), had_success=False), Due(INSTALL)),
    ("uninstall failed", Case(newest(UNINSTALL, FAILED), uninstalled=True), Settled(newest(UNINSTALL, FAILED))),
    ("uninstall failed, deleting", Case(newest(UNINSTALL, FAILED), deleting=True), Settled(newest(UNINSTALL, FAILED))),
    ("uninstall cancelled, deleting", Case(newest(UNINSTALL, CANCELLED), deleting=True),
     Settled(newest(UNINSTALL, CANCELLED))),
    ("uninstall failed, deleting, a new token", Case(newest(UNINSTALL, FAILED), deleting=True, retry="a"),
     Due(UNINSTALL)),
    ("uninstall failed, deleting, changed", Case(newest(UNINSTALL, FAILED), deleting=True, changed=True),
     Due(UNINSTALL)),
    ("uninstall failed, deleting, given up", Case(newest(UNINSTALL, FAILED), deleting=True, orphan=True), Absent()),
    ("uninstall failed, wanted again", Case(newest(UNINSTALL, FAILED)), Due(UPGRADE)),

    ("other inputs", Case(newest(INSTALL, SUCCEEDED, inputs="i"), inputs="j"), Due(UPGRADE)),
    ("the same inputs", Case(newest(INSTALL, SUCCEEDED, inputs="i"), inputs="i"),
     Settled(newest(INSTALL, SUCCEEDED, inputs="i"))),
    ("no inputs any more", Case(newest(INSTALL, SUCCEEDED, inputs="i")), Due(UPGRADE)),
    ("other inputs after a failure", Case(newest(INSTALL, FAILED, inputs="i"), inputs="j"), Due(UPGRADE)),
    ("inputs that cannot be told", Case(newest(INSTALL, SUCCEEDED, inputs="i"), inputs="j", compare_inputs=False),
     Settled(newest(INSTALL, SUCCEEDED, inputs="i"))),
    ("uninstalled, other inputs", Case(newest(UNINSTALL, SUCCEEDED, inputs="i"), uninstalled=True, inputs="j"),
     Absent()),
    ("uninstall failed, other inputs", Case(newest(UNINSTALL, FAILED, inputs="i"), deleting=True, inputs="j"),
     Settled(newest(UNINSTALL, FAILED, inputs="i"))),
    ("installing, other inputs", Case(newest(INSTALL, None, inputs="i"), inputs="j"),
     InFlight(newest(INSTALL, None, inputs="i"), newer_is_due=True)),

    ("to be read again", Case(newest(INSTALL, SUCCEEDED), recollect="a"), Due(RECOLLECT)),
    ("to be read again, with the same token", Case(newest(INSTALL, SUCCEEDED, recollect="a"), recollect="a"),
     Settled(newest(INSTALL, SUCCEEDED, recollect="a"))),
    ("read again", Case(newest(RECOLLECT, SUCCEEDED, recollect="a"), recollect="a"),
     Settled(newest(RECOLLECT, SUCCEEDED, recollect="a"))),
    ("read again, and once more", Case(newest(RECOLLECT, FAILED, recollect="a"), recollect="b"), Due(RECOLLECT)),
    ("read again, changed", Case(newest(RECOLLECT, FAILED, recollect="a"), recollect="a", changed=True), Due(UPGRADE)),
    ("read again, deleted", Case(newest(RECOLLECT, SUCCEEDED), deleting=True), Due(UNINSTALL)),
    ("to be read again and changed", Case(newest(INSTALL, SUCCEEDED), recollect="a", changed=True), Due(UPGRADE)),
    ("to be read again, not installed", Case(newest(INSTALL, FAILED), recollect="a"), Settled(newest(INSTALL, FAILED))),
    ("to be read again, uninstalled", Case(newest(UNINSTALL, SUCCEEDED), uninstalled=True, recollect="a"), Absent()),
    ("to be read again, uninstall failed", Case(newest(UNINSTALL, FAILED), uninstalled=True, recollect="a"),
     Settled(newest(UNINSTALL, FAILED))),
    ("to be read again, installing", Case(newest(INSTALL, None), recollect="a"),
     InFlight(newest(INSTALL, None), newer_is_due=False)),
    ("outputs lost", Case(newest(INSTALL, FAILED, outputs_lost=True), had_success=False), Due(RECOLLECT)),
    ("outputs lost, changed", Case(newest(UPGRADE, FAILED, outputs_lost=True), changed=True), Due(UPGRADE)),
    ("outputs lost, deleted", Case(newest(INSTALL, FAILED, outputs_lost=True), deleting=True), Due(UNINSTALL)),
    ("outputs lost again", Case(newest(RECOLLECT, FAILED, outputs_lost=True)),
     Settled(newest(RECOLLECT, FAILED, outputs_lost=True))),

    ("installing", Case(newest(INSTALL, None)), InFlight(newest(INSTALL, None), newer_is_due=False)),
    ("installing, changed", Case(newest(INSTALL, None), changed=True),
     InFlight(newest(INSTALL, None), newer_is_due=True)),
    ("installing, a new token", Case(newest(INSTALL, None), retry="a"),
     InFlight(newest(INSTALL, None), newer_is_due=True)),
    ("installing, deleted", Case(newest(INSTALL, None), deleting=True),
     InFlight(newest(INSTALL, None), newer_is_due=True)),
    ("installing, deleted as an orphan", Case(newest(INSTALL, None), deleting=True, orphan=True),
     InFlight(newest(INSTALL, None), newer_is_due=True)),
    ("uninstalling", Case(newest(UNINSTALL, None), uninstalled=True),
     InFlight(newest(UNINSTALL, None), newer_is_due=False)),
    ("uninstalling, wanted again", Case(newest(UNINSTALL, None)),
     InFlight(newest(UNINSTALL, None), newer_is_due=True)),

    ("failed, no limit is said", Case(failed()), Settled(failed())),
    ("failed, to be tried again", Case(failed(), limit=1, had_success=False), Due(INSTALL, 2)),
    ("failed upgrade, to be tried again", Case(failed(UPGRADE), limit=1), Due(UPGRADE, 2)),
    ("failed for the second time, two are left", Case(failed(attempt=2), limit=3, had_success=False), Due(INSTALL, 3)),
    ("failed for the last time", Case(failed(attempt=2), limit=1), Settled(failed(attempt=2))),
    ("failed for the last time, the limit was raised", Case(failed(UPGRADE, attempt=2), limit=2), Due(UPGRADE, 3)),
    ("failed, its AgentConfig has a limit", Case(failed(UPGRADE, retry_limit=1)), Due(UPGRADE, 2)),
    ("failed, its own limit is 0", Case(failed(UPGRADE, retry_limit=1), limit=0),
     Settled(failed(UPGRADE, retry_limit=1))),
    ("failed for good", Case(failed(reason="InvalidSpec"), limit=1), Settled(failed(reason="InvalidSpec"))),
    ("cancelled, with a limit", Case(newest(INSTALL, CANCELLED), limit=1), Settled(newest(INSTALL, CANCELLED))),
    ("succeeded, with a limit", Case(newest(INSTALL, SUCCEEDED), limit=1), Settled(newest(INSTALL, SUCCEEDED))),
    ("failed again and again, changed", Case(failed(attempt=9, finished_at=JUST_NOW), limit=1, changed=True),
     Due(UPGRADE)),
    ("failed again and again, a new token", Case(failed(attempt=9, finished_at=JUST_NOW), limit=1, retry="a"),
     Due(UPGRADE)),
    ("failed again and again, other inputs", Case(failed(attempt=9, finished_at=JUST_NOW), limit=1, inputs="i"),
     Due(UPGRADE)),
    ("failed, to be tried again, deleted", Case(failed(), limit=1, deleting=True), Due(UNINSTALL)),
    ("uninstall failed, to be tried again", Case(failed(UNINSTALL), limit=1, deleting=True), Due(UNINSTALL, 2)),
    ("uninstall failed, to be tried again, given up", Case(failed(UNINSTALL), limit=1, deleting=True, orphan=True),
     Absent()),
    ("could not be read again, to be tried again", Case(failed(RECOLLECT), limit=1), Due(RECOLLECT, 2)),
    ("outputs lost, to be tried again", Case(failed(outputs_lost=True), limit=1), Due(RECOLLECT)),

    ("installing, cancelled", Case(newest(INSTALL, None), cancel="a"),
     InFlight(newest(INSTALL, None), newer_is_due=False, is_cancelled=True)),
    ("installing, an earlier one was cancelled", Case(newest(INSTALL, None, cancel="a"), cancel="a"),
     InFlight(newest(INSTALL, None, cancel="a"), newer_is_due=False)),
    ("installing, cancelled once more", Case(newest(INSTALL, None, cancel="a"), cancel="b"),
     InFlight(newest(INSTALL, None, cancel="a"), newer_is_due=False, is_cancelled=True)),
    ("installing, the annotation was taken away", Case(newest(INSTALL, None, cancel="a")),
     InFlight(newest(INSTALL, None, cancel="a"), newer_is_due=False)),
    ("installing, cancelled and changed", Case(newest(INSTALL, None), cancel="a", changed=True),
     InFlight(newest(INSTALL, None), newer_is_due=True, is_cancelled=True)),
    ("installing, cancelled and suspended", Case(newest(INSTALL, None), cancel="a", suspended=True),
     InFlight(newest(INSTALL, None), newer_is_due=False, is_cancelled=True)),
    ("nothing yet, cancelled", Case(None, cancel="a"), Due(INSTALL)),
    ("installed, cancelled", Case(newest(INSTALL, SUCCEEDED), cancel="a"), Settled(newest(INSTALL, SUCCEEDED))),
    ("installed, cancelled, changed", Case(newest(INSTALL, SUCCEEDED), cancel="a", changed=True), Due(UPGRADE)),
    ("failed, to be tried again, cancelled", Case(failed(), limit=1, cancel="a"), Settled(failed())),
    ("failed, to be tried again, an earlier one was cancelled", Case(failed(UPGRADE, cancel="a"), limit=1, cancel="a"),
     Due(UPGRADE, 2)),
    ("cancelled before it had started", Case(newest(INSTALL, CANCELLED, started=False, first=True)),
     Settled(newest(INSTALL, CANCELLED, started=False, first=True))),
    ("has not started in time, deleted", Case(failed(started=False, first=True), deleting=True, had_success=False),
     Absent()),
    ("upgrade has not started in time, deleted", Case(failed(UPGRADE, started=False), deleting=True), Due(UNINSTALL)),

    ("new, suspended", Case(None, suspended=True), Suspended(None, Due(INSTALL))),
    ("installed, suspended", Case(newest(INSTALL, SUCCEEDED), suspended=True), Settled(newest(INSTALL, SUCCEEDED))),
    ("installed, changed, suspended", Case(newest(INSTALL, SUCCEEDED), suspended=True, changed=True),
     Suspended(newest(INSTALL, SUCCEEDED), Due(UPGRADE))),
    ("to be uninstalled, suspended", Case(newest(INSTALL, SUCCEEDED), suspended=True, uninstalled=True),
     Suspended(newest(INSTALL, SUCCEEDED), Due(UNINSTALL))),
    ("to be read again, suspended", Case(newest(INSTALL, SUCCEEDED), suspended=True, recollect="a"),
     Suspended(newest(INSTALL, SUCCEEDED), Due(RECOLLECT))),
    ("installing, suspended", Case(newest(INSTALL, None), suspended=True),
     InFlight(newest(INSTALL, None), newer_is_due=False)),
    ("installing, changed, suspended", Case(newest(INSTALL, None), suspended=True, changed=True),
     InFlight(newest(INSTALL, None), newer_is_due=False)),
    ("failed, suspended", Case(failed(), suspended=True), Settled(failed())),
    ("failed, to be tried again, suspended", Case(failed(UPGRADE), limit=1, suspended=True),
     Suspended(failed(UPGRADE), Due(UPGRADE, 2))),
    ("failed just now, to be tried again, suspended", Case(failed(UPGRADE, JUST_NOW), limit=1, suspended=True),
     Suspended(failed(UPGRADE, JUST_NOW), Due(UPGRADE, 2))),
    ("deleted, suspended", Case(newest(INSTALL, SUCCEEDED), suspended=True, deleting=True), Due(UNINSTALL)),
    ("installing, deleted, suspended", Case(newest(INSTALL, None), suspended=True, deleting=True),
     InFlight(newest(INSTALL, None), newer_is_due=True)),
    ("uninstalled, suspended", Case(newest(UNINSTALL, SUCCEEDED), suspended=True, uninstalled=True), Absent()),
]
# fmt: on


@pytest.mark.parametrize(("case", "expected"), [pytest.param(*rest, id=name) for name, *rest in TABLE])
def test_what_is_due(case: Case, expected: Decision) -> None:
    """Each situation that a person could describe has its one decision."""
    assert case.decide() == expected


def test_a_run_that_has_just_failed_is_not_tried_again_at_once() -> None:
    """The decision says when, and what is due then."""
    decision = Case(failed(UPGRADE, JUST_NOW), limit=1).decide()
    assert isinstance(decision, BackingOff)
    assert decision.retry == Due(UPGRADE, 2)
    assert NOW + timedelta(seconds=30) <= decision.until <= NOW + timedelta(seconds=36)


def every_case() -> Iterator[Case]:
    """Yields every combination of a newest run and what is wanted."""
    lost = newest(INSTALL, FAILED, outputs_lost=True)
    runs = [None, NEVER_STARTED, lost, *IN_FLIGHT, *ENDED, *(one.model_copy(update={"retry": "a"}) for one in ENDED)]
    runs += [failed(act, time) for act in Action for time in (JUST_NOW, LONG_AGO)]
    flags = itertools.product((False, True), repeat=5)
    for one, (deleting, orphan, uninstalled, changed, had_success) in itertools.product(runs, list(flags)):
        for retry, recollect, inputs in itertools.product((None, "a", "b"), (None, "a"), (None, "i")):
            case = Case(one, deleting, orphan, uninstalled, changed, retry, had_success, recollect, inputs)
            yield case
            yield replace(case, limit=1)
            yield replace(case, limit=1, suspended=True)


@pytest.fixture(scope="module")
def decided() -> list[tuple[Case, Decision]]:
    """Every combination with its decision."""
    return [(case, case.decide()) for case in every_case()]


def test_nothing_starts_beside_a_run_in_flight(decided: list[tuple[Case, Decision]]) -> None:
    """While a run has not ended, the decision is to wait for it, whatever is wanted."""
    for case, decision in decided:
        if case.newest is not None and case.newest.phase is None:
            assert isinstance(decision, InFlight), case


def test_only_what_is_wanted_starts(decided: list[tuple[Case, Decision]]) -> None:
    """Where nothing is wanted only an uninstall can start, and where something is wanted never one."""
    for case, decision in decided:
        if isinstance(decision, Due):
            assert (decision.action is UNINSTALL) == case.to_uninstall, case


def test_an_orphans_deletion_starts_nothing(decided: list[tuple[Case, Decision]]) -> None:
    """With policy Orphan a deletion waits for the run in flight, unless that has not started, and then ends."""
    for case, decision in decided:
        if case.deleting and case.orphan:
            assert isinstance(decision, Absent) or (isinstance(decision, InFlight) and decision.newer_is_due), case


def test_nothing_is_forgotten_before_it_is_uninstalled(decided: list[tuple[Case, Decision]]) -> None:
    """With policy Delete the end comes after a successful uninstall, or where nothing was ever started."""
    for case, decision in decided:
        if isinstance(decision, Absent) and not (case.deleting and case.orphan):
            assert case.to_uninstall, case
            assert (
                case.newest is None
                or case.newest is NEVER_STARTED
                or (case.newest.action is UNINSTALL and case.newest.phase is SUCCEEDED)
            ), case


def test_what_has_ended_starts_again_only_for_a_reason(decided: list[tuple[Case, Decision]]) -> None:
    """A run that has ended is the last one while spec, retry token and direction stay the same."""
    for case, decision in decided:
        one = case.newest
        if one is None or one.phase is None or (one.phase is FAILED and case.limit):
            continue
        if case.changed or case.retry not in {None, one.retry} or case.inputs:
            continue
        if (one.action is UNINSTALL) == case.to_uninstall and not case.recollect and not one.outputs_lost:
            assert not isinstance(decision, Due), case


def test_a_failed_run_is_followed_by_itself_only_within_its_limit(decided: list[tuple[Case, Decision]]) -> None:
    """Only what was asked for is tried again, only after a failure, and each time the attempt is counted."""
    for case, decision in decided:
        retry = decision.retry if isinstance(decision, BackingOff) else decision
        if isinstance(retry, Due) and retry.attempt > 1:
            assert case.limit, case
            assert case.newest is not None, case
            assert case.newest.phase is FAILED, case


def test_nothing_starts_while_it_is_suspended(decided: list[tuple[Case, Decision]]) -> None:
    """But an uninstall, where the Installation is deleted; and what would have started is said."""
    for case, decision in decided:
        if not case.suspended:
            continue
        free = replace(case, suspended=False).decide()
        if case.deleting:
            assert decision == free, case
        elif isinstance(free, Due | BackingOff):
            assert decision == Suspended(case.newest, free.retry if isinstance(free, BackingOff) else free), case
        else:
            assert type(decision) is type(free), case


def test_outputs_are_read_again_of_what_is_there(decided: list[tuple[Case, Decision]]) -> None:
    """Reading again never follows an uninstall, never takes the place of a run that is due, and never of the end."""
    for case, decision in decided:
        if isinstance(decision, Due) and decision.action is RECOLLECT:
            assert case.newest is not None, case
            assert case.newest.action is not UNINSTALL, case
            assert not case.to_uninstall, case
            assert not case.changed, case
            assert case.newest.phase is SUCCEEDED or case.newest.outputs_lost or case.newest.action is RECOLLECT, case


# -- the digest


def test_a_field_at_its_default_does_not_count() -> None:
    """Writing a default out starts no run, so a later version's new fields start none either."""
    written = installation({**SPEC, "uninstalled": False, "labels": {}, "outputs": {}, "deletionPolicy": "Delete"})
    assert decisions.spec_digest(written) == DIGEST


@pytest.mark.parametrize(
    "change",
    [
        {"uninstalled": True},
        {"deletionPolicy": "Orphan"},
        {"dependsOn": ["other"]},
        {"outputs": {"secretName": "other"}},
        {"outputs": {"keyStyle": "Env"}},
        {"outputs": {"template": {"a": "b"}}},
        {"outputs": {"binding": {"type": "a"}}},
        {"outputs": {"historyLimit": 1}},
        {"retry": {"limit": 3, "backoff": "1m"}},
        {"suspend": True},
    ],
)
def test_what_is_no_part_of_a_run_does_not_count(change: dict[str, Any]) -> None:
    """What says when to run, whether to uninstall, or how outputs are shown, changes nothing that is installed."""
    assert decisions.spec_digest(installation({**SPEC, **change})) == DIGEST


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"size": 1.5}},
        {"parameters": {"size": "1"}},
        {"parameters": {"size": 1, "extra": None}},
        {"engine": "terraform"},
        {"timeout": "1h"},
        {"agentConfig": {"name": "big"}},
        {"source": {"files": {"main.tf": ""}}},
        {"outputs": {"nonSensitive": ["a"]}},
        {"inputs": [{"name": "a", "secretKeyRef": {"name": "s", "key": "k"}}]},
        {"bundle": {"repository": "ghcr.io/x/y"}},
    ],
)
def test_everything_else_counts(change: dict[str, Any]) -> None:
    """A change of anything that a run is made from is a change."""
    assert decisions.spec_digest(installation({**SPEC, **change})) != DIGEST


# -- the next run


@pytest.mark.parametrize("annotation", [RETRY_ANNOTATION, RECOLLECT_ANNOTATION])
def test_a_token_may_come_back(annotation: str) -> None:
    """A token that was used before asks again, for a run of another name: an old one is not taken for it."""
    newest_one: RunReference | None = None
    names = set()
    for token in ["a", "b", "a", "c", "a"]:
        asking = installation(SPEC, annotations={annotation: token})
        decision = decide(asking, newest_one, now=NOW)
        assert isinstance(decision, Due)
        newest_one = decisions.next_run(asking, newest_one, decision)
        names.add(newest_one.name)
        newest_one = newest_one.model_copy(update={"phase": SUCCEEDED})
        assert decide(asking, newest_one, now=NOW) == Settled(newest_one)
    assert len(names) == 5


def test_the_next_run_says_what_was_due() -> None:
    """It remembers everything that a later decision compares."""
    tokens = {RETRY_ANNOTATION: "a", RECOLLECT_ANNOTATION: "b", CANCEL_ANNOTATION: "c"}
    asking = installation(SPEC, annotations=tokens, generation=4)
    reference = decisions.next_run(asking, newest(INSTALL, SUCCEEDED), Due(UPGRADE, 2), "i", retry_limit=3)
    assert reference == RunReference(
        name=reference.name,
        action=UPGRADE,
        generation=4,
        number=3,
        attempt=2,
        retry_limit=3,
        digest=DIGEST,
        inputs="i",
        retry="a",
        recollect="b",
        cancel="c",
    )
    assert reference.name.startswith("shop-")


# -- the newest run


def run_called(number: int) -> str:
    """Returns the name of a run."""
    return names.run_name("shop", uid=UID, number=number)


def existing(
    number: int, phase: str | None = None, uid: str = UID, *, controller: bool = True, name: str | None = None
) -> AgentAction:
    """Returns a run as an AgentAction that exists."""
    return action(
        {
            "installation": {"name": "shop", "uid": UID, "generation": number, "number": number, "attempt": 2},
            "action": "upgrade",
        },
        {"phase": phase, "finishedAt": "2026-01-01T00:00:00Z", "reason": "PodLost"} if phase is not None else {},
        name=name or run_called(number),
        ownerReferences=owned_by_installation(uid, controller=controller),
        annotations={
            DIGEST_ANNOTATION: "d",
            INPUTS_ANNOTATION: "i",
            RETRY_ANNOTATION: "a",
            RECOLLECT_ANNOTATION: "b",
            RETRY_LIMIT_ANNOTATION: "3",
            FORMER_CANCEL_ANNOTATION: "c",
        },
    )


def remembering(number: int, phase: ActionPhase | None) -> Installation:
    """Returns an Installation that remembers a run."""
    return installation(status={"action": run(phase, UPGRADE, name=f"shop-{number}", number=number).to_json()})


def test_a_run_says_what_its_installation_needs_to_know() -> None:
    """An AgentAction that exists tells what was due, for which generation, and how it went."""
    reference, found = decisions.newest_run(installation(), [existing(7, "Failed")])
    assert found == existing(7, "Failed")
    assert reference == run(
        FAILED,
        UPGRADE,
        name=run_called(7),
        number=7,
        generation=7,
        attempt=2,
        retry_limit=3,
        reason="PodLost",
        inputs="i",
        retry="a",
        recollect="b",
        cancel="c",
        finished_at="2026-01-01T00:00:00Z",
    )


@pytest.mark.parametrize("phase", [None, "Pending", "Running"])
def test_a_run_that_has_not_ended_is_in_flight(phase: str | None) -> None:
    """Any phase but a final one is none, for a decision."""
    reference, _ = decisions.newest_run(installation(), [existing(1, phase)])
    assert reference is not None
    assert reference.phase is None


def test_the_highest_number_is_the_newest() -> None:
    """Neither order nor name nor phase matters."""
    reference, _ = decisions.newest_run(installation(), [existing(9), existing(10, "Succeeded"), existing(2)])
    assert reference is not None
    assert reference.number == 10


def test_runs_of_others_do_not_count() -> None:
    """A run counts where this Installation controls it, by uid, and under its own name: a copy of it is none."""
    others = [existing(3, uid=OTHER_UID), existing(4, controller=False), existing(5, name="copy")]
    assert decisions.newest_run(installation(), others) == (None, None)


def test_a_run_that_exists_is_believed_before_memory() -> None:
    """The phase is the AgentAction's, where the Installation remembers an older one of the same run."""
    reference, _ = decisions.newest_run(remembering(3, None), [existing(3, "Succeeded")])
    assert reference is not None
    assert reference.phase is SUCCEEDED


def test_a_run_of_an_operator_that_died_is_found() -> None:
    """A run that was created, but not yet remembered, is the newest."""
    reference, found = decisions.newest_run(remembering(3, SUCCEEDED), [existing(3, "Succeeded"), existing(4)])
    assert reference is not None
    assert reference.number == 4
    assert found is not None


def test_a_run_that_was_cleaned_up_is_remembered() -> None:
    """A run that had ended is not started again since its AgentAction is gone, though an older one is there."""
    memory = remembering(3, SUCCEEDED)
    assert decisions.newest_run(memory, []) == (memory.status.action, None)
    assert decisions.newest_run(memory, [existing(2, "Failed")]) == (memory.status.action, None)


def test_a_run_that_somebody_deleted_is_cancelled() -> None:
    """A run that had not ended and is gone was cancelled."""
    reference, found = decisions.newest_run(remembering(3, None), [existing(2, "Succeeded")])
    assert reference is not None
    assert (reference.number, reference.phase, found) == (3, CANCELLED, None)


# -- everything that can happen


@dataclass
class Stored:
    """An Installation on the API server, as far as decisions read it."""

    uid: str = UID
    spec: dict[str, Any] = field(default_factory=lambda: {"parameters": {"size": 0}, "deletionPolicy": "Delete"})
    annotations: dict[str, str] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    deleting: bool = False
    gone: bool = False

    def read(self) -> Installation:
        """Returns what the operator reads."""
        deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.deleting else {}
        return installation(
            self.spec,
            self.status,
            uid=self.uid,
            generation=self.generation,
            annotations=self.annotations,
            **deleting,
        )


class Life(RuleBasedStateMachine):
    """One Installation: people, runs and an operator that may die between any two of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored()
        self.actions: dict[str, AgentAction] = {}
        self.numbers: list[int] = []
        self.used: set[str] = set()
        self.inputs = 0
        self.now = NOW
        self.in_a_row = 0
        """How many runs have followed each other by themselves."""
        self.installed = False
        """Whether a run has started something that no uninstall has taken away."""

    # -- people

    def change(self, **spec: Any) -> None:
        """Writes a spec; the server counts it where it differs."""
        wanted = {**self.stored.spec, **spec}
        self.stored.generation += wanted != self.stored.spec
        self.stored.spec = wanted

    @precondition(lambda self: not self.stored.gone)
    @rule(size=st.integers(0, 2))
    def edit(self, size: int) -> None:
        """Somebody edits the spec, back to an earlier one perhaps."""
        self.change(parameters={"size": size})

    @precondition(lambda self: not self.stored.gone)
    @rule(uninstalled=st.booleans())
    def want(self, *, uninstalled: bool) -> None:
        """Somebody asks for an uninstall, or takes that back."""
        self.change(uninstalled=uninstalled)

    @precondition(lambda self: not self.stored.gone)
    @rule(policy=st.sampled_from(DeletionPolicy))
    def choose(self, policy: DeletionPolicy) -> None:
        """Somebody changes the deletion policy."""
        self.change(deletionPolicy=policy.value)

    @precondition(lambda self: not self.stored.gone)
    @rule(limit=st.integers(0, 2), suspend=st.booleans())
    def restrain(self, limit: int, *, suspend: bool) -> None:
        """Somebody changes how often a failed run is tried again, or suspends it all."""
        self.change(retry={"limit": limit, "backoff": "1m"}, suspend=suspend)

    @rule(minutes=st.integers(1, 3))
    def wait(self, minutes: int) -> None:
        """Time passes."""
        self.now += timedelta(minutes=minutes)

    @precondition(lambda self: not self.stored.gone)
    @rule(token=st.sampled_from(["", "a", "b"]))
    def retry(self, token: str) -> None:
        """Somebody asks for another run, with a token that was used before perhaps."""
        self.stored.annotations[RETRY_ANNOTATION] = token

    @precondition(lambda self: not self.stored.gone)
    @rule(token=st.sampled_from(["", "a", "b"]))
    def recollect(self, token: str) -> None:
        """Somebody asks for the outputs to be read again."""
        self.stored.annotations[RECOLLECT_ANNOTATION] = token

    @rule(inputs=st.integers(0, 1))
    def change_inputs(self, inputs: int) -> None:
        """What the Installation uses of others changes."""
        self.inputs = inputs

    @precondition(lambda self: not self.stored.gone and not self.stored.deleting)
    @rule()
    def delete(self) -> None:
        """Somebody deletes the Installation."""
        self.stored.deleting = True
        self.stored.generation += 1

    @precondition(lambda self: self.remembered() in self.actions)
    @rule()
    def delete_run(self) -> None:
        """Somebody deletes the newest run's AgentAction, and with it its pod."""
        del self.actions[self.remembered()]

    @precondition(lambda self: self.stored.gone)
    @rule(uid=st.uuids().map(str))
    def create_again(self, uid: str) -> None:
        """Somebody creates an Installation of the same name before the garbage collector has come."""
        self.stored = Stored(uid)
        self.numbers.clear()
        self.installed = False

    def remembered(self) -> str:
        """Returns the name of the run in the status."""
        return str(self.stored.status.get("action", {}).get("name", ""))

    # -- runs

    def in_flight(self) -> list[AgentAction]:
        """Returns the runs that have not ended."""
        return [one for one in self.actions.values() if one.status.phase is None or not one.status.phase.is_final]

    @precondition(lambda self: self.in_flight())
    @rule(phase=st.sampled_from([SUCCEEDED, FAILED, CANCELLED]), reason=st.sampled_from([None, Reason.OUTPUTS_LOST]))
    def end_run(self, phase: ActionPhase, reason: Reason | None = None) -> None:
        """The run in flight ends, and its outputs are lost perhaps."""
        (one,) = self.in_flight()
        time = f"{self.now:%Y-%m-%dT%H:%M:%SZ}"
        news = {"phase": phase, "reason": reason if phase is FAILED else None, "finished_at": time}
        self.actions[one.metadata.name] = one.model_copy(update={"status": one.status.model_copy(update=news)})
        if one.spec.action is UNINSTALL and phase is SUCCEEDED:
            self.installed = False

    # -- the operator

    @precondition(lambda self: not self.stored.gone)
    @rule(dies=st.booleans())
    def reconcile(self, *, dies: bool) -> None:
        """The operator makes a pass; it dies, perhaps, before it has written the status."""
        seen = self.stored.read()
        newest_one, _ = decisions.newest_run(seen, self.actions.values())
        decision = self.decide(seen, newest_one)
        if isinstance(decision, Due):
            newest_one = self.create(seen, newest_one, decision)
        if isinstance(decision, Absent) and seen.metadata.deletion_timestamp is not None:
            assert not self.installed or seen.spec.deletion_policy is DeletionPolicy.ORPHAN
            self.stored.gone = True
        elif not dies:
            self.write_status(newest_one)

    def decide(self, seen: Installation, newest_one: RunReference | None) -> Decision:
        """Asks for the decision."""
        return decide(seen, newest_one, str(self.inputs), compare_inputs=True, now=self.now)

    def create(self, seen: Installation, newest_one: RunReference | None, due: Due) -> RunReference:
        """Creates a run as the operator does."""
        assert due.action is not RECOLLECT or self.installed, "there is nothing to read"
        assert not seen.spec.suspend or self.stored.deleting
        self.in_a_row = self.in_a_row + 1 if due.attempt > 1 else 0
        assert due.attempt == self.in_a_row + 1
        assert self.in_a_row <= (seen.spec.retry.limit or 0)
        reference = decisions.next_run(seen, newest_one, due, str(self.inputs))
        assert reference.name not in self.used, "an old run would be taken for the new one"
        self.used.add(reference.name)
        self.numbers.append(reference.number)
        self.installed = self.installed or due.action is not UNINSTALL
        annotations = {DIGEST_ANNOTATION: reference.digest, INPUTS_ANNOTATION: str(self.inputs)}
        tokens = {RETRY_ANNOTATION: reference.retry, RECOLLECT_ANNOTATION: reference.recollect}
        annotations |= {key: token for key, token in tokens.items() if token is not None}
        self.actions[reference.name] = action(
            {
                "action": due.action.value,
                "installation": {
                    "name": "shop",
                    "uid": self.stored.uid,
                    "generation": reference.generation,
                    "number": reference.number,
                    "attempt": due.attempt,
                },
            },
            name=reference.name,
            annotations=annotations,
            ownerReferences=owned_by_installation(self.stored.uid),
        )
        return reference

    def write_status(self, newest_one: RunReference | None) -> None:
        """Remembers the newest run, and whether one has succeeded since the last uninstall."""
        if newest_one is None:
            return
        self.stored.status["action"] = newest_one.to_json()
        if newest_one.phase is SUCCEEDED:
            self.stored.status["lastSucceeded"] = newest_one.to_json()
            if newest_one.action is UNINSTALL:
                del self.stored.status["lastSucceeded"]

    # -- what holds

    @invariant()
    def one_run_at_a_time(self) -> None:
        """There are never two runs in flight."""
        assert len(self.in_flight()) <= 1

    @invariant()
    def numbers_rise(self) -> None:
        """Each run has a higher number than the one before."""
        assert all(one < other for one, other in itertools.pairwise(self.numbers))

    @invariant()
    def passes_repeat_nothing(self) -> None:
        """Two passes in a row, with nothing happening between them, start one run at most."""
        if self.stored.gone:
            return
        seen = self.stored.read()
        newest_one, _ = decisions.newest_run(seen, self.actions.values())
        decision = self.decide(seen, newest_one)
        if isinstance(decision, Due):
            reference = decisions.next_run(seen, newest_one, decision, str(self.inputs))
            assert self.decide(seen, reference) == InFlight(reference, newer_is_due=False)

    def teardown(self) -> None:
        """Left alone, with runs that succeed, it settles at what is wanted; deleted, it goes."""
        if self.stored.gone:
            return
        self.change(suspend=False)
        for _ in range(5):
            self.wait(10)
            self.reconcile(dies=False)
            if self.stored.gone:
                return
            if self.in_flight():
                self.end_run(SUCCEEDED)
        created = len(self.numbers)
        self.reconcile(dies=False)
        assert len(self.numbers) == created, "it does not come to rest"
        assert not self.in_flight()
        seen = self.stored.read()
        assert not self.stored.deleting or isinstance(self.decide(seen, seen.status.action), Settled)


TestLife = Life.TestCase
TestLife.settings = hypothesis.settings(max_examples=100, stateful_step_count=25, deadline=None)
