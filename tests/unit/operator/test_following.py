"""Following a run at its agent, in loops whose time jumps: what is told when, and when it is told to stop."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from looptime import run_jumping
from outhaul_api.vocabulary import ActionPhase
from outhaul_operator.agents import AgentUnreachable
from outhaul_operator.agentstates import RunState
from outhaul_operator.following import follow

RUNNING, SUCCEEDED, CANCELLED = ActionPhase.RUNNING, ActionPhase.SUCCEEDED, ActionPhase.CANCELLED


def state(phase: ActionPhase) -> RunState:
    """Returns an agent's account of its run."""
    return RunState(phase=phase, reason=None, message="", steps=(), output_count=0, output_bytes=0)


class Agent:
    """A run that is in some phases for so long each; told to stop, it is cancelled."""

    def __init__(self, *phases: tuple[ActionPhase, float]) -> None:
        self.phases = phases
        self.stopped = asyncio.Event()
        self.stops = 0
        self.heard: list[ActionPhase] = []
        self.noted: list[ActionPhase] = []

    async def states(self) -> AsyncIterator[RunState]:
        """Yields what it says."""
        for phase, duration in self.phases:
            yield state(phase)
            try:
                await asyncio.wait_for(self.stopped.wait(), duration)
            except TimeoutError:
                continue
            yield state(CANCELLED)
            return

    async def follow(self, cancelled: asyncio.Event) -> ActionPhase:
        """Follows it to its end."""
        return (await follow(self.states(), self.hear, self.note, cancelled, self.stop)).phase

    async def hear(self, state: RunState) -> None:
        """Takes a state."""
        self.heard.append(state.phase)

    async def note(self, state: RunState) -> None:
        """Takes a note."""
        self.noted.append(state.phase)

    async def stop(self) -> None:
        """Has it stopped."""
        self.stops += 1
        self.stopped.set()


def test_a_run_is_followed_to_its_end() -> None:
    """Its states are heard as they come, and what lasts is noted."""

    async def main() -> None:
        agent = Agent((ActionPhase.PENDING, 1), (RUNNING, 100), (SUCCEEDED, 0))
        assert await agent.follow(asyncio.Event()) is SUCCEEDED
        assert agent.heard[0] is ActionPhase.PENDING
        assert set(agent.noted) == {RUNNING}
        assert agent.stops == 0

    run_jumping(main())


def test_a_short_run_is_not_noted() -> None:
    """What is over soon is told by its end."""

    async def main() -> None:
        agent = Agent((RUNNING, 1), (SUCCEEDED, 0))
        assert await agent.follow(asyncio.Event()) is SUCCEEDED
        assert agent.noted == []

    run_jumping(main())


@pytest.mark.parametrize("after", [0, 1, 50])
def test_a_run_that_is_cancelled_is_told_to_stop_once(after: float) -> None:
    """Whenever that was asked for, also before anything was heard; what the agent says then is its end."""

    async def main() -> None:
        agent = Agent((ActionPhase.PENDING, 1), (RUNNING, 100), (SUCCEEDED, 0))
        cancelled = asyncio.Event()
        asyncio.get_running_loop().call_later(after, cancelled.set)
        assert await agent.follow(cancelled) is CANCELLED
        assert agent.stops == 1

    run_jumping(main())


def test_a_run_whose_work_is_done_is_not_told_to_stop() -> None:
    """What it holds is fetched."""

    async def main() -> None:
        agent = Agent((SUCCEEDED, 100))
        cancelled = asyncio.Event()
        cancelled.set()
        assert await agent.follow(cancelled) is SUCCEEDED
        assert agent.stops == 0

    run_jumping(main())


def test_an_agent_that_says_nothing_cannot_be_followed() -> None:
    """It is dialled again."""

    async def main() -> None:
        with pytest.raises(AgentUnreachable):
            await Agent().follow(asyncio.Event())

    run_jumping(main())
