"""Which Installations wait for which."""

import itertools
from typing import Any

import pytest
from builders import installation
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.installation import Installation
from outhaul_api.vocabulary import Reason
from outhaul_operator import dependencies
from outhaul_operator.dependencies import Graph
from outhaul_operator.verdicts import StalledError, WaitingError

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Succeeded",
    "message": "",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
RUN = {"name": "shop-1", "action": "install", "generation": 1, "number": 1, "digest": "d", "phase": "Succeeded"}


def one(name: str, *peers: str, ready: bool = True, **changes: Any) -> Installation:
    """An Installation that depends on others and is installed; `changes` are of its run, its metadata or its spec."""
    run = RUN | {key: changes.pop(key) for key in ("action", "phase", "started", "first") if key in changes}
    spec = {"dependsOn": list(peers), **changes.pop("spec", {})}
    status = {"conditions": [READY] if ready else [], "action": run}
    return installation(spec, changes.pop("status", status), name=name, uid=name, **changes)


def edges(**named: str) -> dependencies.Edges:
    """Who waits for whom: `edges(a="bc")` says that a waits for b and c."""
    return lambda name: named.get(name, "")


# -- who is named


def test_who_is_named() -> None:
    """Those that `dependsOn` and inputs name, each once, in the order of their mention."""
    inputs = [
        {"name": "a", "output": {"installation": "db", "name": "host"}},
        {"name": "b", "output": {"installation": "net", "name": "cidr"}},
        {"name": "c", "secretKeyRef": {"name": "s", "key": "k"}},
    ]
    assert dependencies.named(installation({"dependsOn": ["net"], "inputs": inputs})) == ["net", "db"]


# -- verdicts


def test_nothing_to_wait_for() -> None:
    """Where all that are named are ready, a run may start."""
    assert dependencies.verdict(one("a", "b"), {"b": one("b")}, edges(a="b")) is None


def test_a_missing_peer() -> None:
    """Those that do not exist are named, before those that are not ready; a watch reports their coming."""
    peers = {"b": None, "c": None, "d": one("d", ready=False)}
    verdict = dependencies.verdict(one("a", "b", "c", "d"), peers, edges(a="bcd"))
    assert isinstance(verdict, WaitingError)
    assert verdict.is_watched
    assert verdict.reason is Reason.DEPENDENCY_NOT_READY
    assert "Installation b, c does not exist" in verdict.message


@pytest.mark.parametrize(
    "peer",
    [
        one("b", ready=False),
        one("b", generation=2),
        one("b", status={"conditions": [READY | {"status": "False"}]}),
        one("b", deletionTimestamp="2026-01-01T00:00:00Z"),
        one("b", spec={"uninstalled": True}),
    ],
    ids=["no condition", "newer generation", "not ready", "being deleted", "uninstalled"],
)
def test_a_peer_that_is_not_ready(peer: Installation) -> None:
    """Who is not Ready at its newest generation, or is about to go, is waited for."""
    verdict = dependencies.verdict(one("a", "b"), {"b": peer}, edges(a="b"))
    assert isinstance(verdict, WaitingError)
    assert "Installation b is not Ready at its newest generation" in verdict.message


def test_a_ring() -> None:
    """Who waits in a ring needs a person; the message shows the ring."""
    verdict = dependencies.verdict(one("a", "b"), {"b": one("b")}, edges(a="b", b="c", c="a"))
    assert isinstance(verdict, StalledError)
    assert verdict.reason is Reason.DEPENDENCY_CYCLE
    assert "a -> b -> c -> a" in verdict.message


def test_who_waits_for_a_ring_is_not_in_it() -> None:
    """Who depends on a member of a ring waits for it, as for everybody who is not ready."""
    verdict = dependencies.verdict(one("x", "a"), {"a": one("a", ready=False)}, edges(x="a", a="b", b="a"))
    assert isinstance(verdict, WaitingError)


GRAPHS = st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=3))


@given(GRAPHS, st.sampled_from("abcdef"))
def test_a_ring_is_a_way_back(graph: dict[str, list[str]], start: str) -> None:
    """What is called a ring is a way along the edges from a name to itself; there is one exactly if it is reachable."""
    reachable: set[str] = set()
    left = list(graph.get(start, []))
    while left:
        name = left.pop()
        if name not in reachable:
            reachable.add(name)
            left += graph.get(name, [])
    ring = dependencies.cycle(start, lambda name: graph.get(name, ()))
    assert (ring is not None) == (start in reachable)
    if ring is not None:
        assert ring[0] == ring[-1] == start
        assert len(set(ring)) == len(ring) - 1
        assert all(after in graph[before] for before, after in itertools.pairwise(ring))


# -- who uses whom


@pytest.mark.parametrize(
    ("user", "counts"),
    [
        (one("user", "a"), True),
        (one("user", "a", phase="Failed"), True),
        (one("user", "a", phase=None), True),
        (one("user", "a", deletionTimestamp="2026-01-01T00:00:00Z"), True),
        (one("user", "b"), False),
        (one("user", "a", status={}), False),
        (one("user", "a", action="uninstall"), False),
        (one("user", "a", action="uninstall", phase="Failed"), True),
        (one("user", "a", phase="Cancelled", started=False, first=True), False),
        (one("user", "a", phase="Cancelled", started=False), True),
    ],
    ids=[
        "installed",
        "failed",
        "being installed",
        "being deleted",
        "uses another",
        "never run",
        "uninstalled",
        "uninstall failed",
        "never started",
        "upgrade never started",
    ],
)
def test_who_counts_as_a_user(user: Installation, *, counts: bool) -> None:
    """Who may have something installed and names an Installation is uninstalled before it."""
    assert dependencies.users(one("a"), [one("a"), user], edges(user="a")) == (["user"] if counts else [])


def test_a_ring_can_be_deleted() -> None:
    """Those who wait in a ring do not wait for each other with their uninstall: nobody could begin."""
    ring = [one("a", "b"), one("b", "a"), one("x", "a")]
    assert dependencies.users(ring[0], ring, edges(a="b", b="a", x="a")) == ["x"]


# -- the graph


def test_the_graph_knows_both_directions() -> None:
    """Neighbours are those that wait for an Installation and those that it waits for, in its namespace alone."""
    graph = Graph()
    for name, *peers in ("a", "b"), ("b", "c"), ("c",):
        graph.put(one(name, *peers))
    graph.put(one("d", "b", namespace="other"))
    assert graph.neighbours("tenant", "b") == {"a", "c"}
    assert list(graph.edges("tenant")("a")) == ["b"]
    assert graph.neighbours("other", "b") == {"d"}
    assert list(graph.edges("nowhere")("a")) == []


def test_the_graph_forgets() -> None:
    """A changed Installation names only what it names now, one that is gone names nobody, and is still named."""
    graph = Graph()
    graph.put(one("a", "b"))
    graph.put(one("a", "c"))
    assert graph.neighbours("tenant", "b") == set()
    graph.put(one("x", "a"))
    graph.drop("tenant", "a")
    graph.drop("tenant", "never-seen")
    assert graph.neighbours("tenant", "c") == set()
    assert graph.neighbours("tenant", "a") == {"x"}
