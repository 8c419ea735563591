"""Each request of an Installation's life fails, in each way: all is done in the end, and once.

Many lives are walked at once. In each stage of a life each way to fail happens at another place.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from cluster import proxy
from cluster.proxy import Fault
from lives import STAGES, WRITES, Life
from walks import Faults, Place, Places, Walk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WAYS = (
    proxy.lose_request,
    proxy.lose_answer,
    proxy.fail(500, "InternalError"),
    proxy.fail(409, "Conflict"),
)
"""Ways to fail, after which the operator tries again."""
SPOILS: dict[str, Fault] = {"twice": proxy.duplicate, "late": proxy.delay(0.4)}
WIDTH = 30
"""How many lives are walked at once."""


def failing(places: list[Place], number: int) -> Faults:
    """Has requests fail in each way, for one of so many lives as there are places: each at another one."""
    step = len(places) // len(WAYS)
    return {places[(number + index * step) % len(places)]: way for index, way in enumerate(WAYS)}.get


def test_each_request_fails(walk: Walk, usual: Places, new_life: Callable[[], Life]) -> None:
    """Whichever request is lost, answered by nobody, or refused for once, all is done in the end, and once."""
    walked: dict[str, Counter[str]] = {stage: Counter() for stage in usual}
    numbers = range(max(map(len, usual.values())))
    for start in range(0, len(numbers), WIDTH):
        lives = {number: new_life() for number in numbers[start : start + WIDTH]}
        for stage in STAGES:
            visits = {}
            for number, life in lives.items():
                visits[number] = walk.visit(life.objects.namespace, failing(usual[stage.name], number))
                stage.begin(life.objects)
            for number, life in lives.items():
                life.await_end(stage, f"of life {number} these requests failed: {visits[number].reached}")
                walked[stage.name].update(one.what for one in visits[number].reached)
    left_out = {stage: {one for one in writes if walked[stage][one] < len(WAYS)} for stage, writes in WRITES.items()}
    assert left_out == {stage: set() for stage in WRITES}


def test_all_requests_come(walk: Walk, new_life: Callable[[], Life]) -> None:
    """Where every request comes twice, or late, all is done, and once."""
    lives = {what: new_life() for what in SPOILS}
    for what, fault in SPOILS.items():
        walk.visit(lives[what].objects.namespace, lambda _, fault=fault: fault)  # type: ignore[misc]
    for stage in STAGES:
        for life in lives.values():
            stage.begin(life.objects)
        for what, life in lives.items():
            life.await_end(stage, f"every request came {what}")
    walk.end()
