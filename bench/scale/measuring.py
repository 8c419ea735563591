"""Measures, phase by phase, on one cluster; everything is bounded."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cluster.kubelet.api import Api
from cluster.objects import Objects
from cluster.progress import say

from bench import memory
from bench.scale import audit, models, plain
from bench.scale.audit import Audit
from bench.scale.following import following
from bench.scale.models import Model
from bench.scale.places import NAMESPACE, Place
from bench.scale.plain import Plain
from bench.scale.usage import Usage

_QUIET_S, _QUIET = 4.0, 0.03
"""Quiet is who uses less than this share of a core for so long, twice in a row."""
_LONGEST_QUIET_S = 240.0
_WORK_S = 2.0
"""How long the commands of a run take."""


@dataclass(frozen=True)
class Sizes:
    """How much of what."""

    few: int
    many: int
    batch: int
    burst: int
    settle: float
    """Seconds after a start that are waited in any case."""


@dataclass(frozen=True)
class Runs:
    """What some runs at once took."""

    count: int
    seconds: float
    """From the first creation to the last one ready."""
    operator: Usage
    server: Usage
    requests: Counter[str]
    to_secret: list[float]
    """For each, from the end of its commands to the written Secret that applications mount."""

    @property
    def per_second(self) -> float:
        """Runs in a second."""
        return self.count / self.seconds


@dataclass(frozen=True)
class Start:
    """What a start of the operator took with so many objects."""

    idle: int
    to_ready: float
    """Seconds until /readyz says so."""
    to_run: float
    """Seconds until an Installation was ready that was made before the start."""
    to_quiet: Usage
    """Until everything was looked at, with each latest Secret."""
    requests: Counter[str]
    memory: int
    """Resident, in bytes, after that."""


class _Began(NamedTuple):
    """What was used when something began."""

    operator: Usage
    server: Usage


@dataclass
class Results:
    """All that was measured."""

    sizes: Sizes
    load: list[float] = field(default_factory=list)
    """The machine's load average, now and then."""
    empty: int = 0
    """The operator's memory without objects."""
    plain: list[Plain] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    batches: list[Runs] = field(default_factory=list)
    burst: Runs | None = None
    interrupted: tuple[float, Runs] | None = None


async def measure(place: Place, sizes: Sizes) -> Results:
    """Measures everything."""
    results = Results(sizes)
    objects = Objects(place.control_plane, NAMESPACE)
    objects.install(models.NAME, **models.spec(1))
    objects.said("Installation", models.NAME, "Normal", "Succeeded")
    model = Model.of(objects)
    results.empty = memory.resident(place.operator_pid)
    place.stop_operator()
    say(f"a plain client makes the writes of {sizes.few} runs")
    results.plain.append(await plain.write_runs(place, model, _names("idle", sizes.few)))
    for number, idle in enumerate((sizes.few, sizes.many)):
        if idle != sizes.few:
            place.stop_operator()
            say(f"{idle - sizes.few} more idle Installations are made")
            await plain.write_runs(place, model, _names("idle", idle)[sizes.few :], brief=True)
        say(f"the operator starts with {idle} idle Installations")
        results.starts.append(await _start(place, idle, f"first-{number}", sizes.settle))
        say(f"{sizes.batch} runs beside {idle} idle Installations")
        results.batches.append(await _runs(place, _names(f"batch-{number}", sizes.batch)))
        results.load.append(os.getloadavg()[0])
    say(f"{sizes.burst} runs at once")
    results.burst = await _runs(place, _names("burst", sizes.burst))
    results.load.append(os.getloadavg()[0])
    place.stop_operator()
    say(f"a plain client makes the writes of {sizes.few} runs")
    results.plain.append(await plain.write_runs(place, model, _names("plain", sizes.few)))
    results.load.append(os.getloadavg()[0])
    place.start_operator()
    say(f"{sizes.burst} runs at once, and the operator is killed in the middle")
    results.interrupted = await _interrupted(place, _names("interrupted", sizes.burst))
    results.load.append(os.getloadavg()[0])
    return results


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{index:05}" for index in range(count)]


async def _start(place: Place, idle: int, probe: str, settle: float) -> Start:
    async with (
        Api.from_kubeconfig(place.control_plane.kubeconfig) as user,
        following(place.control_plane.kubeconfig) as follower,
    ):
        log = Audit(place.control_plane)
        await plain.create_installations(user, [probe], models.spec(0))
        began = time.monotonic()
        await asyncio.to_thread(place.start_operator)
        ready = time.monotonic()
        run = await follower.ready([probe])
        await asyncio.sleep(max(0.0, began + settle - time.monotonic()))
        await _quiet(place)
        return Start(
            idle,
            ready - began,
            run - began,
            place.operator_usage() - Usage(began, 0),
            audit.of_operator(log.read()),
            memory.resident(place.operator_pid),
        )


async def _quiet(place: Place) -> None:
    """Waits until the operator has nothing to do."""
    end, in_a_row = time.monotonic() + _LONGEST_QUIET_S, 0
    while time.monotonic() < end:
        before = place.operator_usage()
        await asyncio.sleep(_QUIET_S)
        used = place.operator_usage() - before
        in_a_row = in_a_row + 1 if used.cpu < _QUIET * used.at else 0
        if in_a_row == 2:
            return
    say("the operator is not quiet yet: what follows includes what it still does")


async def _runs(place: Place, names: Sequence[str]) -> Runs:
    """Creates Installations at once, and waits until all of them are ready."""
    async with (
        Api.from_kubeconfig(place.control_plane.kubeconfig) as user,
        following(place.control_plane.kubeconfig) as follower,
    ):
        log = Audit(place.control_plane)
        began = _Began(place.operator_usage(), place.server_usage())
        await plain.create_installations(user, names, models.spec(_WORK_S))
        end = await follower.ready(names)
        await _quiet(place)
        return _result(place, log, names, began, end)


async def _interrupted(place: Place, names: Sequence[str]) -> tuple[float, Runs]:
    """Kills the operator in the middle, starts it again, and waits until all is published.

    Returns:
        Seconds from the start until the next run was published, and what the rest took from the start.
    """
    async with (
        Api.from_kubeconfig(place.control_plane.kubeconfig) as user,
        following(place.control_plane.kubeconfig) as follower,
    ):
        log = Audit(place.control_plane)
        await plain.create_installations(user, names, models.spec(_WORK_S))
        before: set[str] = set()
        # Not by the follower, which may be behind.
        while len(before) < len(names) // 3:
            await asyncio.sleep(0.5)
            before |= _written(log, names)
        await asyncio.to_thread(place.kill_operator)
        before |= _written(log, names)
        rest = [name for name in names if name not in before]
        # A new process has used nothing yet.
        began = _Began(Usage(time.monotonic(), 0), place.server_usage())
        await asyncio.to_thread(place.start_operator)
        end = await follower.ready(rest)
        first = min(at for name in rest if (at := follower.ready_at[name]) > began.operator.at)
        actions = await user.call("GET", f"/apis/outhaul.dev/v1alpha1/namespaces/{NAMESPACE}/agentactions")
        runs = Counter(one["spec"]["installation"]["name"] for one in actions["items"])
        assert all(runs[name] == 1 for name in [*before, *rest]), "a run was started twice, or was lost"
        return first - began.operator.at, _result(place, log, rest, began, end)


def _written(log: Audit, names: Sequence[str]) -> set[str]:
    """Returns those of which the Secret for applications was written since the log was read last."""
    secrets = {f"{name}-outputs": name for name in names}
    return {secrets[one] for one in audit.written(log.read(), secrets)}


def _result(place: Place, log: Audit, names: Sequence[str], began: _Began, end: float) -> Runs:
    events = log.read()
    written = audit.written(events, {f"{name}-outputs" for name in names})
    done = {one["pod"].rpartition("-")[0]: one["done"] for one in place.node.moments()}
    return Runs(
        len(names),
        end - began.operator.at,
        place.operator_usage() - began.operator,
        place.server_usage() - began.server,
        audit.of_operator(events),
        # One that was written before an operator was killed is not counted after it.
        [written[f"{name}-outputs"] - done[name] for name in names if f"{name}-outputs" in written],
    )
