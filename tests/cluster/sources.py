"""Builds Kubernetes from Debian's own source package, with Debian's Go.

`binaries` calls it when nothing better is at hand. Nothing on the machine changes but the packages that it
needs: apt's lists of sources are private to the build.
"""

import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster import packages
from cluster.errors import BinariesMissing
from cluster.processes import Processes, log_tail
from cluster.progress import follow, say

VERSION = "1.20.2"
_COMMIT = "faecb196815e248d3ecfb03c680a4507229c2a56"
_REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
_NEEDS = {
    "go": "golang-go",
    "make": "make",
    "gcc": "gcc",
    "rsync": "rsync",
    "dpkg-source": "dpkg-dev",
    "tar": "tar",
    str(_REFLECT2): "golang-github-modern-go-reflect2-dev",
}


def build(components: Sequence[str], destination: Path) -> None:
    """Builds components and puts them into a directory, each whole or not at all.

    Only one runs at a time: `binaries` sees to that.

    Args:
        components: names of programs, as `kube-apiserver`.
        destination: a directory; the build takes about 3 GB beside it while it lasts.

    Raises:
        BinariesMissing: this machine cannot build them.
        CommandFailed: a step failed.
    """
    packages.ensure(_NEEDS)
    destination.mkdir(parents=True, exist_ok=True)
    for abandoned in destination.parent.glob("build-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=destination.parent, ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        processes = Processes(work)
        say(f"building {', '.join(components)} {VERSION} from Debian's sources: about 7 minutes on 2 cores")
        tree = unpack(download(work, processes), work, processes)
        mend(tree)
        compile_components(components, tree, processes)
        for component in components:
            built = next(tree.glob(f"_output/local/bin/*/*/{component}"), None)
            if built is None:
                raise BinariesMissing(f"the build made no {component}: is it one of Kubernetes' programs?")
            partial = destination / f".{component}.partial"
            shutil.copyfile(built, partial)
            partial.chmod(0o755)
            partial.replace(destination / component)


def download(work: Path, processes: Processes) -> Path:
    """Fetches the source package, checked by apt, and returns the upstream archive."""
    apt = work / "apt"
    for directory in ("lists/partial", "archives/partial"):
        (apt / directory).mkdir(parents=True)
    listing = apt / "src.sources"
    listing.write_text(_source_listing())
    options = ["-o", f"Dir::Etc::sourcelist={listing}", "-o", "Dir::Etc::sourceparts=/dev/null"]
    options += ["-o", f"Dir::State::Lists={apt / 'lists'}", "-o", f"Dir::Cache={apt}"]
    options += ["-o", "APT::Sandbox::User=root", "--quiet"]
    for step, arguments in (("update", ["update"]), ("source", ["source", "--download-only", "kubernetes"])):
        process = processes.start(f"apt-{step}", ["apt-get", *options, *arguments], cwd=work, group=True)
        follow(process, f"fetching Debian's kubernetes source (apt-get {step})")
    archive = next(work.glob("kubernetes_*.orig.tar.*"), None)
    if archive is None or VERSION not in archive.name:
        found = archive.name if archive else "nothing"
        raise BinariesMissing(f"Debian's source package kubernetes {VERSION} is wanted, apt-get brought {found}")
    return archive


def unpack(archive: Path, work: Path, processes: Processes) -> Path:
    """Unpacks the upstream archive and returns its tree."""
    follow(processes.start("tar", ["tar", "-xf", archive, "-C", work], group=True), "unpacking")
    return next(work.glob("kubernetes-*/"))


def mend(tree: Path) -> None:
    """Puts Debian's reflect2 1.0.2 in place of the vendored 1.0.1.

    The old one corrupts map iteration under Go 1.18 and newer: kube-apiserver dies with "fatal error:
    fault" on the first write of a custom resource.
    """
    vendored = tree / "vendor/github.com/modern-go/reflect2"
    for suffix in ("*.go", "*.s"):
        for old in vendored.glob(suffix):
            old.unlink()
        for new in _REFLECT2.glob(suffix):
            shutil.copyfile(new, vendored / new.name)


def compile_components(components: Sequence[str], tree: Path, processes: Processes) -> None:
    """Runs Kubernetes' own build; Go prints each package that it compiles, for the progress."""
    targets = " ".join(f"cmd/{component}" for component in components)
    major, minor = VERSION.split(".")[:2]
    environment = {
        "KUBE_GIT_VERSION": f"v{VERSION}",
        "KUBE_GIT_COMMIT": _COMMIT,
        "KUBE_GIT_TREE_STATE": "clean",
        "KUBE_GIT_MAJOR": major,
        "KUBE_GIT_MINOR": minor,
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
    }
    command = ["make", f"WHAT={targets}", "GOFLAGS=-v"]
    process = processes.start("make", command, cwd=tree, env=environment, group=True)

    def detail() -> str:
        packages_done = re.findall(r"^[\w.-]+(?:/[\w.-]+)+$", process.log.read_text(errors="replace"), re.MULTILINE)
        return (
            f"{len(packages_done)} packages compiled, now {packages_done[-1]}"
            if packages_done
            else log_tail(process.log, 1)
        )

    elapsed = follow(process, f"compiling {', '.join(components)}", detail)
    say(f"compiled {', '.join(components)} for {platform.machine()} in {elapsed:.0f} s")


def _source_listing() -> str:
    """The machine's own Debian sources, as sources of source packages."""
    deb822 = Path("/etc/apt/sources.list.d/debian.sources")
    if deb822.exists():
        return re.sub(r"^Types:.*$", "Types: deb-src", deb822.read_text(), flags=re.MULTILINE)
    raise BinariesMissing(
        f"{deb822} is not there, so where to get Debian's kubernetes source from is unknown. "
        "Set KUBEBUILDER_ASSETS to a directory with kube-apiserver and kube-controller-manager, "
        "or run on Debian 12"
    )
