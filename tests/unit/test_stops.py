"""Why Kubernetes has taken a pod away: by the pod's status, or by events that a real HTTP server streams."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from outhaul_api.vocabulary import Reason
from outhaul_operator import situations, stops
from outhaul_operator.situations import Situation, Stage
from scripted import Script, failure, serving

STOPPED = Situation(Stage.ENDED, Reason.AGENT_CRASHED, "the agent in pod p ended with code 143", pod="p")
PREEMPTED = ("Preempted", "Preempted by system/important on node a")
TAINTED = ("TaintManagerEviction", "Marking for deletion Pod tenant/p")
SPARED = ("TaintManagerEviction", "Cancelling deletion of Pod tenant/p")
NOT_READY = ("NodeNotReady", "Node is not ready")
KILLING = ("Killing", "Stopping container agent")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # The streams here end by themselves, however slow the machine is.
    monkeypatch.setattr(stops, "LISTEN_S", 60.0)


def telling(*said: tuple[str, str]) -> Script:
    """Returns a stream of events that ends after them."""

    async def tell(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for reason, message in said:
            event = {"type": "ADDED", "object": {"reason": reason, "message": message}}
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    return tell


def deleted(situation: Situation) -> Situation:
    """Returns the situation of a pod that somebody has deleted."""
    return dataclasses.replace(situation, is_deleted=True)


@pytest.mark.parametrize(
    ("events", "situation", "reason", "words"),
    [
        ([KILLING, PREEMPTED], deleted(STOPPED), Reason.EVICTED, "Preempted: Preempted by system/important on node a"),
        ([NOT_READY, TAINTED], deleted(STOPPED), Reason.EVICTED, "TaintManagerEviction: Marking for deletion"),
        ([KILLING], STOPPED, Reason.POD_LOST, "neither was its run cancelled nor the pod deleted"),
    ],
)
async def test_who_stopped_it_is_quoted(
    tmp_path: Path, events: list[tuple[str, str]], situation: Situation, reason: Reason, words: str
) -> None:
    """Whoever takes a pod away says so in an event; a pod that stops without all that is lost."""
    async with serving(tmp_path) as (server, cluster):
        server.will(telling(*events))
        found = await stops.why_stopped(cluster, "tenant", situation)
    assert found is not None
    assert found[0] is reason
    assert words in found[1]


@pytest.mark.parametrize("events", [[], [KILLING], [SPARED, KILLING], [NOT_READY, KILLING]])
async def test_a_deletion_by_hand_has_no_reason(tmp_path: Path, events: list[tuple[str, str]]) -> None:
    """What else is said of a pod that somebody deletes is not why its run was stopped."""
    async with serving(tmp_path) as (server, cluster):
        server.will(telling(*events))
        assert await stops.why_stopped(cluster, "tenant", deleted(STOPPED)) is None


async def test_what_the_pod_says_is_enough(tmp_path: Path) -> None:
    """Where the status has the reason, nobody is asked."""
    taken = Situation(Stage.ENDED, Reason.EVICTED, "pod p was evicted: too full", pod="p", is_taken=True)
    async with serving(tmp_path) as (server, cluster):
        assert await stops.why_stopped(cluster, "tenant", taken) == (Reason.EVICTED, "pod p was evicted: too full")
        assert server.requests == []


@pytest.mark.parametrize(
    ("events", "reason", "words"),
    [
        ([], Reason.POD_LOST, "pod p is gone and did not say how it ended"),
        (
            [NOT_READY, TAINTED, TAINTED],
            Reason.POD_LOST,
            "(NodeNotReady: Node is not ready; TaintManagerEviction: Mark",
        ),
        ([KILLING, PREEMPTED], Reason.EVICTED, "(Preempted: Preempted by system/important on node a)"),
    ],
)
async def test_why_a_pod_is_gone(tmp_path: Path, events: list[tuple[str, str]], reason: Reason, words: str) -> None:
    """Events outlive their pod."""
    async with serving(tmp_path) as (server, cluster):
        server.will(telling(*events))
        found, message = await stops.why_gone(cluster, "tenant", situations.gone("p"))
    assert found is reason
    assert words in message


@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster: stops.why_gone(cluster, "tenant", situations.gone("p")),
        lambda cluster: stops.why_stopped(cluster, "tenant", STOPPED),
    ],
)
async def test_events_that_cannot_be_had_hold_up_nothing(tmp_path: Path, ask: Callable[..., object]) -> None:
    """Then there is nothing to quote."""
    async with serving(tmp_path) as (server, cluster):
        server.will(failure(403, "Forbidden"))
        found = await ask(cluster)  # type: ignore[misc]
    assert found is not None
    assert found[0] is Reason.POD_LOST


async def test_nobody_waits_for_events_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch does not end by itself: who has said nothing after a moment is not waited for."""
    monkeypatch.setattr(stops, "LISTEN_S", 0.1)
    over = asyncio.Event()

    async def stay_silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await over.wait()
        return response

    async with serving(tmp_path) as (server, cluster):
        server.will(stay_silent)
        reason, _ = await stops.why_gone(cluster, "tenant", situations.gone("p"))
        over.set()
    assert reason is Reason.POD_LOST
