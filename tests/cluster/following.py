"""Follows Installations in a namespace, for the demo: a line for each change, a sign of life when nothing changes."""

import time
from collections.abc import Callable
from typing import Any

from cluster.controlplane import ControlPlane
from cluster.errors import CommandFailed, NotInTime

Lines = dict[str, str]
"""What there is to say of each object and each step: its name, and how it is."""

HEARTBEAT = 5.0
"""Seconds without a change until a sign of life."""

_KINDS = {
    "installations": "/apis/outhaul.dev/v1alpha1/namespaces/{}/installations",
    "agentactions": "/apis/outhaul.dev/v1alpha1/namespaces/{}/agentactions",
    "installationoutputs": "/apis/outhaul.dev/v1alpha1/namespaces/{}/installationoutputs",
    "pods": "/api/v1/namespaces/{}/pods",
}
_INTERVAL = 0.2

State = dict[str, list[dict[str, Any]]]
"""The objects of a namespace, by plural name of their kind."""


class Follower:
    """Prints what happens in a namespace while something is waited for.

    Args:
        plane: the cluster.
        namespace: where to look.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane, self._namespace = plane, namespace
        self._begun = time.monotonic()
        self._known: Lines = {}

    def until(self, done: Callable[[State], bool], what: str, *, timeout: float = 60.0) -> State:
        """Looks again and again until `done` says so, and returns what was seen last.

        Raises:
            CommandFailed: an Installation is stalled: it will not go on by itself.
            NotInTime: at the deadline.
        """
        begun = last = time.monotonic()
        while True:
            state = self.look()
            now = time.monotonic()
            if self._tell(describe(state)):
                last = now
            if done(state):
                return state
            problem = stalled(state)
            if problem:
                raise CommandFailed(f"while waiting until {what}: {problem}")
            if now - begun > timeout:
                raise NotInTime(f"waited {timeout:g} s until {what}; the last that was seen: {self._known}")
            if now - last >= HEARTBEAT:
                last = now
                self._say(f"waiting until {what}, {now - begun:.0f} s so far")
            time.sleep(_INTERVAL)

    def look(self) -> State:
        """The objects as they are now."""
        return {
            kind: self._plane.request("GET", path.format(self._namespace))["items"] for kind, path in _KINDS.items()
        }

    def _tell(self, lines: Lines) -> bool:
        changed = [f"{name}: {how}" for name, how in lines.items() if self._known.get(name) != how]
        gone = [f"{name}: gone" for name in self._known if name not in lines and "step" not in name]
        self._known = lines
        for line in changed + gone:
            self._say(line)
        return bool(changed or gone)

    def _say(self, line: str) -> None:
        print(f"  {time.monotonic() - self._begun:5.1f} s  {line}", flush=True)


def describe(state: State) -> Lines:
    """Puts what there is to say of each object into words."""
    lines: Lines = {}
    for one in state["installations"]:
        status = one.get("status", {})
        ready = condition(one, "Ready")
        words = [status.get("phase", "created"), f"({ready['reason']})" if ready.get("reason") else ""]
        lines[f"installation {one['metadata']['name']}"] = " ".join(filter(None, words))
    for one in state["agentactions"]:
        name = f"run {one['metadata']['name']}"
        status = one.get("status", {})
        lines[name] = f"{one['spec']['action']}, {status.get('phase', 'created')}"
        for step in status.get("steps", []):
            lines[f"{name}, step {step['name']}"] = step["phase"]
    for one in state["installationoutputs"]:
        lines[f"record {one['metadata']['name']}"] = one["status"]["phase"]
    for one in state["pods"]:
        lines[f"pod {one['metadata']['name']}"] = one.get("status", {}).get("phase", "created")
    return lines


def stalled(state: State) -> str | None:
    """Why an Installation will not go on by itself; None when each of them may."""
    for one in state["installations"]:
        stuck, ready = condition(one, "Stalled"), condition(one, "Ready")
        if stuck.get("status") == "True" or one.get("status", {}).get("phase") == "Failed":
            why = stuck or ready
            return f"installation {one['metadata']['name']}: {why.get('reason')}: {why.get('message')}"
    return None


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of an object by its type; empty when it has none."""
    found: list[dict[str, Any]] = obj.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), {})
