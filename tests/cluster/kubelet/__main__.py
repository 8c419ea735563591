"""Runs a stand-in kubelet: `python -m cluster.kubelet --kubeconfig F --root DIR --node-name NAME`."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from cluster.kubelet.api import Api
from cluster.kubelet.machine import Settings
from cluster.kubelet.service import Kubelet


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True, help="where pods' folders and logs are")
    parser.add_argument("--node-name", default="stand-in")
    parser.add_argument("--path", action="append", default=[], help="a folder that containers search first")
    parser.add_argument("--bind", action="append", default=[], type=Path, help="a folder that containers see")
    parser.add_argument("--env", action="append", default=[], type=_pair, metavar="NAME=VALUE")
    parser.add_argument("--missing-image", action="append", default=[], metavar="PART")
    parser.add_argument("--entrypoint", action="append", default=[], type=_pair, metavar="PART=COMMAND")
    parser.add_argument("--allocatable", action="append", default=[], type=_pair, metavar="RESOURCE=QUANTITY")
    parser.add_argument("--label", action="append", default=[], type=_pair, metavar="KEY=VALUE")
    parser.add_argument("--ready-fd", type=int, help="a line goes here once the node is ready")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with whoever started this")
    return parser


async def _serve(settings: Settings, options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.until_stdin_closes:

        def read() -> None:
            if not os.read(sys.stdin.fileno(), 1024):
                loop.remove_reader(sys.stdin)
                stop.set()

        loop.add_reader(sys.stdin, read)

    def ready() -> None:
        print(f"node {settings.node_name} is ready", flush=True)
        if options.ready_fd is not None:
            os.write(options.ready_fd, b"ready\n")
            os.close(options.ready_fd)

    async with Api.from_kubeconfig(options.kubeconfig) as api:
        await Kubelet(settings, api).run(stop, ready)


def main() -> None:
    """Read the command line and serve until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = Settings(
        root=options.root.resolve(),
        node_name=options.node_name,
        path=tuple(options.path),
        binds=tuple(options.bind),
        environment=dict(options.env),
        missing_images=("does-not-exist", *options.missing_image),
        entrypoints=dict(options.entrypoint),
        allocatable=dict(options.allocatable),
        labels=dict(options.label),
    )
    asyncio.run(_serve(settings, options))


if __name__ == "__main__":
    main()
