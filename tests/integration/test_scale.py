"""Many runs at once, by hollow agents: each has its outputs, at the cost of one. `bench.scale` measures more."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from cluster.hollow import POD_TEMPLATE, HollowNode
from cluster.hollow.agents import OUTPUTS
from cluster.objects import Json, Objects
from cluster.stack import Stack, operator_user

FEW, MANY = 20, 40
SPEC: Json = {"engine": "exec", "commands": {"install": [{"name": "work", "command": ["sleep", "0"]}]}}


@pytest.fixture(scope="module")
def hollow(stack: Stack, shared_objects: Objects) -> Iterator[Objects]:
    """A namespace whose runs go to a hollow node."""
    node = HollowNode(stack.control_plane)
    node.start()
    shared_objects.create("AgentConfig", "default", spec={"podTemplate": POD_TEMPLATE})
    yield shared_objects
    node.stop()


def install(objects: Objects, stack: Stack, names: list[str]) -> list[Json]:
    """Installs all of these at once, waits until it is said of each that it is ready, and returns what that asked."""
    objects.settle()
    since = len(stack.control_plane.audit_events(operator_user()))
    for name in names:
        objects.install(name, **SPEC)
    for name in names:
        objects.ready(name)
    for name in names:
        objects.said("Installation", name, "Normal", "Succeeded")
    requests = stack.control_plane.audit_events(operator_user())[since:]
    return [one for one in requests if one.get("objectRef", {}).get("namespace") == objects.namespace]


def usual(requests: list[Json], names: list[str]) -> Counter[str]:
    """Returns what was asked for each of most of them, of objects that are its own."""
    each: dict[str, Counter[str]] = {name: Counter() for name in names}
    for one in requests:
        about = one["objectRef"]
        whose = re.split(r"[.-]", about.get("name", ""))[0]
        if whose in each and one["verb"] != "watch":
            each[whose][f"{one['verb']} {about['resource']} {one['responseStatus']['code']}"] += 1
    return Counter(dict(Counter(tuple(sorted(counted.items())) for counted in each.values()).most_common(1)[0][0]))


def test_a_run_costs_the_same_beside_many_others(hollow: Objects, stack: Stack) -> None:
    """Of 60 Installations each takes the requests that it takes of 20, and each has all outputs of its run."""
    names = [f"one{number:03}" for number in range(FEW + MANY)]
    few = usual(install(hollow, stack, names[:FEW]), names[:FEW])
    many = usual(install(hollow, stack, names[FEW:]), names[FEW:])
    assert many == few
    assert few["create agentactions 201"] == 1, few
    for name in names:
        assert hollow.secret(f"{name}-outputs").keys() == {one.name for one in OUTPUTS}
