"""Watches break, lag, lie and go silent, in a proxy before the real API server: the operator goes on, and says so."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from cluster import proxy
from cluster.objects import Objects
from cluster.proxy import Fault, Proxy, Request
from cluster.stack import OPERATOR, Stack
from cluster.waiting import until

pytestmark = pytest.mark.versions

WATCHED = ("installations", "agentactions", "agentconfigs", "pods")
PATIENCE_S = 5


@pytest.fixture(scope="module")
def spoiler(stack: Stack) -> Iterator[Proxy]:
    """A proxy that all requests of the operator go through; it has little patience with watches."""
    with stack.proxied("--watch-timeout-seconds", str(PATIENCE_S)) as running:
        yield running


@pytest.fixture(autouse=True)
def unspoilt(spoiler: Proxy) -> Iterator[None]:
    """Whatever a test does to requests ends with it."""
    yield
    spoiler.clear()


def is_watch(request: Request) -> bool:
    """Whether a request opens one of kopf's watches."""
    return request.is_watch and request.namespace is None and request.resource in WATCHED


def opened(spoiler: Proxy) -> int:
    """How many watches were opened."""
    return sum(map(is_watch, spoiler.requests))


def assert_works(objects: Objects, name: str) -> None:
    """An Installation is noticed, and its status written."""
    objects.install(name, engine="no-such-engine")
    objects.condition("Installation", name, "Stalled")


def error(code: int) -> Fault:
    """A watch that brings nothing but an error, and ends."""

    async def only(_: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": code}}, separators=(",", ":")).encode()
        yield b"\n"

    return proxy.watch_that(only)


async def _half(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for line in lines:
        yield line[: len(line) // 2]
        return


async def _nothing(_: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    return
    yield b""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(error(410), id="too old, within the stream"),
        pytest.param(proxy.fail(410, "Expired"), id="too old, as the answer"),
        pytest.param(error(500), id="a fault of the server, within the stream"),
        pytest.param(proxy.fail(500, "InternalError"), id="a fault of the server, as the answer"),
        pytest.param(proxy.fail(429, "TooManyRequests", Retry_After="1"), id="too many requests"),
        pytest.param(proxy.fail(403, "Forbidden"), id="forbidden for a moment"),
        pytest.param(proxy.fail(404), id="not served yet"),
        pytest.param(proxy.lose_request, id="broken"),
        pytest.param(proxy.watch_that(_half), id="ended in the middle of a line"),
        pytest.param(proxy.watch_that(_nothing), id="ended at once"),
    ],
)
def test_it_goes_on(objects: Objects, stack: Stack, spoiler: Proxy, fault: Fault) -> None:
    """After every watch has failed in some way, the same process sees what happens, also what happened meanwhile."""
    before = stack.control_plane.processes.pid(OPERATOR)
    failed = threading.Semaphore(0)

    async def counted(request: Request, send: proxy.Send) -> proxy.Answer:
        failed.release()
        return await fault(request, send)

    spoiler.fault = proxy.where(is_watch, counted, times=len(WATCHED))
    spoiler.cut()
    assert_works(objects, "meanwhile")
    for _ in WATCHED:
        assert failed.acquire(timeout=60)
    assert_works(objects, "after")
    assert stack.control_plane.processes.pid(OPERATOR) == before


def test_watches_that_end_at_once_are_opened_slowly(objects: Objects, stack: Stack, spoiler: Proxy) -> None:
    """A server that ends each watch at once is asked a few times a minute, not thousands of times a second."""
    spoiler.fault = proxy.where(is_watch, proxy.watch_that(_nothing))
    spoiler.cut()
    begun, before = time.monotonic(), opened(spoiler)
    until(lambda: opened(spoiler) >= before + 12, what="each watch was opened three times", timeout=60)
    # The pauses of a watch are at least 0 s, 0.5 s, 1 s, and then a third of the patience.
    most = len(WATCHED) * (3 + (time.monotonic() - begun) / (PATIENCE_S / 3))
    assert opened(spoiler) - before <= most
    spoiler.clear()
    assert_works(objects, "after")


def test_what_vanished_in_a_gap_is_noticed(objects: Objects, spoiler: Proxy) -> None:
    """An object that is deleted while nothing is watched is gone for the operator as well, once it watches again."""
    assert_works(objects, "first")
    objects.install("second", engine="exec", dependsOn=["first"])

    def says(words: str) -> None:
        objects.until(
            "Installation",
            "second",
            lambda one: any(words in each["message"] for each in one.get("status", {}).get("conditions", [])),
            what=f"it says {words!r}",
        )

    says("is not Ready")
    watching, go_on = threading.Event(), threading.Event()

    async def held(request: Request, send: proxy.Send) -> proxy.Answer:
        watching.set()
        await asyncio.to_thread(go_on.wait, 60)
        return await proxy.fail(410, "Expired")(request, send)

    spoiler.fault = proxy.where(lambda one: is_watch(one) and one.resource == "installations", held, times=1)
    spoiler.cut()
    assert watching.wait(60)
    objects.delete("Installation", "first")
    objects.gone("Installation", "first")
    go_on.set()
    says("does not exist")


def test_a_wedged_watch_is_noticed(stack: Stack, spoiler: Proxy) -> None:
    """Where nothing comes through one watch for too long, liveness fails and names it; afterwards all is well again."""
    go_on = threading.Event()

    async def stuck(_: Request, __: proxy.Send) -> proxy.Answer:
        await asyncio.to_thread(go_on.wait, 120)
        raise proxy.Cut

    spoiler.fault = proxy.where(lambda one: is_watch(one) and one.resource == "pods", stuck)
    spoiler.cut()
    status, said = until(
        lambda: found if (found := stack.operator_answer("/healthz"))[0] != 200 else None,
        what="liveness fails",
        timeout=90,
    )
    assert status == 503
    assert said.startswith("watches are silent: pods for ")
    assert stack.operator_answer("/readyz")[0] == 503
    go_on.set()
    spoiler.clear()
    until(lambda: stack.operator_answer("/healthz")[0] == 200, what="liveness passes", timeout=60)
