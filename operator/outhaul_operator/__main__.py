"""`outhaul-operator`: reads the settings, sets up logging, and runs the operator until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import NoReturn

from outhaul_operator import endpoints, logs, metrics
from outhaul_operator import settings as settings_module
from outhaul_operator.apierrors import ApiError
from outhaul_operator.cluster import Cluster
from outhaul_operator.controller import MissingKindsError, Operator
from outhaul_operator.health import Health
from outhaul_operator.leadership import Leadership
from outhaul_operator.trust import TrustError

_DEEPEST = 12_000
"""How deeply calls may nest. The API server lets objects nest 10,000 levels deep; where one could not be decoded, its
watch would end, and the operator with it, again and again. A stack of 8 MiB is enough for more than twice that."""

_logger = logging.getLogger(__name__)


def main() -> None:
    """Runs the operator; the exit code is 0 only where it was told to stop."""
    settings = settings_module.parse()
    sys.setrecursionlimit(_DEEPEST)
    logs.set_up(settings.log_format, debug=settings.debug)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: settings_module.Settings) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster = await Cluster.connect(settings.kubeconfig)
    health = Health()
    try:
        async with endpoints.serving(settings.http_port, health):
            await _lead(cluster, settings, health, stop)
    except (ApiError, MissingKindsError, TrustError) as error:
        _logger.error("cannot work: %s", error)  # noqa: TRY400 - the message says it all
        return 1
    finally:
        await cluster.close()
    return 0


async def _lead(cluster: Cluster, settings: settings_module.Settings, health: Health, stop: asyncio.Event) -> None:
    """Waits for leadership, and works until it is told to stop."""
    leadership = Leadership(cluster, settings.namespace, settings.identity, settings.lease_seconds)
    health.require_for_readiness(leadership.unseen)
    metrics.LEADER.set_function(lambda: leadership.is_held)
    cluster.may_write = lambda: leadership.is_held
    keeping: asyncio.Task[None] | None = None
    try:
        if await _unless(stop, leadership.acquire()):
            keeping = asyncio.create_task(leadership.keep(_die), name="keep the Lease")
            await Operator(cluster, settings, health).run(stop)
    finally:
        # Only now, when nothing of ours is under way any more, may somebody else begin.
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await leadership.release()


async def _unless(stop: asyncio.Event, wish: Coroutine[None, None, None]) -> bool:
    """Waits for something, and no longer than until it is told to stop; returns whether it came."""
    waiting, stopping = asyncio.create_task(wish), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            await waiting
        return waiting.done()
    finally:
        waiting.cancel()
        stopping.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


def _die() -> NoReturn:
    """Ends the process where it stands: somebody else may be at work already, and nothing here needs to be kept."""
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    main()
