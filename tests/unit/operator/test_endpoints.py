"""What the operator answers to probes and to Prometheus."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from cluster import ports
from outhaul_operator import endpoints, observations
from outhaul_operator.health import Health
from outhaul_operator.queue import Queue
from outhaul_operator.view import View
from outhaul_operator.watches import Place, Watches
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[3]
_ROW = re.compile(r"^\| `(outhaul_\w+)` \| (.*?) \|", re.MULTILINE)


@pytest.fixture
def health() -> Health:
    """Checks, of which there are none yet."""
    return Health()


@pytest.fixture
async def ask(health: Health) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of endpoints that are served."""
    (port,) = ports.free(1)
    async with (
        endpoints.serving(port, health),
        aiohttp.ClientSession(base_url=f"http://127.0.0.1:{port}") as session,
    ):
        yield session


async def answer(ask: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    """Status and text of an answer."""
    async with ask.get(path) as response:
        return response.status, await response.text()


async def test_without_checks_all_is_well(ask: aiohttp.ClientSession) -> None:
    """Both probes pass where no check fails."""
    assert await answer(ask, "/healthz") == (200, "ok\n")
    assert await answer(ask, "/readyz") == (200, "ok\n")


async def test_who_is_not_ready_is_alive(ask: aiohttp.ClientSession, health: Health) -> None:
    """A check of readiness fails the probe of readiness alone, which says what is missing."""
    health.require_for_readiness(lambda: "the lists are not in")
    health.require_for_readiness(lambda: None)
    assert await answer(ask, "/readyz") == (503, "the lists are not in\n")
    assert await answer(ask, "/healthz") == (200, "ok\n")


async def test_who_is_not_alive_is_not_ready(ask: aiohttp.ClientSession, health: Health) -> None:
    """A check of liveness fails both, and each thing that is wrong is a line."""
    health.require_for_life(lambda: "a watch is silent")
    health.require_for_life(lambda: "a worker is stuck")
    assert await answer(ask, "/healthz") == (503, "a watch is silent\na worker is stuck\n")
    assert await answer(ask, "/readyz") == (503, "a watch is silent\na worker is stuck\n")


async def test_no_connection_stays_open(ask: aiohttp.ClientSession) -> None:
    """A client cannot keep a connection, and with it a task of the operator, to itself."""
    for path in ("/healthz", "/readyz", "/metrics"):
        async with ask.get(path) as response:
            assert response.headers["Connection"] == "close"


async def test_the_documentation_lists_what_is_served(ask: aiohttp.ClientSession) -> None:
    """Each metric has a row in docs/operations.md with its labels, and each row a metric."""
    view = View(lambda *_: None)

    async def work(_: str) -> None:
        pass

    queue: Queue[str] = Queue(work, lambda *_: None)
    watches = Watches([Place("pods", None)], 70, lambda: None)
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    rows = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in _ROW.findall(page)}
    with observations.exposed(view, {"runs": queue}, watches):
        _, text = await answer(ask, "/metrics")
    ours = {
        family.name + ("_total" if family.type == "counter" else ""): family.samples
        for family in text_string_to_metric_families(text)
        if not family.name.startswith("process_")
    }
    assert ours.keys() == rows.keys()
    for name, samples in ours.items():
        for sample in samples:
            assert sample.labels.keys() - {"le"} == rows[name], name


async def test_nothing_is_served_nowhere(health: Health) -> None:
    """With port 0 nobody listens, and the operator works all the same."""
    async with endpoints.serving(0, health):
        pass
