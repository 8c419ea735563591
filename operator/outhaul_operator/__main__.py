"""`outhaul-operator`: reads the settings, sets up logging, and runs the operator until SIGTERM or SIGINT."""

import asyncio
import logging
import sys

from outhaul_operator import endpoints
from outhaul_operator import settings as settings_module
from outhaul_operator.cluster import ApiError, Cluster
from outhaul_operator.controller import MissingKindsError, Operator
from outhaul_operator.health import Health
from outhaul_operator.trust import TrustError


def main() -> None:
    """Runs the operator; the exit code is 0 only where it was told to stop."""
    settings = settings_module.parse()
    logging.basicConfig(
        level=logging.DEBUG if settings.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stdout,
    )
    # kopf tells of every event at INFO, and of objects in full at DEBUG.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: settings_module.Settings) -> int:
    cluster = await Cluster.connect(settings.kubeconfig)
    health = Health()
    try:
        async with endpoints.serving(settings.http_port, health):
            # kopf takes SIGTERM and SIGINT over, and returns once it has been told to stop.
            await Operator(cluster, settings, health).run()
    except (ApiError, MissingKindsError, TrustError) as error:
        logging.getLogger(__name__).error("cannot start: %s", error)  # noqa: TRY400 - the message says it all
        return 1
    finally:
        await cluster.close()
    return 0


if __name__ == "__main__":
    main()
