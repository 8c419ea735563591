"""What must hold at each moment of a soak, looked at again and again: no two runs at once, none without a cause."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from cluster.controlplane import ControlPlane
from cluster.objects import Json, condition_of

_PATHS = {
    "Installation": "/apis/outhaul.dev/v1alpha1/installations",
    "AgentAction": "/apis/outhaul.dev/v1alpha1/agentactions",
    "InstallationOutput": "/apis/outhaul.dev/v1alpha1/installationoutputs",
    "Pod": "/api/v1/pods",
    "Secret": "/api/v1/secrets",
    "Event": "/api/v1/events",
}
FINAL = {"Succeeded", "Failed", "Cancelled"}
_CAUSES = ("digest", "inputs", "retry", "recollect")
"""Annotations of a run that say what it was made from."""


class Snapshot:
    """The objects of some namespaces, each kind as it was at one moment.

    Args:
        plane: where.
        namespaces: whose objects count.
        kinds: what to ask for.
    """

    def __init__(self, plane: ControlPlane, namespaces: set[str], *kinds: str) -> None:
        self._found = {
            kind: [
                one for one in plane.request("GET", _PATHS[kind])["items"] if one["metadata"]["namespace"] in namespaces
            ]
            for kind in kinds
        }

    def all(self, kind: str) -> list[Json]:
        """The objects of a kind."""
        return self._found[kind]

    def named(self, kind: str) -> dict[tuple[str, str], Json]:
        """The objects of a kind by namespace and name."""
        return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in self._found[kind]}


def everything(plane: ControlPlane, namespaces: set[str]) -> Snapshot:
    """A snapshot of all kinds."""
    return Snapshot(plane, namespaces, *_PATHS)


@dataclass
class Seen:
    """A run, as it was seen last."""

    name: str
    namespace: str
    number: int
    cause: tuple[Any, ...]
    phase: str | None = None
    reason: str | None = None


@dataclass
class Looks:
    """What was seen so far."""

    runs: dict[str, Seen] = field(default_factory=dict)
    """By uid."""
    _by_installation: dict[str, dict[int, Seen]] = field(default_factory=lambda: defaultdict(dict))
    wrong: list[str] = field(default_factory=list)

    def look(self, snapshot: Snapshot) -> None:
        """Takes note of the runs that there are."""
        under_way = defaultdict(list)
        for action in snapshot.all("AgentAction"):
            self._see(action)
            if action.get("status", {}).get("phase") not in FINAL and "deletionTimestamp" not in action["metadata"]:
                under_way[action["spec"]["installation"]["uid"]].append(action["metadata"]["name"])
        self.wrong += [f"under way at once: {names}" for names in under_way.values() if len(names) > 1]

    def succeeded(self) -> list[Seen]:
        """The runs that were seen to have succeeded."""
        return [one for one in self.runs.values() if one.phase == "Succeeded"]

    def _see(self, action: Json) -> None:
        metadata, reference, status = action["metadata"], action["spec"]["installation"], action.get("status", {})
        annotations = metadata.get("annotations", {})
        causes = [annotations.get(f"outhaul.dev/{name}") for name in _CAUSES]
        cause = (action["spec"]["action"], reference.get("attempt"), *causes)
        seen = self.runs.get(metadata["uid"])
        if seen is None:
            seen = Seen(metadata["name"], metadata["namespace"], int(reference["number"]), cause)
            self._new(reference["uid"], seen)
            self.runs[metadata["uid"]] = seen
        now = status.get("phase"), status.get("reason")
        if seen.phase in FINAL and now != (seen.phase, seen.reason):
            self.wrong.append(f"run {seen.name} had ended as {seen.phase} {seen.reason}, and is {now}")
        seen.phase, seen.reason = now

    def _new(self, installation: str, seen: Seen) -> None:
        runs = self._by_installation[installation]
        if seen.number in runs:
            self.wrong.append(f"there were two runs of number {seen.number}: {seen.name}, {runs[seen.number].name}")
        runs[seen.number] = seen
        for before, after in ((seen.number - 1, seen.number), (seen.number, seen.number + 1)):
            if before in runs and after in runs and runs[before].cause == runs[after].cause:
                self.wrong.append(f"run {runs[after].name} has no other cause than {runs[before].name} before it")


def stalled(installation: Json) -> Json | None:
    """The condition of an Installation that waits for a person, by its newest generation."""
    found = condition_of(installation, "Stalled")
    is_current = found is not None and found.get("observedGeneration") == installation["metadata"]["generation"]
    return found if is_current else None
