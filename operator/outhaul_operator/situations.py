"""What a pod's status says about its run. Pure; `runs` acts on it."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from outhaul_api.vocabulary import AUTHORITY_LABEL, Reason

from outhaul_operator.agentstates import RunState, from_termination_message
from outhaul_operator.kinds import Object
from outhaul_operator.pods import CONTAINER


class Stage(Enum):
    """Where a pod is."""

    WAITING = auto()
    """The agent has not started; the reason says why where Kubernetes says so."""
    RUNNING = auto()
    """The agent's container runs and the pod has an address."""
    ENDED = auto()
    """The agent's container has ended, or never will start."""


@dataclass(frozen=True)
class Situation:
    """What a pod's status says about its run."""

    stage: Stage
    reason: Reason
    message: str
    ip: str = ""
    authority: str | None = None
    """The fingerprint of the authority that the run was started under, where the pod says it."""
    scheduled: bool = False
    trouble: bool = False
    """Whether it waits for something that may never come, which is worth a word on the AgentAction."""
    result: RunState | None = None
    """The agent's last word, where it left one."""
    pod: str = ""
    """The pod's name."""
    is_unstarted: bool = False
    """Whether the pod has ended, and nothing says that its container was ever started."""
    is_taken: bool = False
    """Whether Kubernetes says that it has ended the pod, for the reason and with the message that are here."""
    is_deleted: bool = False
    """Whether somebody has asked for the pod's deletion."""


_NEVER = "1970-01-01T00:00:00Z"
"""When a container has started that could not be."""

_PULL_REASONS = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RegistryUnavailable",
}
_DISRUPTION, _NODE_IS_GONE = "DisruptionTarget", "DeletionByPodGC"


def situation(obj: Object) -> Situation:
    """Reads a pod's status."""
    metadata = obj["metadata"]
    return replace(_situation(obj), pod=metadata["name"], is_deleted="deletionTimestamp" in metadata)


def gone(name: str, last: Object | None) -> Situation:
    """Returns what there is to say of a pod that is not there any more.

    Args:
        name: The pod's name.
        last: How it was when it was seen last, if it was.
    """
    if last is not None:
        found = situation(last)
        if found.stage is Stage.ENDED:
            return found
    message = f"pod {name} is gone and did not say how it ended"
    lost = Situation(Stage.ENDED, Reason.POD_LOST, message, pod=name, is_deleted=True)
    disruption = None if last is None else _disruption(name, last.get("status", {}))
    if disruption is None:
        return lost
    reason, words = disruption
    return replace(lost, reason=reason, message=f"{message}; {words}", is_taken=True)


def why_stopped(situation: Situation) -> tuple[Reason, str] | None:
    """Returns why an agent was told to stop whose run nobody has cancelled; None where somebody has deleted its pod."""
    if situation.is_taken:
        return situation.reason, situation.message
    if situation.is_deleted:
        return None
    words = f"pod {situation.pod} was stopped, although neither was its run cancelled nor the pod deleted"
    return Reason.POD_LOST, words


def _situation(obj: Object) -> Situation:
    status: dict[str, Any] = obj.get("status", {})
    name = obj["metadata"]["name"]
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    container: dict[str, Any] = next(
        (one for one in status.get("containerStatuses", []) if one["name"] == CONTAINER), {}
    )
    state: dict[str, Any] = container.get("state", {})
    if "terminated" in state:
        return _ended(name, status, state["terminated"])
    if status.get("phase") in {"Failed", "Succeeded"}:
        # A container that is said to run is one whose node is gone: a controller has failed the pod.
        return _ended(name, status, {}, began=state.get("running", {}).get("startedAt"))
    if "running" in state and status.get("podIP"):
        return Situation(
            Stage.RUNNING,
            Reason.STARTED,
            f"pod {name} is running",
            ip=status["podIP"],
            authority=obj["metadata"].get("labels", {}).get(AUTHORITY_LABEL),
            scheduled=True,
        )
    return _waiting(name, conditions, state.get("waiting", {}))


def _waiting(name: str, conditions: dict[str, Any], waiting: dict[str, Any]) -> Situation:
    scheduled = conditions.get("PodScheduled", {}).get("status") == "True"
    why = waiting.get("reason", "")
    words = f"{why}: {waiting.get('message', '')}".strip(": ")
    if why in _PULL_REASONS:
        message = f"pod {name} cannot get its image: {words}; correct the AgentConfig's image, then ask for another run"
        return Situation(Stage.WAITING, Reason.IMAGE_PULL_FAILED, message, scheduled=scheduled, trouble=True)
    if why not in {"", "ContainerCreating", "PodInitializing"}:
        return Situation(
            Stage.WAITING,
            Reason.CONTAINER_NOT_STARTED,
            f"pod {name} cannot start its container: {words}",
            scheduled=scheduled,
            trouble=True,
        )
    unscheduled = conditions.get("PodScheduled", {})
    if unscheduled.get("reason") == "Unschedulable":
        message = f"pod {name} has no node: {unscheduled.get('message', '')}"
        return Situation(Stage.WAITING, Reason.UNSCHEDULABLE, message, trouble=True)
    return Situation(Stage.WAITING, Reason.POD_PENDING, f"pod {name} is being started", scheduled=scheduled)


def _ended(name: str, status: dict[str, Any], terminated: dict[str, Any], began: str | None = None) -> Situation:
    result = from_termination_message(terminated.get("message", ""))
    words = ": ".join(part for part in (status.get("reason"), status.get("message")) if part)
    began = terminated.get("startedAt") or began or _NEVER
    taken = _taken(name, status)
    reason, message = (
        Reason.AGENT_CRASHED,
        f"the agent in pod {name} ended with code {terminated.get('exitCode')}" + (f" ({words})" if words else ""),
    )
    if terminated.get("reason") == "OOMKilled":
        reason, message = (
            Reason.OOM_KILLED,
            f"pod {name} ran out of memory; raise its limit in AgentConfig.spec.podTemplate",
        )
    elif taken is not None:
        reason, message = taken
    elif not terminated:
        how = "before its agent started" if began == _NEVER else "while its agent ran"
        reason, message = Reason.POD_LOST, f"pod {name} ended {how} ({words or 'no reason given'})"
    elif terminated.get("reason") in {"StartError", "ContainerCannotRun"}:
        reason = Reason.CONTAINER_NOT_STARTED
        message = f"pod {name} has no outhaul-agent to start: {terminated.get('message', '')}"
        result = None
    return Situation(
        Stage.ENDED,
        reason,
        message,
        scheduled=True,
        result=result,
        is_unstarted=result is None and began == _NEVER,
        is_taken=(reason, message) == taken,
    )


def _taken(name: str, status: dict[str, Any]) -> tuple[Reason, str] | None:
    """Returns why Kubernetes has ended a pod, in its words; None where it does not say so."""
    disruption = _disruption(name, status)
    if disruption is not None:
        return disruption
    why, words = status.get("reason"), status.get("message", "")
    if why == "Evicted":
        # By what it has used itself, as a volume beyond its limit: that is no disruption.
        return Reason.EVICTED, f"pod {name} was evicted: {words}"
    if why == "DeadlineExceeded":
        return Reason.TIMED_OUT, f"pod {name} was ended after its activeDeadlineSeconds: {why}: {words}"
    return None


def _disruption(name: str, status: dict[str, Any]) -> tuple[Reason, str] | None:
    """Returns who has taken a pod away, and why: whoever does it writes that condition before.

    See https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions.
    """
    for one in status.get("conditions", []):
        if one["type"] == _DISRUPTION and one["status"] == "True":
            why = one.get("reason", "")
            # What became of the containers of a node that is gone, nobody knows.
            reason = Reason.POD_LOST if why == _NODE_IS_GONE else Reason.EVICTED
            return reason, f"pod {name} was taken away: {why}: {one.get('message', '')}"
    return None
