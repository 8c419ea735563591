"""Runs the contenders by turns on one cluster, and reads from its audit log and their logs when what happened."""

import json
import os
import statistics
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cluster.progress import say

from bench import contenders, memory
from bench.contenders import Work
from bench.places import Place

Json = dict[str, Any]

NAMESPACE = "bench"
_TICKS = os.sysconf("SC_CLK_TCK")
_WARM_UP = 1
"""Runs of each that count for nothing: the first one waits for disks and caches."""


@dataclass
class Measured:
    """What was measured of one contender: a number a run, in seconds and bytes."""

    to_secret: list[float] = field(default_factory=list)
    """From the end of the work to the written Secret."""
    around: list[float] = field(default_factory=list)
    """From the creation of the user's object to the written Secret, without the work itself."""
    pod_memory: list[float] = field(default_factory=list)
    """The most that the pod's processes had for themselves."""
    to_command: list[float] = field(default_factory=list)
    """From the start of the agent's process to the first line of the first command."""
    agent_memory: list[float] = field(default_factory=list)
    """The most that the agent's process was resident with, while the command ran."""


@dataclass
class Results:
    """What was measured."""

    runs: int
    work: Work
    contenders: dict[str, Measured]
    operator_before: int
    """The operator's resident memory before the runs, in bytes."""
    operator_after: int
    """The operator's resident memory after the runs, in bytes."""


def prepare(place: Place) -> None:
    """Makes the namespace in which all of it runs."""
    place.control_plane.create_namespace(NAMESPACE)
    _apply(place, {"apiVersion": "v1", "kind": "List", "items": contenders.account(NAMESPACE)})


def compare(place: Place, work: Work, *, runs: int) -> Results:
    """Runs each contender so many times, by turns.

    Args:
        place: where; it is prepared.
        work: what there is to do.
        runs: how often each one does it.
    """
    before = memory.resident(place.operator_pid)
    logs: dict[str, str] = {}
    uids: dict[str, str] = {}
    with ExitStack() as stack:
        sampler = stack.enter_context(memory.Sampler(place.pods)) if place.pods is not None else None
        for name, contender in _turns(work, runs):
            say(f"{contender}: {name}")
            logs[name], uids[name] = _run(place, contender, name, work)
    measured = {contender: Measured() for contender in contenders.CONTENDERS}
    created, written = _moments(place.control_plane.audit_events())
    for name, contender in _turns(work, runs):
        if name.startswith("warm"):
            continue
        one = measured[contender]
        marks = _marks(logs[name])
        one.to_secret.append(written[f"{name}-outputs"] - float(marks["bench-done"][0]))
        one.around.append(written[f"{name}-outputs"] - created[name] - work.seconds)
        if sampler is not None:
            one.pod_memory.append(float(sampler.most[uids[name]]))
        if contender == contenders.OUTHAUL:
            now, started = marks["bench-began"]
            one.to_command.append(float(now) - int(started) / _TICKS)
            one.agent_memory.append(1024.0 * float(marks["VmHWM:"][0]))
    return Results(runs, work, measured, before, memory.resident(place.operator_pid))


def median(values: Iterable[float]) -> float | None:
    """Returns the median; None of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def _turns(work: Work, runs: int) -> Iterator[tuple[str, str]]:
    """Yields each run's name and contender: by turns, so that all meet the same weather."""
    for number in range(-_WARM_UP, runs):
        for index, contender in enumerate(contenders.CONTENDERS):
            yield f"{'warm' if number < 0 else 'run'}-{index}-{abs(number)}-{work.seconds:g}s", contender


def _run(place: Place, contender: str, name: str, work: Work) -> tuple[str, str]:
    """Runs a contender once; returns what its pod printed, and the pod's uid."""
    if contender == contenders.OUTHAUL:
        _apply(place, contenders.installation(name, work))
        _kubectl(place, "wait", f"installation/{name}", "--for=condition=Ready", "--timeout=60s")
        action = json.loads(_kubectl(place, "get", "installation", name, "-o", "json"))["status"]["action"]["name"]
        pod = json.loads(_kubectl(place, "get", "pod", action, "-o", "json"))
    else:
        _apply(place, contenders.job(contender, name, work))
        _kubectl(place, "wait", f"job/{name}", "--for=condition=complete", "--timeout=60s")
        (pod,) = json.loads(_kubectl(place, "get", "pods", "-l", f"job-name={name}", "-o", "json"))["items"]
    return _kubectl(place, "logs", pod["metadata"]["name"]), pod["metadata"]["uid"]


def _moments(events: Iterable[Json]) -> tuple[dict[str, float], dict[str, float]]:
    """Returns when objects were asked for, and when Secrets were written, by name; from the API server's audit log."""
    created: dict[str, float] = {}
    written: dict[str, float] = {}
    for event in events:
        about = event.get("objectRef", {})
        if about.get("namespace") != NAMESPACE or event["verb"] not in {"create", "patch"}:
            continue
        if event["responseStatus"]["code"] not in {200, 201}:
            continue
        if about["resource"] in {"installations", "jobs"} and "subresource" not in about and "name" in about:
            created.setdefault(about["name"], _seconds(event["requestReceivedTimestamp"]))
        elif about["resource"] == "secrets" and "name" in about:
            written.setdefault(about["name"], _seconds(event["stageTimestamp"]))
    return created, written


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _marks(log: str) -> dict[str, list[str]]:
    """Returns the words after each mark in what a pod printed."""
    marks: dict[str, list[str]] = {}
    words = log.split()
    for index, word in enumerate(words):
        if word.startswith(("bench-", "Vm")):
            marks[word] = words[index + 1 : index + 3]
    return marks


def _apply(place: Place, manifest: Json) -> None:
    _kubectl(place, "create", "-f", "-", stdin=json.dumps(manifest))


def _kubectl(place: Place, *arguments: str, stdin: str | None = None) -> str:
    return place.control_plane.kubectl("-n", NAMESPACE, *arguments, stdin=stdin, timeout=90)
