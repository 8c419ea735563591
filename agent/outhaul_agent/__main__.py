"""`outhaul-agent`: the first process of a run's pod. Takes no arguments; `settings` says what it reads."""

import asyncio
import logging
import signal
import sys


def main() -> None:
    """Runs the agent and exits as the run has ended."""
    # Until a handler is there, SIGTERM would be lost (PID 1 has no default) or end the agent speechless.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="outhaul-agent: %(message)s")
    # Loading gRPC takes a while, in which the signals must be held back already.
    from outhaul_agent.runs import run  # noqa: PLC0415
    from outhaul_agent.settings import Settings  # noqa: PLC0415

    sys.exit(asyncio.run(run(Settings.from_environment())))


if __name__ == "__main__":
    main()
