"""What the tests of the wire may ask for: an authority, and agents as real processes."""

import datetime as dt
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import trust
from wire.harness import AgentProcess, now


@pytest.fixture(scope="session")
def authority() -> trust.Authority:
    """The operator's authority, old enough to have issued leaves that are over."""
    return trust.create_authority(now() - dt.timedelta(days=30))


@pytest.fixture
def start_agent(tmp_path: Path, authority: trust.Authority) -> Iterator[Callable[..., AgentProcess]]:
    """Starts the agent of a run: `start_agent(spec)`; it is killed after the test."""
    started: list[AgentProcess] = []

    def start(spec: pb.RunSpec, **changes: Any) -> AgentProcess:
        root = tmp_path / f"agent-{len(started)}"
        agent = AgentProcess(**{"root": root, "spec": spec, "authority": authority, **changes})
        started.append(agent.start())
        return agent

    yield start
    for agent in started:
        agent.kill()


@pytest.fixture(autouse=True)
def _leaves_nothing_open() -> Iterator[None]:
    """What a test forgets to close is its own fault, and not that of the test in which the collector happens to run."""
    yield
    gc.collect()
