"""Builds the images that pods of the test node run: no registry, no daemon, no network inside a build.

The base comes from debootstrap, wheels from pip on the outside, and buildah puts them together after the very
Dockerfiles that a user would build. Each result is an archive in the cache whose name carries a digest of
all that went into it, so it is built again only when something changed; within one process it stays the same.
`python -m cluster.images` builds them all ahead of the tests.
"""

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import caches, packages
from cluster.errors import ClusterError
from cluster.processes import Processes
from cluster.progress import follow, say

NEEDS = {"buildah": "buildah", "debootstrap": "debootstrap"}
"""Commands, and the Debian packages that bring them."""

BASE, PAUSE, AGENT, OPERATOR, TERRAFORM = (
    f"localhost/outhaul-{short}:test" for short in ("base", "pause", "agent", "operator", "terraform")
)
"""What a pod's `image` says."""

PROJECT = Path(__file__).parents[2]

_SUITE, _PYTHON, _GLIBC = "bookworm", "3.11", 36
_INCLUDE = "python3,python3-venv,ca-certificates"
_PRUNED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
_KEPT = 3600.0
_OFFLINE = "--no-index --find-links wheelhouse"


class ImageFailed(ClusterError):  # noqa: N818 - reads as the others do
    """An image could not be built."""


@dataclass(frozen=True)
class Image:
    """One image as a file: `name` is what a pod's `image` says once the node has loaded `archive`."""

    name: str
    archive: Path


def cache() -> Path:
    """Where archives and wheels are kept."""
    return caches.cache() / "images"


@functools.cache
def base() -> Image:
    """Debian with Python: what every other image starts from."""
    digest = _digest([_SUITE, _INCLUDE, *_PRUNED])
    with _made(BASE, digest) as (image, work):
        if work is not None:
            _debootstrap(image, work)
    return image


@functools.cache
def pause() -> Image:
    """The container that holds a pod's network: it sleeps."""
    recipe = f"FROM docker-archive:{base().archive}\n" + 'ENTRYPOINT ["sleep", "infinity"]\n'
    with _made(PAUSE, _digest([recipe])) as (image, work):
        if work is not None:
            _context(work, {}).joinpath("Dockerfile").write_text(recipe)
            _build(image, work, work / "context" / "Dockerfile", {})
    return image


@functools.cache
def agent() -> Image:
    """The agent, from `Dockerfile.agent`."""
    dockerfile = PROJECT / "Dockerfile.agent"
    return project_image(AGENT, dockerfile, directory=PROJECT, base=base(), wheels=_extra("agent"))


@functools.cache
def operator() -> Image:
    """The operator, from `Dockerfile.operator`."""
    dockerfile = PROJECT / "Dockerfile.operator"
    return project_image(OPERATOR, dockerfile, directory=PROJECT, base=base(), wheels=_extra("operator"))


@functools.cache
def terraform() -> Image:
    """The agent with Terraform, from `samples/terraform/Dockerfile`."""
    sample = PROJECT / "samples" / "terraform"
    wheels = (sample / "requirements.txt").read_text().split()
    return project_image(TERRAFORM, sample / "Dockerfile", directory=sample, base=agent(), wheels=wheels)


def everything() -> list[Image]:
    """Builds what is not in the cache, and returns all images."""
    return [base(), pause(), agent(), operator(), terraform()]


def project_image(name: str, dockerfile: Path, *, directory: Path, base: Image, wheels: Sequence[str]) -> Image:
    """Builds one of the project's Dockerfiles; its first ARG names the image to start from."""
    recipe = dockerfile.read_text()
    argument = recipe.partition("\nARG ")[2].partition("=")[0]
    files = {str(path.relative_to(directory)): path for path in _sources(directory)}
    files |= {f"wheelhouse/{wheel.name}": wheel for wheel in _wheelhouse(_short(name), wheels)}
    parts = [f"{file} {_file_digest(path)}" for file, path in sorted(files.items())]
    with _made(name, _digest([base.archive.name, recipe, *parts])) as (image, work):
        if work is not None:
            _context(work, files)
            arguments = {argument: f"docker-archive:{base.archive}", "PIP_ARGS": _OFFLINE}
            _build(image, work, dockerfile, arguments)
    return image


def _sources(directory: Path) -> list[Path]:
    """The files that `.dockerignore` lets into the build."""
    allowed = [line[1:] for line in (directory / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    found: list[Path] = []
    for name in allowed:
        path = directory / name
        found += [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return [path for path in found if "__pycache__" not in path.parts and "wheelhouse" not in path.parts]


def _extra(name: str) -> list[str]:
    """What one of the project's extras needs, and what builds the project itself."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed: list[str] = []
    for requirement in extras[name]:
        inner = requirement.removeprefix("outhaul[").removesuffix("]")
        needed += extras.get(inner, [requirement])
    return [*needed, *project["build-system"]["requires"]]


def _wheelhouse(short: str, requirements: Sequence[str]) -> list[Path]:
    """Downloads wheels for the base image's Python, not for the one that runs this."""
    constraints = PROJECT / "constraints.txt"
    pinned = constraints.read_text() if constraints.exists() else ""
    machine = platform.machine()
    wheels = cache() / "wheels" / f"{short}-{_digest([machine, _PYTHON, *requirements, pinned])}"
    with caches.alone(wheels.with_suffix(".lock"), f"maker of {wheels.name}"):
        if not wheels.exists():
            with tempfile.TemporaryDirectory(dir=cache(), prefix="work-") as work:
                command = [sys.executable, "-m", "pip", "download", "--dest", f"{work}/wheels"]
                command += ["--python-version", _PYTHON, "--implementation", "cp", "--only-binary", ":all:"]
                for minor in range(_GLIBC, 16, -1):
                    command += ["--platform", f"manylinux_2_{minor}_{machine}"]
                command += ["--platform", f"manylinux2014_{machine}"]
                command += ["--constraint", str(constraints)] if pinned else []
                _run(f"downloading the wheels of the {short} image", [*command, *requirements], Path(work))
                Path(work, "wheels").replace(wheels)
    return sorted(wheels.iterdir())


def _debootstrap(image: Image, work: Path) -> None:
    root, context = work / "root", _context(work, {})
    command = ["debootstrap", "--variant=minbase", f"--include={_INCLUDE}", _SUITE, str(root), *_mirror()]
    _run("making the base image with debootstrap (about a minute)", command, work)
    for pruned in _PRUNED:
        shutil.rmtree(root / pruned)
        (root / pruned).mkdir()
    # apt wants these two; dpkg has been told nothing of what is gone, and nothing is installed later.
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    (root / "var/lib/apt/lists/partial").mkdir()
    tar = ["tar", "--create", "--file", str(context / "root.tar"), "--directory", str(root)]
    _run(
        "packing the base image",
        [*tar, "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "."],
        work,
    )
    shutil.rmtree(root)
    dockerfile = context / "Dockerfile"
    dockerfile.write_text('FROM scratch\nADD root.tar /\nENV LANG=C.UTF-8\nCMD ["/bin/sh"]\n')
    _build(image, work, dockerfile, {})


def _mirror() -> list[str]:
    """The mirror that this machine's apt uses for the suite; without apt none: debootstrap knows one."""
    if shutil.which("apt-get") is None:
        return []
    wanted = [
        "apt-get",
        "indextargets",
        "--format",
        "$(CODENAME) $(SUITE) $(REPO_URI)",
        "Created-By: Packages",
    ]
    listed = subprocess.run(wanted, check=False, capture_output=True, text=True).stdout
    return next(([words[2]] for words in map(str.split, listed.splitlines()) if words[0] == _SUITE), [])


def _build(image: Image, work: Path, dockerfile: Path, arguments: dict[str, str]) -> None:
    """Builds a Dockerfile with a storage of its own that goes away with `work`."""
    buildah = ["buildah", "--storage-driver", "vfs", "--root", f"{work}/storage", "--runroot", f"{work}/run"]
    build = [*buildah, "build", "--isolation", "chroot", "--network", "host", "--layers=false"]
    build += ["--file", str(dockerfile), "--tag", image.name]
    for name, value in arguments.items():
        build += ["--build-arg", f"{name}={value}"]
    partial = work / "archive.tar"
    try:
        _run(f"building {image.name}", [*build, str(work / "context")], work)
        _run(
            f"packing {image.name}",
            [*buildah, "push", image.name, f"docker-archive:{partial}:{image.name}"],
            work,
        )
    finally:
        subprocess.run([*buildah, "rmi", "--all", "--force"], check=False, capture_output=True)
    partial.replace(image.archive)
    for other in image.archive.parent.glob(f"{image.archive.name.rpartition('-')[0]}-*.tar"):
        # Another run, of other sources, may be about to load a younger one.
        if time.time() - other.stat().st_mtime > _KEPT:
            other.unlink(missing_ok=True)


def _context(work: Path, files: dict[str, Path]) -> Path:
    """Lays out a build context."""
    context = work / "context"
    context.mkdir()
    for name, source in files.items():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, context / name)
    return context


def _run(what: str, command: Sequence[str], work: Path) -> None:
    say(f"{what} ...")
    environment = {"TMPDIR": str(work), "LC_ALL": "C.UTF-8"}
    process = Processes(work).start(Path(command[0]).name, command, env=environment, cwd=work)
    took = follow(process, what)
    say(f"{what}: done in {took:.0f} s")


@contextmanager
def _made(name: str, digest: str) -> Iterator[tuple[Image, Path | None]]:
    """An image and, when it has to be made, a directory to make it in."""
    image = Image(name, cache() / f"{_short(name)}-{digest}.tar")
    if image.archive.exists():
        yield image, None
        return
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ImageFailed("images are built on Linux, as root: run the tests with sudo, or leave the node tests out")
    packages.ensure(NEEDS)
    with caches.alone(cache() / f"{_short(name)}.lock", f"maker of {_short(name)}"):
        if image.archive.exists():  # made by somebody else meanwhile
            yield image, None
            return
        with tempfile.TemporaryDirectory(dir=cache(), prefix="work-", ignore_cleanup_errors=True) as work:
            yield image, Path(work)


def _short(name: str) -> str:
    """An image's name without where it comes from and its tag."""
    return name.rpartition("/")[2].partition(":")[0]


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    for made in everything():
        print(f"{made.name}  {made.archive}  {made.archive.stat().st_size / 1e6:.0f} MB")
