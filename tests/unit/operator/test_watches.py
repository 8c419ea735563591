"""kopf's watches, at the wire: a server on loopback that answers as it is told to, asked as kopf asks."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from looptime import AdvancingLoop
from outhaul_operator.watches import Place, Watches, repaired
from scripted import Answer, Script, Server, failure, serving

PATH = "/api/v1/pods"
PODS = Place("pods", None)
EVENT = {"type": "ADDED", "object": {"metadata": {"name": "p"}}}
LINE = json.dumps(EVENT, separators=(",", ":")).encode() + b"\n"
PATIENCE = 60.0


class Kopf:
    """Asks as kopf does: a list, or a watch whose lines it parses.

    Args:
        session: goes through the watches.
        url: of the server.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def lists(self) -> int:
        """Lists; returns the status."""
        async with self.get(PATH) as response:
            return response.status

    def get(self, path: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Asks for anything."""
        return self._session.get(self._url + path)

    async def watch(self) -> AsyncGenerator[Any, None]:
        """Watches; yields what it takes for events."""
        async with self.get(f"{PATH}?watch=true") as response:
            assert response.status < 400
            rest = b""
            async for data in response.content.iter_chunked(1024):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield json.loads(line)
            if rest:
                yield json.loads(rest)

    async def watched(self) -> list[Any]:
        """Watches until the server ends it; returns the events."""
        return [event async for event in self.watch()]


@dataclass
class Case:
    """A server, watches of pods that nobody has asked for yet, and kopf."""

    server: Server
    watches: Watches
    kopf: Kopf
    relisted: list[None]
    """One for each time that a gap was told of."""
    pauses: list[float]
    """What was waited for, which takes no time here."""


@asynccontextmanager
async def prepared(folder: Path) -> AsyncIterator[Case]:
    """Runs the server."""
    relisted: list[None] = []
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    watches = Watches([PODS], PATIENCE, lambda: relisted.append(None), sleep)
    async with serving(folder) as (server, cluster), cluster.session(watches) as session:
        yield Case(server, watches, Kopf(session, server.url), relisted, pauses)


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    """A server, watches and kopf."""
    async with prepared(tmp_path) as made:
        yield made


def gone(event: Any) -> bool:
    """Whether kopf lists again after this."""
    return bool(event["type"] == "ERROR" and event["object"]["code"] == 410)


def until_told(told: asyncio.Event, *lines: bytes) -> Script:
    """A watch that sends these lines, and stays open until it is told to end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        await told.wait()
        return response

    return answer


async def test_events_pass_as_they_are(case: Case) -> None:
    """What is an event reaches kopf unchanged, also one in several pieces."""
    case.server.will(Answer(body=LINE * 1000))
    assert await case.kopf.watched() == [EVENT] * 1000


async def test_an_event_that_was_cut_short_is_none(case: Case) -> None:
    """Half a line at the end of a stream is left out: kopf would take it for broken JSON, and end the operator."""
    case.server.will(Answer(body=LINE + LINE[:20]))
    assert await case.kopf.watched() == [EVENT]


async def test_a_broken_connection_stays_one(case: Case) -> None:
    """A connection that breaks is an error of the connection, after which kopf watches on from where it was."""
    case.server.will(Answer(body=LINE + LINE[:20], cut=True))
    events = case.kopf.watch()
    assert await anext(events) == EVENT
    with pytest.raises(aiohttp.ClientPayloadError):
        await anext(events)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"type":"ERROR","object":{"kind":"Status","code":410}}', id="gone"),
        pytest.param(b'{"type":"ERROR","object":{"kind":"Status","code":500}}', id="fault"),
        pytest.param(b"<html>", id="none of Kubernetes'"),
        pytest.param(LINE[:20], id="half"),
    ],
)
def test_what_is_no_event_makes_kopf_list_again(line: bytes) -> None:
    """Any error in a stream, and whatever is no event, becomes the one after which kopf lists again; others stay."""
    first, second, third = repaired(LINE + line + b"\n" + LINE).splitlines()
    assert first == third == LINE.strip()
    assert gone(json.loads(second))


async def test_a_watch_that_goes_too_far_back(case: Case) -> None:
    """410 as the answer to a watch, which would end kopf, is told as 410 within a watch."""
    case.server.will(failure(410, "Expired"))
    (event,) = await case.kopf.watched()
    assert gone(event)


@pytest.mark.parametrize("status", [403, 404])
async def test_a_server_that_starts(case: Case, status: int) -> None:
    """What was listed once and is refused or unknown now is asked for again; only it is no sign of life."""
    case.server.will(Answer(), Answer(body=LINE), failure(status, "Starting"), failure(status, "Starting"))
    await case.kopf.lists()
    await case.kopf.watched()
    heard = case.watches.ages()[PODS]
    for query in ("", "?watch=true"):
        async with case.kopf.get(PATH + query) as response:
            assert response.status == 503
    assert case.watches.ages()[PODS] >= heard


async def test_other_refusals_stay(case: Case) -> None:
    """Kopf itself deals with all other answers."""
    case.server.will(failure(403, "Forbidden"))
    assert await case.kopf.lists() == 403


async def test_ready_once_listed(case: Case) -> None:
    """A place is listed once a watch follows its list: then kopf has passed on all of it."""
    assert case.watches.unlisted() == "not listed yet: pods"
    case.server.will(Answer())
    await case.kopf.lists()
    assert case.watches.unlisted() == "not listed yet: pods"
    case.server.will(Answer(body=LINE))
    await case.kopf.watched()
    assert case.watches.unlisted() is None
    assert case.relisted == []


async def test_a_gap_is_told(case: Case) -> None:
    """Each further list is told of, after it is in: kopf does not say what vanished before it."""
    case.server.will(Answer(), Answer(body=LINE), Answer(body=LINE), Answer())
    await case.kopf.lists()
    await case.kopf.watched()
    await case.kopf.watched()
    await case.kopf.lists()
    assert case.relisted == []
    case.server.will(Answer(body=LINE))
    await case.kopf.watched()
    assert len(case.relisted) == 1


async def test_others_are_left_alone(case: Case) -> None:
    """What kopf asks beside, such as which kinds there are, is none of the places."""
    case.server.will(Answer())
    async with case.kopf.get("/apis/outhaul.dev/v1alpha1"):
        pass
    assert case.watches.ages().keys() == {PODS}


def in_advancing_loop(scenario: Callable[[Case, AdvancingLoop], Awaitable[None]], folder: Path) -> None:
    """Runs a test in a loop whose time can be advanced."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancingLoop)
        async with prepared(folder) as case:
            await scenario(case, loop)

    with asyncio.Runner(loop_factory=AdvancingLoop) as runner:
        runner.run(run())


def test_silence_is_noticed(tmp_path: Path) -> None:
    """A watch without a sign of life is wedged after three times kopf's patience; any word of the server ends that."""

    async def scenario(case: Case, loop: AdvancingLoop) -> None:
        end = asyncio.Event()
        case.server.will(until_told(end, LINE))
        events = case.kopf.watch()
        await anext(events)
        loop.advance(2.9 * PATIENCE)
        assert case.watches.wedged() is None
        loop.advance(0.2 * PATIENCE)
        silent = case.watches.wedged()
        assert silent is not None
        assert silent.startswith("watches are silent: pods for 18")
        end.set()
        assert [event async for event in events] == []
        case.server.will(Answer())
        await case.kopf.lists()
        assert case.watches.wedged() is None

    in_advancing_loop(scenario, tmp_path)


def test_a_place_that_was_never_asked_for_is_silent(tmp_path: Path) -> None:
    """Time counts from the beginning, so a watch that kopf never opens is noticed as well."""

    async def scenario(case: Case, loop: AdvancingLoop) -> None:
        loop.advance(3.1 * PATIENCE)
        assert case.watches.wedged() is not None

    in_advancing_loop(scenario, tmp_path)


@pytest.mark.parametrize("cut", [False, True], ids=["ended", "broken"])
async def test_who_ends_watches_at_once_is_asked_with_growing_pauses(case: Case, *, cut: bool) -> None:
    """Each watch that the server ends at once doubles the pause before the next request, up to a limit."""
    for _ in range(9):
        case.server.will(Answer(body=LINE, cut=cut))
        with suppress(aiohttp.ClientPayloadError):
            await case.kopf.watched()
    assert all(
        least <= took <= 1.5 * least for least, took in zip((0.5, 1, 2, 4, 8, 16, 20, 20), case.pauses, strict=True)
    )


async def test_a_list_waits_as_well(case: Case) -> None:
    """A server that sends kopf back to the list each time is not asked for lists without a pause either."""
    case.server.will(failure(410, "Expired"), Answer())
    await case.kopf.watched()
    await case.kopf.lists()
    assert len(case.pauses) == 1


def test_a_watch_that_lasted_is_followed_at_once(tmp_path: Path) -> None:
    """After a watch that has lasted some seconds the next one is opened without a pause, whatever was before."""

    async def scenario(case: Case, loop: AdvancingLoop) -> None:
        end = asyncio.Event()
        case.server.will(Answer(body=LINE), until_told(end, LINE), Answer(body=LINE))
        await case.kopf.watched()
        events = case.kopf.watch()
        await anext(events)
        loop.advance(6)
        end.set()
        assert [event async for event in events] == []
        case.pauses.clear()
        await case.kopf.watched()
        assert case.pauses == []

    in_advancing_loop(scenario, tmp_path)


async def test_what_kopf_has_ended_was_not_in_vain(case: Case) -> None:
    """A watch that kopf itself closes, as when it loses patience, is no reason for a pause."""
    case.server.will(until_told(asyncio.Event(), LINE), Answer(body=LINE))
    async with aclosing(case.kopf.watch()) as events:
        await anext(events)
    await case.kopf.watched()
    assert case.pauses == []
