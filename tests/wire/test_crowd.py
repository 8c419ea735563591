"""Many agents at once, and slow ones: the operator holds no more than it has room for, and nobody waits for ever."""

# ruff: noqa: N802, ARG002 - methods as in the contract

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import builders
import pytest
from outhaul_api.agentaction import AgentActionStatus
from outhaul_api.installationoutput import Provenance
from outhaul_api.vocabulary import ActionPhase
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents, budget, trust
from outhaul_operator.agents import AgentMisbehaved, AgentUnreachable
from outhaul_operator.agentstates import RunState
from outhaul_operator.budget import Budget
from outhaul_operator.context import Context
from outhaul_operator.results import Results
from wire.harness import DEADLINE
from wire.liars import Liar, serving

VALUE = b"v" * 200_000
PIECE = 50_000
ROOM = budget.weight(1, len(VALUE))


class Meter:
    """Bytes that agents have sent and that the operator still holds."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.begun = asyncio.Event()

    def add(self, amount: int) -> None:
        """Counts bytes."""
        self.begun.set()
        self.now += amount
        self.most = max(self.most, self.now)


class Holder(Liar):
    """An agent that holds one output. A slow one begins to send it, and does not go on."""

    def __init__(self, meter: Meter, *, is_slow: bool = False) -> None:
        super().__init__()
        self._meter = meter
        self._is_slow = is_slow
        self.reads = 0

    async def ListOutputs(self, request: Any, context: Any) -> Any:
        sha256 = hashlib.sha256(VALUE).hexdigest()
        return pb.ListOutputsResponse(outputs=[pb.OutputInfo(name="a", type="string", size=len(VALUE), sha256=sha256)])

    async def ReadOutput(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.reads += 1
        sent = 0
        try:
            for start in range(0, len(VALUE), PIECE):
                sent += PIECE
                self._meter.add(PIECE)
                yield pb.ReadOutputResponse(chunk=VALUE[start : start + PIECE])
                if self._is_slow:
                    await asyncio.Event().wait()
        finally:
            self._meter.add(-sent)


def announcing(count: int, size: int) -> RunState:
    """Returns the end of a run that has brought outputs."""
    return RunState(ActionPhase.SUCCEEDED, None, "", (), output_count=count, output_bytes=size)


class Operator:
    """The operator's way from an agent to stored outputs, as far as it goes without an API server.

    An uninstall's outputs are fetched and let go: nothing is stored of them.
    """

    def __init__(self, shares: int) -> None:
        nothing: Any = dict.fromkeys(["cluster", "view", "settings", "authorities"])
        self.context = Context(**nothing, fingerprint_key=b"", budget=Budget(capacity=shares * ROOM, share=ROOM))

    async def haul(self, agent: agents.Agent, namespace: str, results: Results | None = None) -> AgentActionStatus:
        """Fetches an agent's outputs once, when it is its turn."""
        action = builders.action({"action": "uninstall", "commands": []}, namespace=namespace)
        run = results or Results(self.context)
        status, _ = await run.haul(action, agent, AgentActionStatus(), announcing(1, len(VALUE)), Provenance())
        return status

    async def insist(self, agent: agents.Agent, namespace: str) -> AgentActionStatus:
        """Fetches an agent's outputs, again where it could not be reached, as a run does."""
        run = Results(self.context)
        while True:
            try:
                return await self.haul(agent, namespace, run)
            except AgentUnreachable:
                continue


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that an agent holds has to come soon."""
    monkeypatch.setattr(agents, "FETCH_TIMEOUT", 0.3)
    yield
    monkeypatch.undo()


async def test_the_outputs_of_many_do_not_add_up(authority: trust.Authority) -> None:
    """However many agents send at once, what is held of them is within the room that there is."""
    meter, operator = Meter(), Operator(shares=3)
    async with asyncio.timeout(DEADLINE), AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(serving(authority, Holder(meter), f"run-{number}")) for number in range(20)
        ]
        statuses = await asyncio.gather(
            *(operator.haul(agent, f"namespace-{number % 5}") for number, agent in enumerate(crowd))
        )
    assert {status.phase for status in statuses} == {ActionPhase.SUCCEEDED}
    assert len(VALUE) <= meter.most <= 3 * len(VALUE)


async def test_slow_agents_do_not_keep_other_namespaces_waiting(authority: trust.Authority) -> None:
    """While agents of one namespace hold all that it may have, another's get through."""
    meter, operator = Meter(), Operator(shares=2)
    async with asyncio.timeout(DEADLINE), AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(serving(authority, Holder(meter, is_slow=True), f"slow-{number}"))
            for number in range(5)
        ]
        waiting = [asyncio.create_task(operator.haul(agent, "evil")) for agent in crowd]
        await meter.begun.wait()
        agent = await stack.enter_async_context(serving(authority, Holder(meter), "honest"))
        assert (await operator.haul(agent, "good")).phase is ActionPhase.SUCCEEDED
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert meter.most <= 2 * len(VALUE)
    assert operator.context.budget.free == 2 * ROOM


@pytest.mark.usefixtures("hurried")
async def test_slow_agents_lose_their_turn_and_then_their_run(authority: trust.Authority) -> None:
    """Agents that do not go on fail, in words that say so; one of the same namespace gets through meanwhile."""
    meter, operator = Meter(), Operator(shares=1)
    slow = [Holder(meter, is_slow=True) for _ in range(2)]
    async with asyncio.timeout(DEADLINE), AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(serving(authority, holder, f"slow-{number}"))
            for number, holder in enumerate(slow)
        ]
        waiting = [asyncio.create_task(operator.insist(agent, "shared")) for agent in crowd]
        await meter.begun.wait()
        agent = await stack.enter_async_context(serving(authority, Holder(meter), "honest"))
        assert (await operator.insist(agent, "shared")).phase is ActionPhase.SUCCEEDED
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [AgentMisbehaved, AgentMisbehaved]
    assert {str(end) for end in ends} == {
        "the agent does not hand over its outputs: the agent has not handed over its outputs in 1 seconds"
    }
    assert meter.most <= len(VALUE)


class Dawdler(Liar):
    """An agent whose every single answer comes in time, and which is never done."""

    async def ListOutputs(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(0.1)
        name = f"{int(request.page_token or 0) + 1:08}"
        sha256 = hashlib.sha256(b"").hexdigest()
        info = pb.OutputInfo(name=name, type="string", sha256=sha256)
        return pb.ListOutputsResponse(outputs=[info], next_page_token=name)


class Dripper(Holder):
    """An agent that sends its value byte by byte."""

    async def ReadOutput(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for _ in VALUE:
            yield pb.ReadOutputResponse(chunk=b"v")
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("liar", "announced"), [(Dawdler(), announcing(100, 0)), (Dripper(Meter()), announcing(1, len(VALUE)))]
)
async def test_there_is_a_deadline_for_everything_together(
    authority: trust.Authority, liar: Liar, announced: RunState
) -> None:
    """Answers that each come in time do not add up to for ever."""
    async with asyncio.timeout(DEADLINE), serving(authority, liar) as agent:
        with pytest.raises(AgentUnreachable, match="has not handed over its outputs in"):
            await agent.fetch(announced)


@pytest.mark.parametrize(
    ("count", "size", "words"),
    [
        (0, 0, "lists more outputs than it may hold, or than it has announced"),
        (1, len(VALUE) - 1, "lists more outputs than it may hold, or than it has announced"),
        (1, len(VALUE) + 1, "lists fewer outputs than it has announced"),
        (2, len(VALUE), "lists fewer outputs than it has announced"),
    ],
)
async def test_other_outputs_than_were_announced(authority: trust.Authority, count: int, size: int, words: str) -> None:
    """What a final state announces is what room is made for, so it has to be what comes."""
    holder = Holder(Meter())
    async with serving(authority, holder) as agent:
        with pytest.raises(AgentMisbehaved, match=words):
            await agent.fetch(announcing(count, size))
    assert holder.reads == 0
