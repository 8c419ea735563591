"""The status of a pod from what is known of its containers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cluster.kubelet.api import Json

Waiting = tuple[str, str]


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Record:
    """What is known of one container."""

    name: str
    image: str
    state: Json
    last_state: Json = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    @property
    def exit_code(self) -> int | None:
        """The exit code, where it has terminated."""
        code: int | None = self.state.get("terminated", {}).get("exitCode")
        return code

    def status(self) -> Json:
        """Its entry in the pod's status."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image if self.container_id else "",
            "containerID": self.container_id,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }


@dataclass(frozen=True)
class Verdict:
    """A phase that does not follow from the containers."""

    phase: str
    reason: str
    message: str


def phase_of(policy: str, init: Sequence[Record], main: Sequence[Record]) -> str:
    """The phase that follows from the containers' states."""
    if any(record.exit_code not in {0, None} for record in init) and policy == "Never":
        return "Failed"
    if any(record.exit_code != 0 for record in init):
        return "Pending"
    if all(record.exit_code is not None for record in main) and policy != "Always":
        if all(record.exit_code == 0 for record in main):
            return "Succeeded"
        return "Failed" if policy == "Never" else "Running"
    if any("waiting" in record.state and not record.last_state for record in main):
        return "Pending"
    return "Running"


def pod_status(
    pod: Json,
    init: Sequence[Record],
    main: Sequence[Record],
    *,
    pod_ip: str,
    host_ip: str,
    start_time: str,
    verdict: Verdict | None,
    previous: Sequence[Json],
) -> Json:
    """The whole status.

    Args:
        pod: The pod.
        init: Its init containers, in order.
        main: Its containers.
        pod_ip: Its address; empty where it has none yet.
        host_ip: The node's address.
        start_time: When this node accepted it.
        verdict: A phase that overrules the containers' states.
        previous: Its conditions so far, for the times of their transitions.

    Returns:
        What to write.
    """
    phase = verdict.phase if verdict else phase_of(pod["spec"]["restartPolicy"], init, main)
    status: dict[str, Any] = {
        "phase": phase,
        "hostIP": host_ip,
        "startTime": start_time,
        "conditions": _conditions(phase, init, main, previous),
        "containerStatuses": [record.status() for record in main],
    }
    if init:
        status["initContainerStatuses"] = [record.status() for record in init]
    if pod_ip:
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    if verdict:
        status |= {"reason": verdict.reason, "message": verdict.message}
    return status


def _conditions(phase: str, init: Sequence[Record], main: Sequence[Record], previous: Sequence[Json]) -> list[Json]:
    incomplete = [record.name for record in init if record.exit_code != 0]
    unready = [record.name for record in main if not record.ready]
    if phase == "Succeeded":
        not_ready: Waiting | None = ("PodCompleted", "")
    elif unready:
        not_ready = ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    else:
        not_ready = None
    not_initialized = (
        ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]")
        if incomplete
        else None
    )
    wanted: dict[str, Waiting | None] = {
        "PodScheduled": None,
        "Initialized": not_initialized,
        "ContainersReady": not_ready,
        "Ready": not_ready,
    }
    before = {condition["type"]: condition for condition in previous}
    conditions = []
    for kind, problem in wanted.items():
        status = "False" if problem else "True"
        same = before.get(kind, {}).get("status") == status
        condition = {
            "type": kind,
            "status": status,
            "lastTransitionTime": before[kind].get("lastTransitionTime") if same else now(),
            "reason": problem[0] if problem else None,
            "message": problem[1] or None if problem else None,
        }
        conditions.append(condition)
    return conditions
