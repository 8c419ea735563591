"""What a pod's status says about its run: statuses as kubelets and schedulers write them."""

import json
from typing import Any

import pytest
from outhaul_api.vocabulary import ActionPhase, Reason
from outhaul_operator import situations
from outhaul_operator.situations import Situation, Stage, situation

SCHEDULED = {"type": "PodScheduled", "status": "True"}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
}


def read(status: dict[str, Any], state: dict[str, Any] | None = None, **others: Any) -> Situation:
    """Reads the status of a pod whose agent is in a state, beside other containers."""
    containers = [] if state is None else [{"name": "agent", "state": state}]
    containers += [{"name": name, "state": other} for name, other in others.items()]
    status = {"phase": "Pending", **status, **({"containerStatuses": containers} if containers else {})}
    return situation({"metadata": {"name": "p"}, "status": status})


def waiting(reason: str, message: str = "") -> Situation:
    """Reads the status of a pod whose agent waits."""
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return read({"conditions": [SCHEDULED]}, state)


def ended(status: dict[str, Any] | None = None, **terminated: Any) -> Situation:
    """Reads the status of a pod whose agent has ended."""
    return read({"phase": "Failed", "conditions": [SCHEDULED], **(status or {})}, {"terminated": terminated})


# -- before the agent runs


@pytest.mark.parametrize("status", [{}, {"conditions": []}, {"conditions": [{"type": "Ready", "status": "False"}]}])
def test_a_new_pod_is_on_its_way(status: dict[str, Any]) -> None:
    """A pod that nobody has looked at yet is nothing to worry about."""
    found = read(status)
    assert (found.stage, found.reason, found.scheduled, found.trouble) == (
        Stage.WAITING,
        Reason.POD_PENDING,
        False,
        False,
    )


def test_a_pod_without_a_status_is_on_its_way() -> None:
    """A pod as it was just created may have no status at all."""
    assert situation({"metadata": {"name": "p"}}).stage is Stage.WAITING


def test_an_unschedulable_pod_quotes_the_scheduler() -> None:
    """A pod without a node says what the scheduler says."""
    found = read({"conditions": [UNSCHEDULABLE]})
    assert (found.stage, found.reason, found.scheduled, found.trouble) == (
        Stage.WAITING,
        Reason.UNSCHEDULABLE,
        False,
        True,
    )
    assert "Insufficient memory" in found.message


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", ""])
def test_a_container_that_is_being_made_is_on_its_way(reason: str) -> None:
    """These are no troubles of their own; a warning about the pod says what holds it up."""
    found = waiting(reason)
    assert (found.stage, found.reason, found.scheduled, found.trouble) == (
        Stage.WAITING,
        Reason.POD_PENDING,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", 'failed to pull image "x": not found'),
        ("ImagePullBackOff", 'Back-off pulling image "x"'),
        ("ErrImageNeverPull", 'Container image "x" is not present with pull policy of Never'),
        ("InvalidImageName", 'Failed to apply default image tag "X": couldn\'t parse image name'),
    ],
)
def test_an_image_that_does_not_come_is_trouble(reason: str, message: str) -> None:
    """The kubelet's words are quoted, with what to correct."""
    found = waiting(reason, message)
    assert (found.stage, found.reason, found.scheduled, found.trouble) == (
        Stage.WAITING,
        Reason.IMAGE_PULL_FAILED,
        True,
        True,
    )
    assert f"{reason}: {message}" in found.message
    assert "AgentConfig" in found.message


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("CreateContainerConfigError", 'secret "s" not found'),
        ("CreateContainerError", "failed to reserve container name"),
        ("RunContainerError", "failed to create containerd task"),
    ],
)
def test_a_container_that_cannot_be_made_is_trouble(reason: str, message: str) -> None:
    """Whatever else a container waits for is quoted, and may mend itself."""
    found = waiting(reason, message)
    assert (found.stage, found.reason, found.trouble) == (Stage.WAITING, Reason.CONTAINER_NOT_STARTED, True)
    assert f"{reason}: {message}" in found.message


def test_a_reason_without_a_message_is_quoted_alone() -> None:
    """No colon is left behind."""
    assert waiting("CreateContainerError").message.endswith("cannot start its container: CreateContainerError")


# -- while it runs


def test_a_running_agent_has_an_address() -> None:
    """With the agent running and an address the pod can be dialled."""
    found = read({"phase": "Running", "podIP": "10.0.0.7", "conditions": [SCHEDULED]}, {"running": {}})
    assert (found.stage, found.ip, found.scheduled, found.trouble) == (Stage.RUNNING, "10.0.0.7", True, False)


def test_a_running_agent_without_an_address_is_waited_for() -> None:
    """The address may come later than the container."""
    found = read({"phase": "Running", "conditions": [SCHEDULED]}, {"running": {}})
    assert (found.stage, found.trouble) == (Stage.WAITING, False)


def test_a_node_that_is_lost_may_come_back() -> None:
    """A run goes on where its node does not report; only the pod's end is its end."""
    status = {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "reason": "NodeLost",
        "conditions": [SCHEDULED, {"type": "Ready", "status": "False"}],
    }
    assert read(status, {"running": {}}).stage is Stage.RUNNING
    assert read({**status, "phase": "Unknown"}, {"running": {}}).stage is Stage.RUNNING


def test_only_the_agents_container_counts() -> None:
    """A container that a template added may be anywhere while the agent runs, or outlive it."""
    status = {"phase": "Running", "podIP": "10.0.0.7", "conditions": [SCHEDULED]}
    failed = {"terminated": {"exitCode": 1, "reason": "Error"}}
    assert read(status, {"running": {}}, proxy=failed).stage is Stage.RUNNING
    assert read(status, {"running": {}}, proxy={"waiting": {"reason": "ErrImagePull"}}).stage is Stage.RUNNING
    assert (
        read(status, {"terminated": {"exitCode": 0, "reason": "Completed"}}, proxy={"running": {}}).stage is Stage.ENDED
    )


# -- after its end


def test_an_agents_last_word_is_read() -> None:
    """What the agent left as its termination message is the run's result."""
    message = json.dumps(
        {
            "phase": "PHASE_FAILED",
            "reason": "CommandFailed",
            "message": "apply: exit code 3",
            "steps": [{"name": "apply", "phase": "STEP_PHASE_FAILED", "exitCode": 3}],
        }
    )
    found = ended({"phase": "Succeeded"}, exitCode=0, reason="Completed", message=message)
    assert found.stage is Stage.ENDED
    assert found.result is not None
    assert (found.result.phase, found.result.reason) == (ActionPhase.FAILED, Reason.COMMAND_FAILED)
    assert found.result.steps[0].exit_code == 3


@pytest.mark.parametrize("message", ["", "panic", "{}", '{"phase":"PHASE_LATER"}', "[" * 1000, '{"phase": 99}'])
def test_an_agent_without_a_last_word_has_crashed(message: str) -> None:
    """An end without a summary, or with one that nobody understands, is told by its exit code."""
    found = ended(exitCode=2, reason="Error", message=message)
    assert (found.stage, found.reason, found.result) == (Stage.ENDED, Reason.AGENT_CRASHED, None)
    assert "code 2" in found.message


def test_an_agent_without_memory_says_what_to_raise() -> None:
    """OOMKilled is told as such."""
    found = ended(exitCode=137, reason="OOMKilled")
    assert (found.stage, found.reason) == (Stage.ENDED, Reason.OOM_KILLED)
    assert "podTemplate" in found.message


@pytest.mark.parametrize(
    "terminated", [None, {"exitCode": 137, "reason": "Error"}, {"exitCode": 143, "reason": "Error"}]
)
def test_an_evicted_pod_quotes_the_kubelet(terminated: dict[str, Any] | None) -> None:
    """An eviction is told as such, whether the agent had started or not."""
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    found = read(status, {"terminated": terminated} if terminated is not None else None)
    assert (found.stage, found.reason) == (Stage.ENDED, Reason.EVICTED)
    assert "ephemeral-storage" in found.message


def test_an_end_that_kubernetes_has_brought_about_is_told_apart() -> None:
    """An eviction and a deadline are said to be Kubernetes' doing; an end by itself is not."""
    for why, reason in {"Evicted": Reason.EVICTED, "DeadlineExceeded": Reason.TIMED_OUT}.items():
        found = ended({"reason": why, "message": "in its own words"}, exitCode=143, reason="Error")
        assert (found.reason, found.is_taken) == (reason, True)
        assert "in its own words" in found.message
    assert not ended(exitCode=143, reason="Error").is_taken
    assert not ended({"reason": "Evicted"}, exitCode=137, reason="OOMKilled").is_taken


DISRUPTIONS = [
    ("PreemptionByScheduler", Reason.EVICTED, "default-scheduler: preempting to accommodate a higher priority pod"),
    ("EvictionByEvictionAPI", Reason.EVICTED, "Eviction API: evicting"),
    ("DeletionByTaintManager", Reason.EVICTED, "Taint manager: deleting due to NoExecute taint"),
    ("TerminationByKubelet", Reason.EVICTED, "Pod was terminated in response to imminent node shutdown."),
    ("DeletionByPodGC", Reason.POD_LOST, "PodGC: node no longer exists"),
]
"""Who says it, what it means to a run, and the words."""


def disrupted(why: str, words: str, status: str = "True") -> dict[str, Any]:
    """The status of a pod that is taken away."""
    target = {"type": "DisruptionTarget", "status": status, "reason": why, "message": words}
    return {"phase": "Running", "podIP": "10.0.0.7", "conditions": [SCHEDULED, target]}


@pytest.mark.parametrize(("why", "reason", "words"), DISRUPTIONS)
def test_a_disruption_is_quoted(why: str, reason: Reason, words: str) -> None:
    """A condition says who has taken the pod away, whatever else the status says, also of a pod that is gone."""
    found = ended({**disrupted(why, words), "phase": "Failed"}, exitCode=143, reason="Error")
    assert (found.reason, found.is_taken, situations.why_stopped(found)) == (reason, True, (reason, found.message))
    last = {"metadata": {"name": "p"}, "status": disrupted(why, words)}
    vanished = situations.gone("p", last)
    assert (vanished.reason, vanished.is_taken) == (reason, True)
    assert "is gone and did not say how it ended" in vanished.message
    for one in (found, vanished):
        assert f"{why}: {words}" in one.message


def test_a_disruption_that_is_called_off_is_none() -> None:
    """A condition that is not true says nothing."""
    status = disrupted("PreemptionByScheduler", "preempting", "False")
    assert not ended(status, exitCode=143, reason="Error").is_taken
    assert not situations.gone("p", {"metadata": {"name": "p"}, "status": status}).is_taken


def test_who_is_out_of_memory_before_is_told_so() -> None:
    """That the pod is taken away as well does not matter any more."""
    found = ended(disrupted(*DISRUPTIONS[0][::2]), exitCode=137, reason="OOMKilled")
    assert (found.reason, found.is_taken) == (Reason.OOM_KILLED, False)


def test_a_pod_that_is_gone_is_taken_at_its_last_word() -> None:
    """Where its end was seen, that counts; where nothing was, it is lost."""
    running = {"metadata": {"name": "p"}, "status": {"phase": "Running", "podIP": "10.0.0.7"}}
    terminated = {"containerStatuses": [{"name": "agent", "state": {"terminated": {"exitCode": 2}}}]}
    seen = situations.gone("p", {"metadata": {"name": "p"}, "status": {"phase": "Failed", **terminated}})
    assert (seen.reason, "code 2" in seen.message) == (Reason.AGENT_CRASHED, True)
    for last in (None, running):
        lost = situations.gone("p", last)
        assert (lost.stage, lost.reason, lost.is_taken) == (Stage.ENDED, Reason.POD_LOST, False)
        assert lost.message == "pod p is gone and did not say how it ended"


def test_who_deletes_a_pod_needs_no_reason() -> None:
    """A run whose pod somebody deletes was meant to stop; one that stops without that is lost."""
    assert situations.why_stopped(situations.gone("p", None)) is None
    found = situations.why_stopped(ended(exitCode=143, reason="Error"))
    assert found is not None
    assert found[0] is Reason.POD_LOST
    assert "neither was its run cancelled nor the pod deleted" in found[1]


def test_a_pod_is_given_up_while_its_container_is_said_to_run() -> None:
    """A controller fails pods of nodes that are gone: such a one has ended, and is not said never to have started."""
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    found = read({"phase": "Failed", "podIP": "10.0.0.7", "conditions": [SCHEDULED]}, running)
    assert (found.stage, found.reason, found.is_unstarted) == (Stage.ENDED, Reason.POD_LOST, False)
    assert "while its agent ran" in found.message


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
def test_an_image_without_an_agent_is_told(reason: str) -> None:
    """A container whose program is not there did not start; the runtime's words are no agent's."""
    found = ended(exitCode=128, reason=reason, message='exec: "outhaul-agent": executable file not found in $PATH')
    assert (found.stage, found.reason, found.result) == (Stage.ENDED, Reason.CONTAINER_NOT_STARTED, None)
    assert "executable file not found" in found.message


NEVER = "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [
        ({"reason": "ContainerStatusUnknown", "exitCode": 137}, True),
        ({"reason": "ContainerStatusUnknown", "exitCode": 137, "startedAt": None}, True),
        ({"reason": "StartError", "exitCode": 128, "startedAt": NEVER}, True),
        ({"reason": "Error", "exitCode": 137, "startedAt": "2026-01-01T00:00:00Z"}, False),
        ({"reason": "Error", "exitCode": 1, "message": json.dumps({"phase": "PHASE_FAILED"})}, False),
    ],
)
def test_a_container_that_was_never_started_is_told_apart(terminated: dict[str, Any], *, expected: bool) -> None:
    """It has no time of its start, and no agent had a last word."""
    assert ended(**terminated).is_unstarted is expected


def test_a_pod_that_took_too_long_quotes_the_kubelet() -> None:
    """A template's activeDeadlineSeconds ends a pod with a reason, which is told."""
    status = {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
    }
    for found in (read(status), ended(status, exitCode=137, reason="Error")):
        assert found.stage is Stage.ENDED
        assert "DeadlineExceeded: Pod was active" in found.message


def test_a_pod_that_its_node_gave_up_says_so() -> None:
    """A node that was shut down ends pods with a reason of its own."""
    status = {"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated in response to node shutdown."}
    assert "node shutdown" in ended(status, exitCode=137, reason="Error").message


def test_a_pod_whose_container_was_never_seen_is_lost() -> None:
    """A failed pod whose agent never started says what there is, or that there is nothing."""
    found = read({"phase": "Failed", "conditions": [SCHEDULED]}, {"waiting": {"reason": "PodInitializing"}})
    assert (found.stage, found.reason) == (Stage.ENDED, Reason.POD_LOST)
    assert "no reason given" in found.message
    named = read({"phase": "Failed", "reason": "NodeAffinity", "message": "Predicate failed"})
    assert "NodeAffinity: Predicate failed" in named.message


def test_an_end_is_an_end_whatever_the_phase() -> None:
    """The agent's container is looked at before the pod's phase, which may be late."""
    found = read({"phase": "Running", "podIP": "10.0.0.7"}, {"terminated": {"exitCode": 1, "reason": "Error"}})
    assert found.stage is Stage.ENDED
