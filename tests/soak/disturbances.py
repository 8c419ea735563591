"""What happens to a soak's cluster: a schedule that a seed decides, and the hand that carries it out."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.errors import RequestFailed
from cluster.objects import Json
from cluster.stack import Stack
from cluster.waiting import until

from soak.looks import Snapshot
from soak.replicas import Replicas

PAUSE_S = 12.0
"""Between two disturbances, on average."""
_LONGEST_GONE_S = 50.0
"""For an operator: longer than a Lease, so that the other one may take over; or at once, so that it does not."""
_LONGEST_DOWN_S = 8.0
"""For the API server: a leader gives up before."""

_WEIGHTS = {
    "kill the leader": 4,
    "kill the other operator": 1,
    "stop the leader": 2,
    "hold the leader": 1,
    "kill the API server": 2,
    "stop the API server": 1,
    "kill the API server and the leader": 1,
    "delete a pod": 4,
    "remove a pod": 3,
}


@dataclass(frozen=True)
class Disturbance:
    """Something that breaks."""

    after: float
    """Seconds since the one before."""
    what: str
    share: float
    """From 0 to 1: which pod, or for how long."""

    def __str__(self) -> str:
        """Returns what is printed of it."""
        return f"{self.after:.0f} s: {self.what} ({self.share:.2f})"


def schedule(seed: int) -> Iterator[Disturbance]:
    """What happens, in order, for ever; the same for the same seed."""
    dice = random.Random(seed)  # noqa: S311 - to be repeated, not to be kept secret
    while True:
        (what,) = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        yield Disturbance(dice.uniform(0.2, 1.8) * PAUSE_S, what, dice.random())


class Hand:
    """Carries disturbances out.

    Args:
        stack: the cluster.
        replicas: the operators.
    """

    def __init__(self, stack: Stack, replicas: Replicas) -> None:
        self._stack = stack
        self._plane = stack.control_plane
        self._replicas = replicas
        self._pods_to_delete: list[Disturbance] = []
        self.done: Counter[str] = Counter()
        self.hurt: set[str] = set()
        """The runs whose pods were deleted."""

    def carry_out(self, one: Disturbance) -> None:
        """Has something happen; a pod is deleted as soon as there is one that runs."""
        if one.what.endswith("a pod"):
            self._pods_to_delete.append(one)
            return
        pause, replicas = one.share * _LONGEST_GONE_S, self._replicas
        victim = replicas.other() if one.what == "kill the other operator" else replicas.leader()
        match one.what, victim:
            case "kill the API server", _:
                self._without_api_server(one.share, kill=True)
            case "stop the API server", _:
                self._without_api_server(one.share, kill=False)
            case _, None:
                print("nobody is there to whom it could happen")
                return
            case "kill the leader" | "kill the other operator", name:
                replicas.end(name, signal.SIGKILL, pause=pause)
            case "stop the leader", name:
                replicas.end(name, signal.SIGTERM, pause=pause)
            case "hold the leader", name:
                replicas.hold(name, pause)
            case _, name:
                self._without_api_server(one.share, kill=True, killed=name)
        self.done[one.what] += 1

    def delete_pods(self, pods: list[Json]) -> None:
        """Deletes pods of runs that are under way, where it is time to.

        Args:
            pods: all that there are.
        """
        running = [
            one
            for one in pods
            if one.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
        ]
        if not running or not self._pods_to_delete:
            return
        one = self._pods_to_delete.pop(0)
        pod = sorted(running, key=lambda pod: str(pod["metadata"]["name"]))[int(one.share * len(running))]["metadata"]
        self.hurt.add(pod["name"])
        self.done[one.what] += 1
        options: Json = {"preconditions": {"uid": pod["uid"]}}
        if one.what == "remove a pod":
            options["gracePeriodSeconds"] = 0
        try:
            self._plane.request("DELETE", f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}", options)
        except RequestFailed as error:
            print(f"pod {pod['name']} was gone before: {error}")

    def forget(self) -> None:
        """Deletes no pods any more that were to be deleted."""
        self._pods_to_delete.clear()

    def _without_api_server(self, share: float, *, kill: bool, killed: str | None = None) -> None:
        self._plane.stop_apiserver(kill=kill)
        if killed is not None:
            self._replicas.end(killed, signal.SIGKILL, pause=0)
        up_at = time.monotonic() + share * _LONGEST_DOWN_S
        while time.monotonic() < up_at:
            self._replicas.tend()
            time.sleep(0.2)
        self._plane.start_apiserver()
        # It is ready before it knows our kinds.
        until(self._knows_our_kinds, what="the API server knows our kinds", timeout=120)

    def _knows_our_kinds(self) -> bool:
        try:
            Snapshot(self._plane, set(), "Installation", "AgentAction", "InstallationOutput")
        except RequestFailed:
            return False
        return True
