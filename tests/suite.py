"""`make test` and its parts: runs them in order, and says at the end what ran on which Kubernetes, and what did not.

    python tests/suite.py [PART ...]

A part that fails does not keep those after it from running. `SEED` says in which order the tests of a part are;
`random` is another one each time. `MARK` leaves out the tests without a marker.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from cluster import binaries, goprograms
from cluster.errors import ClusterError
from cluster.privileges import FOLDER_VARIABLE

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "build" / "reports"
BIN = Path(sys.executable).parent

CHECKS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("lint-imports", "--no-cache"))
_EACH_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
"""A file stays in one process, which makes what its tests share once; files are dealt out in the order of the tests."""
TESTS = {
    "unit": ("-n", "2", "tests/unit"),
    "wire": ("-n", "3", *_EACH_FILE, "tests/wire"),
    "integration": ("-n", "4", *_EACH_FILE, "tests/soak", "tests/integration"),
    "node": ("-n", "3", *_EACH_FILE, "tests/node"),
    # Compares what all the others have recorded.
    "privileges": ("tests/privileges",),
}
"""What pytest is told, by part."""
PARTS = ("check", *TESTS)


@dataclass
class Result:
    """What became of a part."""

    name: str
    is_ok: bool
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    """How many tests were skipped, by reason."""

    def __str__(self) -> str:
        """Returns a line for people."""
        counts = ", ".join(f"{self.counts[what]} {what}" for what in _COUNTED if self.counts[what])
        return f"  {self.name:12} {'ok' if self.is_ok else 'FAILED':7} {_minutes(self.seconds):>8}  {counts}".rstrip()


def main(wanted: list[str]) -> int:
    """Runs parts, all of them where none is named; returns the exit status."""
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"no part of the tests: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    names = wanted or list(PARTS)
    wish = os.environ.get("SEED") or "1"
    seed = random.SystemRandom().randrange(10**6) if wish == "random" else int(wish)
    shutil.rmtree(REPORTS, ignore_errors=True)
    environment = dict(os.environ)
    if "privileges" in names:
        folder = ROOT / "build" / "privileges"
        shutil.rmtree(folder, ignore_errors=True)
        environment[FOLDER_VARIABLE] = str(folder)
    begun = time.monotonic()
    results: list[Result] = []
    if set(names) & {"integration", "node"}:
        options = ["--pods"] if "node" in names else []
        prepare = (sys.executable, "-m", "cluster", "prepare", *options)
        results.append(_commands("programs", [prepare], environment | {"PYTHONPATH": str(ROOT / "tests")}))
        if not results[0].is_ok:
            names = [name for name in names if name in {"check", "unit", "wire"}]
    for name in names:
        print(f"\n=== {name}", flush=True)
        if name == "check":
            results.append(_commands(name, [(str(BIN / command), *rest) for command, *rest in CHECKS], environment))
        else:
            results.append(_tests(name, seed, environment))
    print("\n" + "\n".join(summary(results, seed, time.monotonic() - begun)), flush=True)
    return 0 if all(one.is_ok for one in results) else 1


def summary(results: list[Result], seed: int, seconds: float) -> list[str]:
    """Returns what is said at the end."""
    head = f"{_kubernetes()}; SEED={seed}; {_minutes(seconds)}"
    left_out = [f"  left out of {one.name}: {number}. {why}" for one in results for why, number in one.left_out.items()]
    return [head, *map(str, results), *left_out]


def _kubernetes() -> str:
    """Which Kubernetes there is."""
    try:
        program = binaries.find("kube-apiserver")
    except ClusterError as error:
        return str(error)
    if program is None:
        return f"Kubernetes {binaries.VERSION} was not built"
    if program.is_relative_to(binaries.cache()):
        return f"Kubernetes {binaries.VERSION} and etcd {goprograms.ETCD.version} (built here)"
    return f"Kubernetes {binaries.version(program)} ({program.parent})"


def _commands(name: str, commands: list[tuple[str, ...]], environment: dict[str, str]) -> Result:
    begun = time.monotonic()
    codes = [subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode for command in commands]
    return Result(name, not any(codes), time.monotonic() - begun)


def _tests(name: str, seed: int, environment: dict[str, str]) -> Result:
    report = REPORTS / f"{name}.xml"
    command = [str(BIN / "pytest"), f"--randomly-seed={seed}", f"--junit-xml={report}", *TESTS[name]]
    command += ["-m", mark] if (mark := os.environ.get("MARK")) else []
    result = _commands(name, [tuple(command)], environment)
    if report.exists():
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by the line before
            outcomes = {child.tag: child.get("message", "") for child in case if child.tag in _OUTCOMES}
            result.counts[next((_OUTCOMES[tag] for tag in _OUTCOMES if tag in outcomes), "passed")] += 1
            if "skipped" in outcomes:
                result.left_out[outcomes["skipped"]] += 1
    return result


_COUNTED = ("passed", "failed", "left out")
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "left out"}


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
