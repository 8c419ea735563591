"""What a pod waits for is told of a few pods at a time, at the wire: a real HTTP server answers as it is told to."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from outhaul_api.vocabulary import Reason
from outhaul_operator.podwarnings import PodWarnings
from outhaul_operator.turns import Turns
from scripted import serving

WARNING = {"type": "ADDED", "object": {"reason": "FailedMount", "message": "no such volume"}}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def test_pods_take_turns(tmp_path: Path) -> None:
    """A pod whose events are silent holds up another one only until it has started; then the other one's are told."""
    async with serving(tmp_path) as (server, cluster):
        watched, over = asyncio.Event(), asyncio.Event()

        async def stay_silent(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            watched.set()
            await over.wait()
            return response

        async def warn(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(json.dumps(WARNING).encode() + b"\n")
            return response

        server.will(stay_silent, warn)
        turns, started = Turns(1), asyncio.Event()
        first = asyncio.create_task(PodWarnings(cluster, turns).next(pod("first"), started))
        await watched.wait()
        second = asyncio.create_task(PodWarnings(cluster, turns).next(pod("second"), asyncio.Event()))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(server.requests) == 1
        started.set()
        assert await first is None
        reason, message = await second or ("", "")
        assert reason == Reason.VOLUME_NOT_READY
        assert "pod second" in message
        over.set()


def pod(name: str) -> dict[str, dict[str, str]]:
    """Returns as much of a pod as is asked for."""
    return {"metadata": {"name": name, "namespace": "tenant", "uid": name}}
