"""Asking for a Lease, keeping it and giving it back, at the wire: a server on loopback that answers as it is told to.

Time is advanced, not waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from looptime import AdvancingLoop
from outhaul_operator.apierrors import NotFoundError, RefusedError
from outhaul_operator.cluster import Cluster
from outhaul_operator.leadership import Leadership
from scripted import Answer, Server, failure, serving

DURATION = 60.0
PATH = "/apis/coordination.k8s.io/v1/namespaces/home/leases"
PATIENCE = 30
"""Real seconds in which anything has to happen; it takes none."""


def lease(holder: str, version: str = "1") -> Answer:
    """The Lease as the server has it."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": int(DURATION)}
    return Answer(body={"metadata": {"name": "outhaul-operator", "resourceVersion": version}, "spec": spec})


class Case:
    """A server, an operator called `me`, and time."""

    def __init__(self, server: Server, cluster: Cluster, loop: AdvancingLoop) -> None:
        self.server, self._loop = server, loop
        self.leadership = Leadership(cluster, "home", "me", DURATION, self._sleep)
        self._pauses: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def pass_by(self, seconds: float) -> None:
        """Waits until the operator has dealt with everything and sleeps; lets time pass, and wakes it."""
        async with asyncio.timeout(PATIENCE):
            wake = await self._pauses.get()
        self._loop.advance(seconds)
        wake.set()

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self._loop.advance(seconds)

    async def _sleep(self, _: float) -> None:
        wake = asyncio.Event()
        self._pauses.put_nowait(wake)
        await wake.wait()

    @property
    def asked(self) -> list[tuple[str, str]]:
        """The requests so far."""
        return [(one.method, one.url.partition("?")[0].removeprefix(PATH)) for one in self.server.requests]


def run(folder: Path, scenario: Callable[[Case], Awaitable[None]]) -> None:
    """Runs a scenario in a loop whose time can be advanced."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancingLoop)
        async with serving(folder) as (server, cluster):
            await scenario(Case(server, cluster, loop))
            assert not server.left, "not everything was asked for"

    with asyncio.Runner(loop_factory=AdvancingLoop) as runner:
        runner.run(main())


def patched(case: Case) -> Any:
    """The patch in the newest request."""
    return case.server.requests[-1].body


def test_the_first_makes_the_lease(tmp_path: Path) -> None:
    """Where there is no Lease it is made, in our name, and held from then on."""

    async def scenario(case: Case) -> None:
        assert case.leadership.unseen() == "the Lease was not seen yet"
        case.server.will(failure(404, "NotFound"), lease("me"))
        await case.leadership.acquire()
        assert case.asked == [("GET", "/outhaul-operator"), ("POST", "")]
        made = patched(case)
        assert made["metadata"] == {"name": "outhaul-operator", "namespace": "home"}
        assert made["spec"]["holderIdentity"] == "me"
        assert made["spec"]["leaseDurationSeconds"] == 60
        assert case.leadership.is_held
        assert case.leadership.unseen() is None

    run(tmp_path, scenario)


def test_a_free_lease_is_taken_as_it_was_seen(tmp_path: Path) -> None:
    """A Lease is taken only if it still is as it was when it was found to be free."""

    async def scenario(case: Case) -> None:
        case.server.will(lease("", "7"), lease("me", "8"))
        await case.leadership.acquire()
        assert case.asked == [("GET", "/outhaul-operator"), ("PATCH", "/outhaul-operator")]
        test, change = patched(case)
        assert test == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
        assert (change["op"], change["path"], change["value"]["holderIdentity"]) == ("add", "/spec", "me")

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param([failure(500, "InternalError")], id="a fault of the server"),
        pytest.param([failure(404, "NotFound"), failure(409, "AlreadyExists")], id="another one made it"),
        pytest.param([lease(""), failure(422, "Invalid")], id="another one took it"),
    ],
)
def test_who_does_not_get_it_asks_again(tmp_path: Path, fault: list[Answer]) -> None:
    """Whatever keeps us from the Lease for now, we look again, a little later."""

    async def scenario(case: Case) -> None:
        case.server.will(*fault, lease("", "9"), lease("me", "10"))
        asking = asyncio.create_task(case.leadership.acquire())
        await case.pass_by(DURATION / 15)
        await asking
        assert case.leadership.is_held

    run(tmp_path, scenario)


def test_another_s_lease_is_waited_for(tmp_path: Path) -> None:
    """A Lease that changes is its holder's; one that has not changed for its duration is ours."""

    async def scenario(case: Case) -> None:
        case.server.will(
            lease("other", "1"), lease("other", "2"), lease("other", "2"), lease("other", "2"), lease("me", "3")
        )
        asking = asyncio.create_task(case.leadership.acquire())
        await case.pass_by(DURATION + 1)
        await case.pass_by(DURATION - 5)
        assert case.leadership.unseen() is None
        await case.pass_by(10)
        await asking
        assert case.asked[-1] == ("PATCH", "/outhaul-operator")

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([failure(403, "Forbidden")], RefusedError, id="no right to look"),
        pytest.param([failure(404, "NotFound"), failure(403, "Forbidden")], RefusedError, id="no right to make it"),
        pytest.param([failure(404, "NotFound"), failure(404, "NotFound")], NotFoundError, id="no namespace"),
    ],
)
def test_what_waiting_does_not_mend_is_told(tmp_path: Path, answers: list[Answer], expected: type[Exception]) -> None:
    """Where rights or the namespace are missing, an operator ends and says so."""

    async def scenario(case: Case) -> None:
        case.server.will(*answers)
        with pytest.raises(expected):
            await case.leadership.acquire()

    run(tmp_path, scenario)


async def leading(case: Case) -> tuple[asyncio.Task[None], list[None]]:
    """Takes the Lease and begins to keep it; returns who keeps it, and what tells that it was lost."""
    case.server.will(lease(""), lease("me"))
    await case.leadership.acquire()
    case.server.requests.clear()
    lost: list[None] = []
    return asyncio.create_task(case.leadership.keep(lambda: lost.append(None))), lost


def test_a_leader_renews(tmp_path: Path) -> None:
    """A leader says that it is there, time and again, as long as nobody else holds the Lease."""

    async def scenario(case: Case) -> None:
        keeping, lost = await leading(case)
        case.server.will(*[lease("me")] * 5)
        for _ in range(5):
            assert case.leadership.is_held
            await case.pass_by(DURATION / 5)
        await case.pass_by(0)
        keeping.cancel()
        assert lost == []
        assert case.asked == [("PATCH", "/outhaul-operator")] * 5
        assert patched(case)[0] == {"op": "test", "path": "/spec/holderIdentity", "value": "me"}

    run(tmp_path, scenario)


def test_a_leader_survives_faults_that_pass(tmp_path: Path) -> None:
    """A renewal that fails is tried again, and leadership lasts from the one that does not."""

    async def scenario(case: Case) -> None:
        keeping, lost = await leading(case)
        case.server.will(failure(500, "InternalError"), failure(429, "TooManyRequests"), lease("me"))
        await case.pass_by(DURATION / 5)
        await case.pass_by(DURATION / 5)
        await case.pass_by(DURATION / 5)
        await case.pass_by(DURATION / 5)
        keeping.cancel()
        assert lost == []
        assert case.leadership.is_held

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(failure(422, "Invalid"), id="another one holds it"),
        pytest.param(failure(404, "NotFound"), id="it was deleted"),
        pytest.param(failure(403, "Forbidden"), id="we may not any more"),
    ],
)
def test_a_lease_that_is_gone_is_lost(tmp_path: Path, answer: Answer) -> None:
    """Where the server says that the Lease is not ours, leadership is over at once."""

    async def scenario(case: Case) -> None:
        keeping, lost = await leading(case)
        case.server.will(answer)
        await case.pass_by(DURATION / 5)
        await keeping
        assert lost == [None]

    run(tmp_path, scenario)


def test_who_cannot_renew_gives_up_in_time(tmp_path: Path) -> None:
    """A leader that hears only of faults gives up after two thirds of its time, before anybody else may lead."""

    async def scenario(case: Case) -> None:
        keeping, lost = await leading(case)
        case.server.will(*[failure(500, "InternalError")] * 3)
        for _ in range(3):
            assert lost == []
            await case.pass_by(DURATION / 5)
        await case.pass_by(DURATION / 10)
        await keeping
        assert lost == [None]
        assert not case.leadership.is_held

    run(tmp_path, scenario)


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """A renewal without an answer costs a part of the time, so that there is time for another."""

    async def scenario(case: Case) -> None:
        keeping, lost = await leading(case)
        arrived, never = asyncio.Event(), asyncio.Event()

        async def hang(_: web.Request) -> web.StreamResponse:
            arrived.set()
            await never.wait()
            return web.Response()

        case.server.will(hang, lease("me"))
        await case.pass_by(DURATION / 5)
        await arrived.wait()
        case.advance(DURATION / 5)
        await case.pass_by(DURATION / 15)
        await case.pass_by(0)
        keeping.cancel()
        never.set()
        assert lost == []
        assert case.leadership.is_held

    run(tmp_path, scenario)


def test_who_stood_still_does_not_hold_it(tmp_path: Path) -> None:
    """A process that was stopped for too long finds its leadership over, without asking anybody."""

    async def scenario(case: Case) -> None:
        keeping, lost = await leading(case)
        await case.pass_by(10 * DURATION)
        assert not case.leadership.is_held
        await keeping
        assert lost == [None]
        assert case.asked == []

    run(tmp_path, scenario)


def test_a_lease_is_given_back(tmp_path: Path) -> None:
    """At its end a leader leaves a Lease that anybody may take."""

    async def scenario(case: Case) -> None:
        keeping, _ = await leading(case)
        keeping.cancel()
        case.server.will(lease("me", "5"), lease("", "6"))
        await case.leadership.release()
        test, change = patched(case)
        assert test["value"] == "5"
        assert change["value"]["holderIdentity"] == ""
        assert not case.leadership.is_held

    run(tmp_path, scenario)


def test_another_s_lease_is_left_alone(tmp_path: Path) -> None:
    """Only the holder gives a Lease back."""

    async def scenario(case: Case) -> None:
        case.server.will(lease("other"))
        await case.leadership.release()
        assert case.asked == [("GET", "/outhaul-operator")]

    run(tmp_path, scenario)


def test_giving_back_may_fail(tmp_path: Path) -> None:
    """Where the Lease cannot be given back, the end comes all the same: others wait for the end of the Lease."""

    async def scenario(case: Case) -> None:
        case.server.will(failure(500, "InternalError"))
        await case.leadership.release()

    run(tmp_path, scenario)
