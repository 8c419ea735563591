"""The operator is killed (SIGKILL) at each write of an Installation's life: before it arrives, and before its answer.

At a read nothing would be different: an operator that dies there leaves the cluster as after the write before it.

Many lives are walked at once, each to a place of its own: there, nothing more arrives from its namespace, as if the
operator were dead, and once that is so of all of them, it is killed. What the operator asks in its own namespace is no
place, since it cannot be told for whom that is: it only reads there, so nothing has changed since the place before.
"""

from collections.abc import Callable

import pytest
from cluster.proxy import Fault
from cluster.stack import Stack
from cluster.waiting import until
from lives import RUNS, STAGES, WRITES, Life, Stage
from walks import Place, Places, Visit, Walk, only, rows

pytestmark = pytest.mark.slow

WIDTH = 30
"""How many lives are walked at once."""
PATIENCE_S = 300.0
Lives = list[tuple[Life, dict[str, Place]]]
"""Each with its place in each stage."""


class Killer:
    """Kills the operator at places.

    Args:
        stack: Whose operator.
        walk: What is done to its requests.
    """

    def __init__(self, stack: Stack, walk: Walk) -> None:
        self._stack, self._walk = stack, walk

    def go(self, stage: Stage, lives: Lives) -> list[tuple[Visit, Visit]]:
        """Has lives go through a stage, in which each has its operator killed twice: before its place, and after it."""
        before = self._visit(stage, lives, [None] * len(lives), self._walk.stop(after=False))
        for life, _ in lives:
            stage.begin(life.objects)
        self._await(stage, lives, before)
        self._kill()
        after = self._visit(stage, lives, before, self._walk.stop(after=True))
        self._stack.start_operator(server=self._walk.server)
        self._await(stage, lives, after)
        self._kill()
        self._stack.start_operator(server=self._walk.server)
        for life, places in lives:
            life.await_end(stage, f"killed before and after {places.get(stage.name)}")
        return list(zip(before, after, strict=True))

    def _visit(self, stage: Stage, lives: Lives, former: list[Visit] | list[None], stop: Fault) -> list[Visit]:
        return [
            self._walk.visit(life.objects.namespace, only(places.get(stage.name), stop), before=visit)
            for (life, places), visit in zip(lives, former, strict=True)
        ]

    def _await(self, stage: Stage, lives: Lives, visits: list[Visit]) -> None:
        """Waits until each life is at its place, or at the end of a stage that does not come to it."""
        for (life, places), visit in zip(lives, visits, strict=True):

            def is_there(life: Life = life, visit: Visit = visit) -> bool:
                return visit.is_stopped or life.is_at_end(stage)

            what = f"{stage.name}: {places.get(stage.name)}"
            until(is_there, what=what, timeout=PATIENCE_S, interval=0.2)

    def _kill(self) -> None:
        self._stack.kill_operator()
        self._walk.end()


@pytest.mark.timeout(1200)
def test_killed_at_each_write(stack: Stack, walk: Walk, usual: Places, new_life: Callable[[], Life]) -> None:
    """Killed before and after any write and started again, the operator comes to the same end; nothing ran twice.

    All that changes something was among the requests.
    """
    killer = Killer(stack, walk)
    killed: dict[str, tuple[set[str], set[str]]] = {stage: (set(), set()) for stage in usual}
    walked = {stage: [one for one in places if one.is_write] for stage, places in usual.items()}
    todo, namespaces = rows(walked), []
    while todo:
        group, todo = todo[:WIDTH], todo[WIDTH:]
        lives = [(new_life(), places) for places in group]
        namespaces += [life.objects.namespace for life, _ in lives]
        for stage in STAGES:
            for visits in killer.go(stage, lives):
                for places, visit in zip(killed[stage.name], visits, strict=True):
                    places.update(one.what for one in visit.reached)
    left_out = {stage: [writes - places for places in killed[stage]] for stage, writes in WRITES.items()}
    assert left_out == {stage: [set(), set()] for stage in WRITES}
    assert created(stack, "agentactions", namespaces) == [RUNS] * len(namespaces)
    assert created(stack, "pods", namespaces) == [RUNS] * len(namespaces)


def created(stack: Stack, resource: str, namespaces: list[str]) -> list[int]:
    """How many objects of a kind were created in each namespace, by whomever, whatever became of them."""
    made = [
        one["objectRef"].get("namespace")
        for one in stack.control_plane.audit_events()
        if (one["verb"], one.get("objectRef", {}).get("resource")) == ("create", resource)
        and "subresource" not in one["objectRef"]
        and one["responseStatus"]["code"] == 201
    ]
    return [made.count(namespace) for namespace in namespaces]
