"""The status of an AgentAction at each turn of its run."""

from datetime import UTC, datetime, timedelta
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.agentaction import AgentActionStatus, StepStatus
from outhaul_api.vocabulary import ActionCondition, ActionPhase, OutputType, Reason, StepPhase
from outhaul_operator import statuses
from outhaul_operator.agentoutputs import Output
from outhaul_operator.agentstates import RunState
from outhaul_operator.latest import Shown
from outhaul_operator.publishing import Publication
from outhaul_operator.situations import Situation, Stage
from outhaul_operator.verdicts import StalledError

LONG_AGO = "2020-01-01T00:00:00Z"
RUNNING = Situation(Stage.RUNNING, Reason.STARTED, "pod p is running", ip="10.0.0.7", scheduled=True)


def old(**conditions: str) -> AgentActionStatus:
    """Returns a status whose conditions have stood for long: type to status."""
    return AgentActionStatus.model_validate(
        {
            "conditions": [
                {"type": type_, "status": status, "reason": "Old", "message": "old", "lastTransitionTime": LONG_AGO}
                for type_, status in conditions.items()
            ]
        }
    )


def state(phase: ActionPhase, reason: Reason | None = None, message: str = "", **steps: StepPhase) -> RunState:
    """Returns an agent's account of its run."""
    return RunState(
        phase=phase,
        reason=reason,
        message=message,
        steps=tuple(StepStatus(name=name, phase=step) for name, step in steps.items()),
        output_count=0,
        output_bytes=0,
    )


def conditions(status: AgentActionStatus) -> dict[str, tuple[str, str]]:
    """Returns status and reason of each condition; no type is there twice."""
    assert len({one.type for one in status.conditions}) == len(status.conditions)
    return {one.type: (one.status, one.reason) for one in status.conditions}


def times(status: AgentActionStatus) -> dict[str, bool]:
    """Tells of each condition whether it has kept its time."""
    return {one.type: one.last_transition_time == LONG_AGO for one in status.conditions}


# -- reading


@pytest.mark.parametrize("obj", [{}, {"status": {}}, {"status": {"phase": "Later"}}, {"status": {"steps": "x"}}])
def test_a_status_that_cannot_be_read_is_empty(obj: dict[str, Any]) -> None:
    """A run without a status, or with one that nobody understands, begins anew."""
    assert statuses.read(obj) == AgentActionStatus()


def test_a_status_is_read() -> None:
    """What was written is read again."""
    written = statuses.pending(AgentActionStatus(), Reason.POD_REFUSED, "no")
    assert statuses.read({"status": written.to_json()}) == written


# -- conditions


def test_a_condition_keeps_its_time_while_it_stays() -> None:
    """Only a change of True to False, or back, is a transition; reason and message are always the newest."""
    status = statuses.running(old(Scheduled="True", Started="False"), RUNNING, "p")
    assert times(status) == {"Scheduled": True, "Started": False}
    assert conditions(status) == {"Scheduled": ("True", "Started"), "Started": ("True", "Started")}


def test_the_same_news_changes_nothing() -> None:
    """Saying the same again is no change, so it is not written."""
    first = statuses.pending(AgentActionStatus(), Reason.IMAGE_PULL_FAILED, "no image")
    assert statuses.pending(first, Reason.IMAGE_PULL_FAILED, "no image") == first


def test_conditions_of_others_stay() -> None:
    """A condition of a type that nobody here knows is kept where it was."""
    status = statuses.running(old(Theirs="Unknown", Started="False"), RUNNING, "p")
    assert [one.type for one in status.conditions] == ["Theirs", "Started", "Scheduled"]
    assert status.conditions[0] == old(Theirs="Unknown").conditions[0]


# -- before and while it runs


def test_nothing_is_scheduled_without_a_pod() -> None:
    """A run that cannot have a pod says so in both conditions, and in a sentence."""
    status = statuses.pending(AgentActionStatus(), Reason.AGENT_CONFIG_NOT_FOUND, "create it")
    assert (status.phase, status.reason, status.message) == (ActionPhase.PENDING, "AgentConfigNotFound", "create it")
    assert conditions(status) == {
        "Scheduled": ("False", "AgentConfigNotFound"),
        "Started": ("False", "AgentConfigNotFound"),
    }


def test_a_pod_with_a_node_is_scheduled() -> None:
    """A pod that waits for its image has a node."""
    found = Situation(Stage.WAITING, Reason.IMAGE_PULL_FAILED, "no image", scheduled=True, trouble=True)
    status = statuses.pending(AgentActionStatus(), found.reason, found.message, pod=found)
    assert conditions(status) == {"Scheduled": ("True", "PodPending"), "Started": ("False", "ImagePullFailed")}


def test_a_pod_that_was_seen_is_remembered() -> None:
    """Its name is noted as soon as anything is said of it: whoever starts later does not make it again."""
    found = Situation(Stage.WAITING, Reason.UNSCHEDULABLE, "no node", trouble=True, pod="shop-1")
    seen = statuses.pending(AgentActionStatus(), found.reason, found.message, pod=found)
    assert seen.pod == "shop-1"
    assert statuses.pending(seen, Reason.AGENT_CONFIG_NOT_FOUND, "create it").pod == "shop-1"
    assert statuses.pending(AgentActionStatus(), Reason.POD_REFUSED, "quota").pod is None


def test_a_running_agent_clears_what_it_waited_for() -> None:
    """The reason of the waiting is gone; the start is noted once."""
    waited = statuses.pending(AgentActionStatus(), Reason.IMAGE_PULL_FAILED, "no image")
    status = statuses.running(waited, RUNNING, "p")
    assert (status.phase, status.pod, status.reason, status.message) == (ActionPhase.RUNNING, "p", None, None)
    assert status.started_at is not None
    early = status.model_copy(update={"started_at": LONG_AGO})
    assert statuses.running(early, RUNNING, "p").started_at == LONG_AGO


def test_an_agent_that_does_not_answer_is_told() -> None:
    """The run goes on, and says what may be in the way."""
    status = statuses.unreachable(statuses.running(AgentActionStatus(), RUNNING, "p"), RUNNING, "timed out")
    assert (status.phase, status.reason) == (ActionPhase.RUNNING, Reason.AGENT_UNREACHABLE)
    assert "10.0.0.7: timed out" in (status.message or "")
    assert statuses.running(status, RUNNING, "p").reason is None


def test_progress_is_the_agents_word() -> None:
    """Each step is as the agent says last; a step that a short account leaves out stays as it was."""
    status = statuses.progressed(
        AgentActionStatus(), state(ActionPhase.RUNNING, init=StepPhase.SUCCEEDED, apply=StepPhase.RUNNING)
    )
    status = statuses.progressed(status, state(ActionPhase.FAILED, apply=StepPhase.FAILED))
    assert [(one.name, one.phase) for one in status.steps] == [
        ("init", StepPhase.SUCCEEDED),
        ("apply", StepPhase.FAILED),
    ]


# -- its end


def test_a_success_says_where_the_outputs_are() -> None:
    """A run that has succeeded names its record and what the latest Secret was made from."""
    status = statuses.ended(
        AgentActionStatus(), state(ActionPhase.SUCCEEDED), output="shop-1", shown=Shown("shop-outputs", "digest")
    )
    assert (status.phase, status.output, status.reason) == (ActionPhase.SUCCEEDED, "shop-1", None)
    assert conditions(status) == {
        "Completed": ("True", "Succeeded"),
        "OutputsCollected": ("True", "Published"),
    }


def test_a_success_without_outputs_speaks_of_none() -> None:
    """An uninstall has no record."""
    status = statuses.ended(AgentActionStatus(), state(ActionPhase.SUCCEEDED), output=None)
    assert conditions(status) == {"Completed": ("True", "Succeeded")}


def test_outputs_that_cannot_be_shown_do_not_fail_the_run() -> None:
    """The run has done its work; why the latest Secret is not as it should be stands in the condition."""
    conflict = StalledError(Reason.SECRET_CONFLICT, "it is another's")
    status = statuses.succeeded(AgentActionStatus(), "shop-1", conflict)
    assert status.phase is ActionPhase.SUCCEEDED
    collected = next(one for one in status.conditions if one.type == ActionCondition.OUTPUTS_COLLECTED)
    assert (collected.reason, collected.message) == ("SecretConflict", "it is another's")


def test_a_failure_quotes_the_agent() -> None:
    """Reason and message are the agent's, and the record of what it left is named."""
    said = state(ActionPhase.FAILED, Reason.COMMAND_FAILED, "apply: exit code 3", apply=StepPhase.FAILED)
    status = statuses.ended(statuses.progressed(AgentActionStatus(), said), said, output="shop-1")
    assert (status.phase, status.reason, status.message) == (ActionPhase.FAILED, "CommandFailed", "apply: exit code 3")
    assert status.output == "shop-1"
    assert conditions(status) == {"Failed": ("True", "CommandFailed")}


def test_a_failure_without_a_reason_has_one() -> None:
    """An agent of another version may know reasons that are none here."""
    assert statuses.ended(AgentActionStatus(), state(ActionPhase.FAILED), output=None).reason == Reason.RUN_FAILED


def test_a_failure_after_the_commands_says_that_they_succeeded() -> None:
    """Where only the outputs failed, what was installed is installed: the conditions tell both."""
    done = statuses.progressed(AgentActionStatus(), state(ActionPhase.RUNNING, apply=StepPhase.SUCCEEDED))
    status = statuses.failed(done, Reason.BAD_OUTPUT, "no JSON")
    assert conditions(status) == {
        "Failed": ("True", "BadOutput"),
        "Completed": ("True", "Succeeded"),
        "OutputsCollected": ("False", "BadOutput"),
    }


def test_a_later_failure_keeps_the_record() -> None:
    """A record that was named stays named."""
    status = statuses.failed(AgentActionStatus(output="shop-1"), Reason.POD_LOST, "gone")
    assert status.output == "shop-1"


def test_a_cancelled_run_has_not_completed() -> None:
    """Cancelled is neither success nor failure."""
    said = state(ActionPhase.CANCELLED, Reason.CANCELLED, "told to stop")
    status = statuses.ended(AgentActionStatus(), said, output=None)
    assert status.phase is ActionPhase.CANCELLED
    assert conditions(status) == {"Completed": ("False", "Cancelled")}


def test_outputs_that_fit_nowhere_are_named_with_their_size() -> None:
    """Names, sizes and the limit are told, the values are not; the others are in the record."""
    large = [Output(f"o{index}", OutputType.STRING, False, b"swordfish" * 200_000) for index in range(7)]  # noqa: FBT003
    status = statuses.too_large(AgentActionStatus(), Publication(record="shop-1", secrets=[], too_large=large))
    assert (status.phase, status.reason, status.output) == (ActionPhase.FAILED, "OutputTooLarge", "shop-1")
    assert "o0 (1,800,000 bytes)" in (status.message or "")
    assert "1,048,576 bytes" in (status.message or "")
    assert "swordfish" not in (status.message or "")


# -- whatever is said


@given(st.text(max_size=6000), st.sampled_from(Reason))
def test_every_status_can_be_written(message: str, reason: Reason) -> None:
    """However long the words are, the status is one that the API's schema takes."""
    waiting = Situation(Stage.WAITING, reason, message, scheduled=True)
    for status in (
        statuses.pending(AgentActionStatus(), reason, message),
        statuses.pending(AgentActionStatus(), reason, message, pod=waiting),
        statuses.failed(AgentActionStatus(), reason, message),
        statuses.unreachable(AgentActionStatus(), RUNNING, message),
        statuses.succeeded(AgentActionStatus(), "x", StalledError(reason, message)),
    ):
        assert AgentActionStatus.model_validate(status.to_json()) == status


@pytest.mark.parametrize(
    ("ago", "left"),
    [
        pytest.param(0, 60 + statuses.OVERTIME_S, id="now"),
        pytest.param(1000, 60 + statuses.OVERTIME_S - 1000, id="a while ago"),
        pytest.param(-1000, 60 + statuses.OVERTIME_S, id="by a clock that is ahead"),
        pytest.param(10**6, 60 + statuses.OVERTIME_S - 10**6, id="long ago"),
    ],
)
def test_how_long_a_run_may_go_on(ago: int, left: float) -> None:
    """A run has its timeout and time to end, counted from its start, however often it is looked at anew."""
    started = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = {"commands": [{"name": "main", "command": ["true"]}], "timeout": "1m"}
    seconds = statuses.seconds_left(builders.action(spec), AgentActionStatus(started_at=started))
    assert seconds == pytest.approx(left, abs=120)


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00", "x", "2026-01-01T00:00:60Z"])
def test_a_start_that_cannot_be_read(text: str) -> None:
    """A time that somebody else has written is no reason to fail."""
    status = AgentActionStatus(started_at=text)
    assert statuses.seconds_left(builders.action(), status) > statuses.OVERTIME_S


@pytest.mark.parametrize(
    ("steps", "started"),
    [
        ({"init": StepPhase.SKIPPED, "apply": StepPhase.SKIPPED}, False),
        ({"init": StepPhase.PENDING}, False),
        ({"init": StepPhase.SUCCEEDED, "apply": StepPhase.SKIPPED}, None),
        ({"apply": StepPhase.FAILED}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("phase", [ActionPhase.FAILED, ActionPhase.CANCELLED])
def test_a_run_that_has_started_nothing(phase: ActionPhase, steps: dict[str, StepPhase], started: Any) -> None:
    """A run whose agent says that no command has started has left nothing behind; silence says nothing."""
    ended = statuses.ended(AgentActionStatus(), state(phase, Reason.SOURCE_UNAVAILABLE, "x", **steps), output=None)
    assert ended.started is started
