"""Finds and removes what a node has put on the machine, from the marks it left, also after it was killed.

A node claims a number, and everything of it outside its own directory is named after that: the bridge
`outhaul-<n>`, the control group `/outhaul-<n>`, firewall rules with that comment. The bridge is made first
and removed last; its alias, which the kernel keeps, says whose it is. Mounts need no cleaning: they are in
the node's own mount namespace and end with its last process.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import packages
from cluster.errors import CommandFailed, NotInTime
from cluster.processes import Identity
from cluster.waiting import until

_NAME = re.compile(r"outhaul-(\d+)")
_ALIAS = re.compile(r"(?P<pid>\d+) (?P<started>\d+) (?P<root>/.*)")


@dataclass(frozen=True)
class Claim:
    """One node's number on this machine, and the directory that it belongs to."""

    number: int
    root: Path

    @property
    def name(self) -> str:
        """The name of the bridge, of the control group and of the firewall rules."""
        return f"outhaul-{self.number}"

    @property
    def socket(self) -> Path:
        """Where its containerd listens."""
        return self.root / "containerd.sock"


def run(*command: str) -> str:
    """Runs a command to its end and returns its standard output.

    Raises:
        CommandFailed: it returned an error; with its standard error.
    """
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        raise CommandFailed(f"{' '.join(command)} returned {ended.returncode}: {ended.stderr.strip()}")
    return ended.stdout


def iptables(table: str, *arguments: str) -> str:
    """Runs iptables on one table, after whoever holds its lock."""
    return run("iptables", "--wait", "10", "--table", table, *arguments)


def mark(claim: Claim, owner: Identity) -> None:
    """Writes on the bridge who owns it: as long as that process lives, nobody else clears it away."""
    run("ip", "link", "set", claim.name, "alias", f"{owner.pid} {owner.started} {claim.root}")


def claims() -> Iterator[tuple[Claim, bool]]:
    """Every node's claim on this machine, and whether its owner lives."""
    for link in links():
        name, alias = _NAME.fullmatch(link["ifname"]), _ALIAS.fullmatch(link.get("ifalias", ""))
        if name is None or alias is None:
            continue
        owner = Identity.of(int(alias["pid"]))
        alive = owner is not None and owner.started == int(alias["started"])
        yield Claim(int(name[1]), Path(alias["root"])), alive


def links() -> list[dict[str, Any]]:
    """The machine's network interfaces."""
    if packages.which("ip") is None:
        return []  # no node was ever here
    found: list[dict[str, Any]] = json.loads(run("ip", "-json", "link", "show"))
    return found


def sweep_leftovers() -> list[Claim]:
    """Removes what is left of nodes whose owner is dead, and says which these were."""
    dead = [claim for claim, alive in claims() if not alive]
    for claim in dead:
        sweep(claim)
    return dead


def sweep(claim: Claim) -> None:
    """Ends the processes of a node and removes what carries its name.

    Raises:
        NotInTime: a process does not end.
    """

    def gone() -> bool:
        for pid in processes(claim):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not processes(claim)

    until(gone, what=f"the processes of {claim.name} to end", timeout=20)
    for group in control_groups(claim):
        _remove_control_group(group)
    # Another run may be clearing the same away at this moment: what counts is that it is gone.
    for table, rule in rules(claim):
        with contextlib.suppress(CommandFailed):
            iptables(table, "--delete", *rule)
    if any(link["ifname"] == claim.name for link in links()):
        with contextlib.suppress(CommandFailed):
            run("ip", "link", "delete", claim.name)


def processes(claim: Claim) -> set[int]:
    """The processes in a node's containers, and the shims that hold them."""
    found: set[int] = set()
    for group in control_groups(claim):
        for path in [group, *group.rglob("*")]:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
    # Never by a bare name: a shim is ours if it was told our containerd's address.
    address = os.fsencode(claim.socket)
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (directory / "cmdline").read_bytes().split(b"\0")
            if b"containerd-shim" in words[0] and address in words and not _dead(directory):
                found.add(int(directory.name))
    return found


def control_groups(claim: Claim) -> list[Path]:
    """A node's control group in every hierarchy."""
    found = {(root / claim.name).resolve() for root in hierarchies() if (root / claim.name).is_dir()}
    return sorted(found)


def make_control_groups(claim: Claim) -> None:
    """Makes a node's control group in every hierarchy that lets us."""
    for root in hierarchies():
        with contextlib.suppress(OSError):
            (root / claim.name).mkdir()


def hierarchies() -> list[Path]:
    """Where control groups are made: one place with version 2, one a controller with version 1."""
    types = {"cgroup", "cgroup2"}
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(mount[1]) for mount in mounts if mount[2] in types]


def rules(claim: Claim) -> list[tuple[str, list[str]]]:
    """A node's firewall rules, by table, as `iptables --delete` wants them."""
    found = []
    for table in ("nat", "filter"):
        for line in iptables(table, "--list-rules").splitlines():
            words = line.split()
            if words[0] == "-A" and ("--comment", claim.name) in itertools.pairwise(words):
                found.append((table, words[1:]))
    return found


def _dead(process: Path) -> bool:
    """Whether only its entry is left, until its parent asks for it."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _remove_control_group(group: Path) -> None:
    """Removes a control group and those in it; the kernel may need a moment after the last process."""
    inner = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)

    def removed() -> bool:
        for path in [*inner, group]:
            with contextlib.suppress(FileNotFoundError):
                try:
                    path.rmdir()
                except OSError:
                    return False
        return True

    with contextlib.suppress(NotInTime):
        until(removed, what=f"{group} to be removed", timeout=10)
