"""`make up` and `make down`: the cluster and the operator in the background, with their files in one directory."""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from cluster.controlplane import COMPONENTS, ControlPlane
from cluster.errors import ClusterError
from cluster.pki import write_private
from cluster.progress import say
from cluster.stack import KUBELET, OPERATOR, REPOSITORY, Stack

ROOT = REPOSITORY / ".outhaul"
PROGRAMS = (*COMPONENTS, KUBELET, OPERATOR)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(root: Path = ROOT) -> None:
    """Starts what is not running, leaves the rest, and says how to use it."""
    root = root.absolute()
    if root.exists() and not _is_ours(root):
        raise ClusterError(f"{root} holds something else: name an empty directory, or one that does not exist")
    with _alone(root):
        plane = ControlPlane(root, detached=True)
        before = {name: plane.processes.pid(name) for name in PROGRAMS}
        say("starting what is not running: " + (", ".join(name for name in PROGRAMS if not before[name]) or "nothing"))
        Stack(plane).start()
        write_private(root / "kubeconfig", plane.kubeconfig.read_bytes())
        for name in PROGRAMS:
            pid = plane.processes.pid(name)
            print(f"  {name:24} pid {pid:<8} {'was running' if pid == before[name] else 'started'}")
    print(_usage(root, plane.url), flush=True)


def down(root: Path = ROOT) -> None:
    """Ends what `up` has started and removes the directory, with everything that was in the cluster."""
    root = root.absolute()
    if not root.exists():
        print(f"Nothing to stop: {_short(root)} is not there.")
        return
    if not _is_ours(root):
        raise ClusterError(f"{root} was not made by `up`: nothing is stopped, nothing is removed")
    with _alone(root), undisturbed():
        plane = ControlPlane(root, detached=True)
        running = {name: pid for name in reversed(PROGRAMS) if (pid := plane.processes.pid(name))}
        for name, pid in running.items():
            print(f"  stopping {name} (pid {pid})", flush=True)
        Stack(plane).stop()
        plane.stop()
        shutil.rmtree(root)
    print(f"Stopped; {_short(root)} is removed, with all that was in the cluster.")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Tidies up without being broken off by a second Ctrl-C."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Holds the directory, so that two `up`, or `up` and `down`, come one after the other."""
    while True:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another `up` or `down` of {_short(root)}")
                fcntl.flock(held, fcntl.LOCK_EX)
            if root.exists() and root.stat().st_ino == os.fstat(held).st_ino:  # not removed meanwhile
                yield
                return
        finally:
            os.close(held)


def _is_ours(root: Path) -> bool:
    """Whether a directory was made by `up`, if only begun."""
    found = {path.name for path in root.iterdir()}
    return not found or {"log", "run"} <= found


def _usage(root: Path, url: str) -> str:
    here = "$PWD/" if _short(root) != root else ""
    files, kubectl = _short(root), _short(Path(sys.executable).with_name("kubectl"))
    return f"""
Outhaul runs in the background; its API server is {url}. Point kubectl at it:
  export KUBECONFIG={here}{files}/kubeconfig
kubectl is {kubectl}. A first installation:
  {kubectl} apply -k deploy/examples/terraform-tenant
  {kubectl} apply -n team-a -k samples/terraform
  {kubectl} wait -n team-a --for=condition=Ready installation/database
  {kubectl} get -n team-a outhaul
The operator's log is {files}/log/operator.log, its process id is in {files}/run/operator.pid.
`make up` again starts what is not running; `make down` stops everything and removes {files}."""


def _short(path: Path) -> Path:
    """A path as it is from here, where that is shorter."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
