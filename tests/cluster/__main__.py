"""The cluster from the command line: `python -m cluster build` and `python -m cluster control-plane`."""

import argparse
import signal
import sys
from pathlib import Path

from cluster import binaries
from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError
from cluster.progress import say


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="find, install or build the programs of a cluster")
    build.add_argument(
        "names", nargs="*", metavar="program", help=f"of {', '.join(binaries.ALL)}; default: all"
    )
    serve = commands.add_parser("control-plane", help="run a control plane until Ctrl-C")
    serve.add_argument("--root", type=Path, help="where its state is kept; default: a temporary directory")
    serve.add_argument("--bind", default="127.0.0.1", help="the API server's address (default: %(default)s)")
    serve.add_argument("--advertise", help="the API server's address to pods")
    serve.add_argument("--audit", action="store_true", help="log each request")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            for name, path in binaries.ensure(*(options.names or binaries.ALL)).items():
                print(f"{name}: {path}")
        else:
            _serve(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(options: argparse.Namespace) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
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
