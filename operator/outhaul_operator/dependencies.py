"""Which Installations wait for which: who is named, who is ready, who waits in a ring, who uses whom. Pure.

`installations` asks before it starts a run or an uninstall; the controller wakes by it those who wait.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from outhaul_api.installation import Installation
from outhaul_api.vocabulary import InstallationCondition, Reason

from outhaul_operator.decisions import has_left_nothing
from outhaul_operator.verdicts import StalledError, VerdictError, WaitingError

Edges = Callable[[str], Iterable[str]]
"""Returns the names that an Installation of the namespace waits for."""


def named(installation: Installation) -> list[str]:
    """Returns the names of the Installations that must be ready before a run, each once, in order."""
    spec = installation.spec
    inputs = [one.output.installation for one in spec.inputs if one.output is not None]
    return list(dict.fromkeys([*spec.depends_on, *inputs]))


def verdict(installation: Installation, peers: Mapping[str, Installation | None], edges: Edges) -> VerdictError | None:
    """Returns why no run may start yet; None where one may.

    Args:
        installation: Whose run it would be.
        peers: The Installations that it names, None for those that do not exist.
        edges: Who waits for whom in its namespace.
    """
    ring = cycle(installation.metadata.name, edges)
    if ring is not None:
        path = " -> ".join(ring)
        return StalledError(
            Reason.DEPENDENCY_CYCLE, f"these wait for each other: {path}; take one of them out of dependsOn or inputs"
        )
    missing = [name for name, peer in peers.items() if peer is None]
    if missing:
        return WaitingError(
            Reason.DEPENDENCY_NOT_READY,
            f"Installation {', '.join(missing)} does not exist; create it, or correct the name",
            is_watched=True,
        )
    waiting = [name for name, peer in peers.items() if peer is not None and not is_ready(peer)]
    if waiting:
        return WaitingError(
            Reason.DEPENDENCY_NOT_READY,
            f"Installation {', '.join(waiting)} is not Ready at its newest generation, or is uninstalled",
            is_watched=True,
        )
    return None


def is_ready(installation: Installation) -> bool:
    """Tells whether the newest generation is installed, and is to stay."""
    ready = next((one for one in installation.status.conditions if one.type == InstallationCondition.READY), None)
    return (
        ready is not None
        and ready.status == "True"
        and ready.observed_generation == installation.metadata.generation
        and installation.metadata.deletion_timestamp is None
        and not installation.spec.uninstalled
    )


def cycle(start: str, edges: Edges) -> list[str] | None:
    """Returns the way from a name back to itself, both ends included; None where there is none."""
    came_from: dict[str, str] = {}
    left = [start]
    while left:
        here = left.pop()
        for name in edges(here):
            if name == start:
                path = [start, here]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if name not in came_from:
                came_from[name] = here
                left.append(name)
    return None


def users(installation: Installation, others: Iterable[Installation], edges: Edges) -> list[str]:
    """Returns who uses an Installation, and so has to be uninstalled before it.

    Who has nothing installed does not count, nor who waits in a ring with it: nobody could begin.
    """
    name = installation.metadata.name
    below = _reachable(name, edges)
    return sorted(
        other.metadata.name
        for other in others
        if name in named(other)
        and other.metadata.name not in below
        and other.status.action is not None
        and not has_left_nothing(other.status.action)
    )


def _reachable(start: str, edges: Edges) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for name in edges(left.pop()):
            if name not in found:
                found.add(name)
                left.append(name)
    return found


class Graph:
    """Who names whom, in every namespace; fed by watch events, so it may be behind."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], list[str]] = {}
        self._users: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def put(self, installation: Installation) -> None:
        """Takes in what an Installation names."""
        namespace, name = installation.metadata.namespace, installation.metadata.name
        self.drop(namespace, name)
        self._named[namespace, name] = named(installation)
        for other in self._named[namespace, name]:
            self._users[namespace, other].add(name)

    def drop(self, namespace: str, name: str) -> None:
        """Forgets what an Installation names."""
        for other in self._named.pop((namespace, name), []):
            users = self._users[namespace, other]
            users.discard(name)
            if not users:
                del self._users[namespace, other]

    def neighbours(self, namespace: str, name: str) -> set[str]:
        """Returns the names of those that wait for an Installation, and of those that it waits for."""
        return self._users.get((namespace, name), set()) | set(self._named.get((namespace, name), ()))

    def edges(self, namespace: str) -> Edges:
        """Returns who waits for whom in a namespace."""
        return lambda name: self._named.get((namespace, name), ())
