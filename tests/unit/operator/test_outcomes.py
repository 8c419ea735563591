"""Where an Installation stands: words for people, conditions for programs, as kstatus defines them."""

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from builders import action, installation, run
from outhaul_api.agentaction import AgentAction
from outhaul_api.common import Condition
from outhaul_api.installation import Installation, InstallationStatus, RunReference
from outhaul_api.vocabulary import Action, ActionPhase, InstallationPhase, Reason
from outhaul_operator import outcomes
from outhaul_operator.decisions import BackingOff, Due, InFlight, Settled, Suspended
from outhaul_operator.outcomes import Outcome
from outhaul_operator.verdicts import StalledError, WaitingError

LONG_AGO = "2020-01-01T00:00:00Z"
FAILED, SUCCEEDED, CANCELLED = ActionPhase.FAILED, ActionPhase.SUCCEEDED, ActionPhase.CANCELLED


def standing(type_: str, status: str, reason: str = "Old", message: str = "old") -> Condition:
    """Returns a condition that has stood for long."""
    return Condition(type=type_, status=status, reason=reason, message=message, last_transition_time=LONG_AGO)


def told(outcome: Outcome, newest: RunReference | None = None, *old: Condition) -> dict[str, tuple[str, str]]:
    """Returns status and reason of each condition of an outcome."""
    found = outcomes.conditions(list(old), outcome, newest, 7)
    assert len({one.type for one in found}) == len(found)
    assert InstallationStatus(conditions=found).conditions == found
    return {one.type: (one.status, one.reason) for one in found}


def settled(newest: RunReference, found: AgentAction | None, of: Installation | None = None) -> Outcome:
    """Returns where an Installation stands whose newest run has ended."""
    return outcomes.at_rest(Settled(newest), found, of or installation())


# -- while a run is under way


def test_a_run_under_way_is_reconciling() -> None:
    """The message names the run and what it does."""
    outcome = outcomes.in_flight(InFlight(run(None), newer_is_due=False), None)
    assert (outcome.phase, outcome.reason) == (InstallationPhase.RUNNING, Reason.IN_PROGRESS)
    assert outcome.message == "run shop-1 is under way (install, generation 1)"
    assert told(outcome) == {
        "Ready": ("False", "InProgress"),
        "Reconciling": ("True", "InProgress"),
        "OutputsReady": ("False", "NoOutputs"),
    }


def test_a_newer_spec_waits() -> None:
    """That a newer spec waits for the run in flight is its reason."""
    assert outcomes.in_flight(InFlight(run(None), newer_is_due=True), None).reason is Reason.WAITING_FOR_RUN


def test_a_run_that_cannot_start_says_why_on_its_installation() -> None:
    """Whoever looks at the Installation sees what its run waits for."""
    waiting = action(status={"phase": "Pending", "reason": "ImagePullFailed", "message": "no image"})
    outcome = outcomes.in_flight(InFlight(run(None), newer_is_due=False), waiting)
    assert outcome.reason is Reason.IMAGE_PULL_FAILED
    assert outcome.message == "run shop-1 has not started: no image"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "reason": "AgentUnreachable", "message": "x"},
        {"phase": "Pending"},
        {"phase": "Pending", "reason": "PodPending"},
        {"phase": "Pending", "reason": "AReasonOfALaterVersion", "message": "x"},
    ],
)
def test_a_run_that_is_well_or_speaks_of_something_unknown_is_under_way(status: dict[str, Any]) -> None:
    """Only a run that has not started, for a reason that is known, is said to wait."""
    outcome = outcomes.in_flight(InFlight(run(None), newer_is_due=False), action(status=status))
    assert outcome.reason is Reason.IN_PROGRESS


def test_a_run_that_is_told_to_stop_says_so() -> None:
    """Whether its Installation was asked, or the run itself."""
    asked = action(annotations={"outhaul.dev/cancel": ""})
    for decision, found in (
        (InFlight(run(None), newer_is_due=False, is_cancelled=True), action()),
        (InFlight(run(None), newer_is_due=False), asked),
    ):
        outcome = outcomes.in_flight(decision, found)
        assert outcome.reason is Reason.IN_PROGRESS
        assert "is being cancelled" in outcome.message


def test_outputs_that_are_refused_are_not_cancelled() -> None:
    """A run whose commands have ended is not told to stop, whatever is asked."""
    refused = {"phase": "Running", "reason": "OutputsRefused", "message": "the quota"}
    outcome = outcomes.in_flight(InFlight(run(None), newer_is_due=False, is_cancelled=True), action(status=refused))
    assert (outcome.reason, outcome.message) == (Reason.OUTPUTS_REFUSED, "run shop-1 has ended: the quota")


def test_lost_outputs_stay_lost_until_somebody_has_looked() -> None:
    """Another problem of an Installation does not say that its outputs can be read again; its success does."""
    lost = standing("OutputsReady", "False", "OutputsLost")
    other = outcomes.stalled(StalledError(Reason.CANNOT_RECOLLECT, "files"))
    assert told(other, run(), lost)["OutputsReady"] == ("False", "OutputsLost")
    assert told(settled(run(), None), run(), lost)["OutputsReady"] == ("True", "Published")


def test_outputs_stay_readable_during_an_upgrade() -> None:
    """What was published before can be read on while a run is under way."""
    upgrading = outcomes.in_flight(InFlight(run(None, Action.UPGRADE), newer_is_due=False), None)
    newest = run(None, Action.UPGRADE)
    found = outcomes.conditions([standing("OutputsReady", "True", "Published")], upgrading, newest, 7)
    assert found[-1] == standing("OutputsReady", "True", "Published")


# -- after it


def test_a_success_is_ready() -> None:
    """Ready and the outputs are true, and nothing else is there."""
    outcome = settled(run(), None)
    assert (outcome.phase, outcome.message) == (
        InstallationPhase.SUCCEEDED,
        "run shop-1 succeeded (install, generation 1)",
    )
    assert told(outcome, run(), standing("Reconciling", "True"), standing("Stalled", "True")) == {
        "Ready": ("True", "Succeeded"),
        "OutputsReady": ("True", "Published"),
    }


def test_a_failure_is_stalled() -> None:
    """The message quotes the run and says what to do next."""
    failed = action(status={"phase": "Failed", "message": "apply: exit code 3"})
    outcome = settled(run(FAILED), failed, installation())
    assert outcome.phase is InstallationPhase.FAILED
    assert outcome.message == (
        "run shop-1 (install) has failed: apply: exit code 3. "
        "To go on, change the spec, or set the annotation outhaul.dev/retry to a new value."
    )
    assert told(outcome, run(FAILED)) == {
        "Ready": ("False", "RunFailed"),
        "Stalled": ("True", "RunFailed"),
        "OutputsReady": ("False", "NoOutputs"),
    }


def test_a_failed_uninstall_says_how_to_give_up() -> None:
    """Its reason is its own, and the way out of a deletion that does not end is named."""
    outcome = settled(run(FAILED, Action.UNINSTALL), action(), installation())
    assert outcome.reason is Reason.UNINSTALL_FAILED
    assert "deletionPolicy Orphan gives up" in outcome.message


def test_a_failure_without_words_says_so() -> None:
    """No message ends in `None`."""
    message = settled(run(FAILED), action(status={"phase": "Failed"}), installation()).message
    assert "has failed: it does not say why." in message


def test_a_run_that_was_deleted_is_cancelled() -> None:
    """A run whose AgentAction somebody deleted is told as such."""
    message = settled(run(CANCELLED), None, installation()).message
    assert message.startswith("run shop-1 (install) was cancelled: its AgentAction was deleted, or")


def test_what_a_failed_run_said_stays() -> None:
    """After the AgentAction was cleaned up, its words stand on the Installation on."""
    said = standing("Ready", "False", "RunFailed", "run shop-1 (install) has failed: exit code 3.").to_json()
    outcome = settled(run(FAILED), None, installation(status={"conditions": [said]}))
    assert outcome.message == "run shop-1 (install) has failed: exit code 3."


def test_an_older_success_stays_readable_after_a_failure() -> None:
    """A failed upgrade does not take away the outputs of the run before."""
    failed = settled(run(FAILED, Action.UPGRADE), action(), installation())
    assert told(failed, run(FAILED, Action.UPGRADE), standing("OutputsReady", "True", "Published"))["OutputsReady"] == (
        "True",
        "Published",
    )


# -- before the next one


UNTIL = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def backing_off(newest: RunReference, found: AgentAction | None, *said: Condition) -> Outcome:
    """Returns where an Installation stands whose newest run has failed and is tried again, up to four times in all."""
    status = {"conditions": [one.to_json() for one in said]}
    of = installation({"retry": {"limit": 3}}, status)
    return outcomes.at_rest(BackingOff(newest, Due(Action.UPGRADE, 2), UNTIL), found, of)


def test_a_failure_that_is_tried_again_is_reconciling() -> None:
    """The message says what has failed, which attempt is the next, of how many, and when."""
    gone = action(status={"phase": "Failed", "message": "apply: exit code 3"})
    outcome = backing_off(run(FAILED, Action.UPGRADE), gone)
    assert outcome.phase is InstallationPhase.PENDING
    assert outcome.message == (
        "run shop-1 (upgrade) has failed: apply: exit code 3. Attempt 2 of 4 starts at 2026-01-01T12:00:30Z"
    )
    assert told(outcome, run(FAILED, Action.UPGRADE), standing("OutputsReady", "True", "Published")) == {
        "Ready": ("False", "RetryScheduled"),
        "Reconciling": ("True", "RetryScheduled"),
        "OutputsReady": ("True", "Published"),
    }


def test_what_was_said_of_a_failure_stays_until_the_next_attempt() -> None:
    """The AgentAction may be cleaned up meanwhile; where nothing was said, there is still the reason."""
    said = standing("Ready", "False", "RetryScheduled", "as it was. Attempt 2 of 4 starts at some time")
    message = backing_off(run(FAILED), None, said).message
    assert message == "as it was. Attempt 2 of 4 starts at 2026-01-01T12:00:30Z"
    assert "has failed: PodLost." in backing_off(run(FAILED, reason="PodLost"), None).message


def test_the_last_of_several_failures_counts_them() -> None:
    """Who looks later sees that it was tried."""
    gone = action(status={"phase": "Failed", "message": "exit code 3"})
    outcome = settled(run(FAILED, attempt=4, reason="CommandFailed"), gone)
    assert outcome.message.startswith("run shop-1 (install) has failed, as the 3 before it: exit code 3. To go on,")
    assert outcome.stalled


def test_what_is_due_and_suspended_neither_works_nor_fails() -> None:
    """Not ready at this generation; kstatus calls that in progress, and nobody is alarmed."""
    outcome = outcomes.at_rest(Suspended(run(), Due(Action.UPGRADE)), None, installation())
    assert (outcome.phase, outcome.message) == (
        InstallationPhase.PENDING,
        "upgrade is due, and starts once spec.suspend is taken away",
    )
    assert told(outcome, run(), standing("Reconciling", "True"), standing("Stalled", "True")) == {
        "Ready": ("False", "Suspended"),
        "OutputsReady": ("True", "Published"),
    }


@pytest.mark.parametrize(
    ("spec", "metadata", "expected"),
    [
        ({"suspend": True}, {}, [("Suspended", "True", "Suspended")]),
        ({}, {}, []),
        ({"suspend": True}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, []),
    ],
)
def test_that_no_run_starts_is_a_condition(
    spec: dict[str, Any], metadata: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    """It is there while it is so, whatever else is; a deletion is not held up."""
    found = outcomes.suspension([], installation(spec, **metadata), 7)
    assert [(one.type, one.status, one.reason) for one in found] == expected


# -- without a run


def test_what_needs_a_person_is_stalled() -> None:
    """A verdict that only a person can mend is failure."""
    outcome = outcomes.stalled(StalledError(Reason.UNKNOWN_ENGINE, "use another"))
    assert (outcome.phase, outcome.message) == (InstallationPhase.FAILED, "use another")
    assert told(outcome)["Stalled"] == ("True", "UnknownEngine")


def test_what_will_come_is_reconciling() -> None:
    """A verdict that time may mend is no failure."""
    outcome = outcomes.waiting(WaitingError(Reason.AGENT_CONFIG_NOT_FOUND, "create it"))
    assert (outcome.phase, outcome.message) == (InstallationPhase.PENDING, "create it")
    assert told(outcome)["Reconciling"] == ("True", "AgentConfigNotFound")


def test_an_uninstalled_one_is_ready_and_has_no_outputs() -> None:
    """What `spec.uninstalled` asks for is there; there is nothing to read any more."""
    newest = run(SUCCEEDED, Action.UNINSTALL)
    assert told(outcomes.uninstalled("as asked"), newest, standing("OutputsReady", "True")) == {
        "Ready": ("True", "Uninstalled"),
        "OutputsReady": ("False", "NoOutputs"),
    }


@pytest.mark.parametrize("reason", [Reason.SECRET_CONFLICT, Reason.TEMPLATE_FAILED, Reason.OUTPUT_TOO_LARGE])
def test_outputs_that_cannot_be_shown_are_not_ready(reason: Reason) -> None:
    """A latest Secret that cannot be written is no Secret to read, though the run has succeeded."""
    outcome = outcomes.stalled(StalledError(reason, "words"))
    assert told(outcome, run(), standing("OutputsReady", "True"))["OutputsReady"] == ("False", str(reason))


# -- whatever it is


OUTCOMES = [
    outcomes.in_flight(InFlight(run(None), newer_is_due=False), None),
    settled(run(), None),
    settled(run(FAILED), action()),
    backing_off(run(FAILED), None),
    outcomes.stalled(StalledError(Reason.INVALID_SPEC, "x" * 9000)),
    outcomes.waiting(WaitingError(Reason.POD_REFUSED, "x" * 9000)),
    outcomes.uninstalled("words"),
]


def test_conditions_follow_kstatus() -> None:
    """Exactly one of ready, reconciling and stalled holds; the two latter are there only while they are true."""
    for outcome, newest in itertools.product(OUTCOMES, [None, run(), run(FAILED), run(None)]):
        found = told(outcome, newest, standing("Reconciling", "True"), standing("Stalled", "True"))
        true = [type_ for type_ in ("Ready", "Reconciling", "Stalled") if found.get(type_, ("", ""))[0] == "True"]
        assert len(true) == 1
        assert {type_ for type_, (status, _) in found.items() if status == "False"} <= {"Ready", "OutputsReady"}


def test_a_condition_keeps_its_time_while_it_stays() -> None:
    """A new reason or message is no transition; a new status is one."""
    outcome = outcomes.stalled(StalledError(Reason.INVALID_SPEC, "new words"))
    old = [standing("Ready", "False"), standing("Stalled", "True"), standing("OutputsReady", "False", "NoOutputs")]
    for one in outcomes.conditions(old, outcome, None, 7):
        assert one.last_transition_time == LONG_AGO, one.type
    changed = outcomes.conditions([standing("Ready", "True")], outcome, None, 7)[0]
    assert changed.last_transition_time != LONG_AGO


def test_conditions_speak_of_their_generation() -> None:
    """What is decided now is said of the generation that was looked at, or `kubectl wait` would believe too soon."""
    for outcome in OUTCOMES:
        ready = outcomes.conditions([], outcome, None, 7)[0]
        assert (ready.type, ready.observed_generation) == ("Ready", 7)
