"""Requests to the API server fail in every way: each is made again, until what has to be done is done, once."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from cluster import proxy
from cluster.objects import Objects
from cluster.proxy import Answer, Fault, Proxy, Request, Send
from cluster.stack import Stack

FAULTS = {
    "too many requests": proxy.fail(429, "TooManyRequests", Retry_After="1"),
    "a fault of the server": proxy.fail(500, "InternalError"),
    "no server": proxy.fail(503),
    "a gateway's own words": proxy.fail(504, message="<html>"),
    "a server that has not read the roles yet": proxy.fail(403, "Forbidden"),
    "a server that does not know the kind yet": proxy.fail(404, message="404 page not found"),
    "a conflict": proxy.fail(409, "Conflict"),
    "a lost request": proxy.lose_request,
    "a lost answer": proxy.lose_answer,
    "a request that comes twice": proxy.duplicate,
    "a slow server": proxy.delay(1.5),
}
COMMAND = {"name": "main", "command": ["sh", "-c", 'echo it ran; printf up > "$OUTHAUL_OUTPUTS/state"']}


@pytest.fixture(scope="module")
def spoiler(stack: Stack) -> Iterator[Proxy]:
    """A proxy that all requests of the operator go through."""
    with stack.proxied() as running:
        yield running


@pytest.fixture
def unspoilt(spoiler: Proxy) -> Iterator[None]:
    """Whatever a test does to requests ends with it."""
    yield
    spoiler.clear()


def first_of_each_kind(faults: dict[str, Fault]) -> Fault:
    """Spoils the first write of each verb on each resource in some namespaces, in each namespace in its own way.

    Events are left alone: one that cannot be written holds nothing up, and is not said again.
    """
    spoilt: set[tuple[str | None, ...]] = set()

    async def first(request: Request, send: Send) -> Answer:
        fault = faults.get(request.namespace or "")
        what = (request.verb, request.resource, request.namespace)
        if fault is None or not request.is_write or request.resource == "events" or what in spoilt:
            return await send()
        spoilt.add(what)
        return await fault(request, send)

    return first


@pytest.fixture(scope="module")
def installed(stack: Stack, spoiler: Proxy, make_namespace: Callable[[], Objects]) -> Iterator[dict[str, Objects]]:
    """A namespace for each fault, with an Installation of which each kind of write fails at first."""
    made = {name: make_namespace() for name in FAULTS}
    spoiler.fault = first_of_each_kind({objects.namespace: FAULTS[name] for name, objects in made.items()})
    for objects in made.values():
        objects.install("service", engine="exec", commands={"install": [COMMAND]})
    yield made
    spoiler.clear()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_write_is_made_in_the_end(installed: dict[str, Objects], stack: Stack, fault: str) -> None:
    """Where each kind of write fails at first in one way, the run succeeds all the same, and happened once."""
    objects = installed[fault]
    run = objects.ready("service")["status"]["action"]["name"]
    assert objects.secret("service-outputs") == {"state": b"up"}
    assert objects.names("AgentAction") == [run]
    assert objects.records("service") == {run: "Current"}
    assert stack.container_log(objects.namespace, run).count("it ran") == 1
    said = objects.events("Installation", "service")
    assert [reason for _, reason, _ in said] == ["Dispatched", "Succeeded"]


@pytest.mark.usefixtures("unspoilt")
def test_a_neighbour_does_not_wait(new_objects: Callable[[], Objects], spoiler: Proxy) -> None:
    """However many requests hang in one namespace, an Installation of another one is served; then theirs are too."""
    slow, quick = new_objects(), new_objects()
    go_on = threading.Event()

    async def hang(_: Request, send: Send) -> Answer:
        await asyncio.to_thread(go_on.wait, 120)
        return await send()

    spoiler.fault = proxy.where(lambda one: one.is_write and one.namespace == slow.namespace, hang)
    for number in range(30):
        slow.install(f"service-{number}", engine="no-such-engine")
    quick.install("service", engine="exec", commands={"install": [COMMAND]})
    quick.ready("service")
    assert all("status" not in one for one in slow.all("Installation")), "nothing has hung"
    go_on.set()
    slow.condition("Installation", "service-29", "Stalled")


@pytest.mark.usefixtures("unspoilt")
def test_what_is_not_served_yet_is_not_gone(objects: Objects, stack: Stack, spoiler: Proxy) -> None:
    """An API server that has just started does not know our kinds: a run that it does not find is not given up."""
    command = {"name": "main", "command": ["sh", "-c", 'echo it ran; sleep 4; printf up > "$OUTHAUL_OUTPUTS/state"']}
    objects.install("service", engine="exec", commands={"install": [command]})
    run = objects.until("Installation", "service", lambda one: one.get("status", {}).get("action"), what="it has a run")
    objects.condition("AgentAction", run["name"], "Started")
    stack.kill_operator()

    def ours(request: Request) -> bool:
        return (request.verb, request.resource, request.namespace) == ("get", "agentactions", objects.namespace)

    spoiler.fault = proxy.where(ours, proxy.fail(404), times=3)
    stack.start_operator(server=spoiler.url)
    objects.ready("service")
    assert objects.names("AgentAction") == [run["name"]]
    assert stack.container_log(objects.namespace, run["name"]).count("it ran") == 1


def test_the_api_server_is_started_again(objects: Objects, stack: Stack) -> None:
    """A run outlives the API server: while that is gone it works, and afterwards its outputs are published."""
    command = {"name": "main", "command": ["sh", "-c", 'echo it ran; sleep 4; printf up > "$OUTHAUL_OUTPUTS/state"']}
    objects.install("service", engine="exec", commands={"install": [command]})
    run = objects.until("Installation", "service", lambda one: one.get("status", {}).get("action"), what="it has a run")
    objects.condition("AgentAction", run["name"], "Started")
    stack.control_plane.restart_apiserver(kill=True)
    # As Kubernetes would, where the operator has given up meanwhile.
    stack.start_operator()
    objects.ready("service")
    assert objects.secret("service-outputs") == {"state": b"up"}
    assert objects.names("AgentAction") == [run["name"]]
    assert stack.container_log(objects.namespace, run["name"]).count("it ran") == 1
