"""Installs what Debian has packaged and this machine lacks, and says so."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.errors import CommandFailed, PackagesMissing
from cluster.processes import Processes
from cluster.progress import follow, say

_OPTIONS = ["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]


def which(command: str) -> Path | None:
    """Finds a command, also where only root's PATH leads; an absolute path is looked up as it is."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    if Path(command).is_absolute():
        return Path(command) if Path(command).exists() else None
    found = shutil.which(command, path=path)
    return Path(found) if found else None


def missing(needs: Mapping[str, str]) -> list[str]:
    """The packages whose command (or file) is not there, without doubles."""
    return list(dict.fromkeys(package for command, package in needs.items() if which(command) is None))


def ensure(needs: Mapping[str, str]) -> None:
    """Installs the Debian packages that are needed, if any.

    Args:
        needs: commands, or absolute paths of files, and the package that brings each.

    Raises:
        PackagesMissing: they are not there and cannot be installed from here; it says how.
    """
    absent = missing(needs)
    if not absent:
        return
    remedy = f"run: sudo apt-get install {' '.join(absent)}"
    if shutil.which("apt-get") is None:
        raise PackagesMissing(
            f"needed and not found: {', '.join(_commands(needs, absent))}; this machine has no apt-get"
        )
    if os.geteuid() != 0:
        raise PackagesMissing(f"needed and not found: {', '.join(_commands(needs, absent))}; {remedy}")
    install = ["install", "--yes", "--no-install-recommends", *absent]
    try:
        _apt(f"installing {', '.join(absent)} (Debian)", install)
    except CommandFailed:  # package lists that are absent or old
        _apt("updating Debian's package lists", ["update"])
        try:
            _apt(f"installing {', '.join(absent)} (Debian)", install)
        except CommandFailed as error:
            raise PackagesMissing(f"{error}\n{remedy}") from error
    still = missing(needs)
    if still:
        raise PackagesMissing(f"installed, and still not found: {', '.join(_commands(needs, still))}")


def _apt(what: str, arguments: list[str]) -> None:
    """Runs apt-get, detached: cut off half way it would leave the machine's packages broken."""
    say(f"{what} ...")
    with tempfile.TemporaryDirectory(prefix="outhaul-apt-", ignore_cleanup_errors=True) as directory:
        processes = Processes(Path(directory), detached=True)
        environment = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        process = processes.start("apt-get", ["apt-get", "--quiet", *_OPTIONS, *arguments], env=environment)
        follow(process, what, let_go=True)


def _commands(needs: Mapping[str, str], packages: list[str]) -> list[str]:
    return [f"{command} (package {package})" for command, package in needs.items() if package in packages]
