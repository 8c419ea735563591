"""Runs a hollow node: `python -m cluster.hollow --kubeconfig F --root DIR --node-name NAME`."""

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from cluster.hollow.node import Node
from cluster.kubelet.api import Api


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Api.from_kubeconfig(options.kubeconfig) as api:
        await Node(api, options.root, options.node_name).run(stop)


def main() -> None:
    """Read the command line and serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="cluster.hollow", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True, help="for the runs' Secrets, and what is told of them")
    parser.add_argument("--node-name", required=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
