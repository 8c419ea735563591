"""The operator's own small web server: `/healthz`, `/readyz` and `/metrics`.

It runs in the loop that does the work: where that is blocked, a probe has no answer in time, which is an answer.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from outhaul_operator import metrics
from outhaul_operator.health import Health


@asynccontextmanager
async def serving(port: int, health: Health) -> AsyncIterator[None]:
    """Serves as long as the context lasts, on all addresses.

    Args:
        port: Where; 0: nowhere.
        health: What the probes are told.

    Raises:
        OSError: The port is taken.
    """
    if not port:
        yield
        return

    async def alive(_: web.Request) -> web.Response:
        return _verdict(health.ailments())

    async def ready(_: web.Request) -> web.Response:
        return _verdict(health.obstacles())

    app = web.Application()
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", _metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()


def _verdict(wrong: list[str]) -> web.Response:
    if wrong:
        return _closing(web.Response(status=503, text="".join(f"{line}\n" for line in wrong)))
    return _closing(web.Response(text="ok\n"))


async def _metrics(_: web.Request) -> web.Response:
    return _closing(web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST}))


def _closing(response: web.Response) -> web.Response:
    """Ends the connection with the answer: one that stays open has a task, which would hold up the operator's end."""
    response.force_close()
    return response
