"""The cluster from the command line: `python -m cluster demo`, `up`, `down`, `build` and `control-plane`."""

import argparse
import signal
import sys
from pathlib import Path

from cluster import background, binaries, demo, preparation
from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError
from cluster.progress import say


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="find, install or build the programs of a cluster")
    build.add_argument("names", nargs="*", metavar="program", help=f"of {', '.join(binaries.ALL)}; default: all")
    serve = commands.add_parser("control-plane", help="run a control plane until Ctrl-C")
    serve.add_argument("--root", type=Path, help="where its state is kept; default: a temporary directory")
    serve.add_argument("--bind", default="127.0.0.1", help="the API server's address (default: %(default)s)")
    serve.add_argument("--advertise", help="the API server's address to pods")
    serve.add_argument("--audit", action="store_true", help="log each request")
    prepare = commands.add_parser("prepare", help="get ahead, in one go, what tests need and this machine lacks")
    prepare.add_argument("--pods", action="store_true", help="also for a real node")
    commands.add_parser("demo", help="install samples/terraform on a cluster of its own, show it, and clean up")
    for name, what in (
        ("up", "start a cluster and the operator in the background, or what of it is not running"),
        ("down", "stop what `up` has started, and remove its files"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument(
            "--root", type=Path, default=background.ROOT, help="where its files are kept (default: %(default)s)"
        )
    options = parser.parse_args(arguments)
    # To be stopped from outside is to be stopped by Ctrl-C: what was started ends in order. A shell starts what it puts
    # into the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        _run(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped before the end", file=sys.stderr)
        return 130
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.command == "build":
        for name, path in binaries.ensure(*(options.names or binaries.ALL)).items():
            print(f"{name}: {path}")
    elif options.command == "prepare":
        preparation.prepare(pods=options.pods)
    elif options.command == "demo":
        demo.run()
    elif options.command == "up":
        background.up(options.root)
    elif options.command == "down":
        background.down(options.root)
    else:
        _serve(options)


def _serve(options: argparse.Namespace) -> None:
    plane = ControlPlane(options.root, bind=options.bind, advertise=options.advertise, audit=options.audit)
    try:
        plane.start()
        say(f"ready at {plane.url}; Ctrl-C ends it")
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        while plane.processes.all_run(60):
            pass
        raise ClusterError(f"a component ended: {plane.running()}; see the logs in {plane.root / 'log'}")
    finally:
        plane.stop()


if __name__ == "__main__":
    sys.exit(main())
