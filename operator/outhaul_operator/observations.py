"""What is counted while it happens to the view, and what is looked up at each scrape: phases, queues, watches.

`controller` ties it to what it looks at; the metrics themselves are in `metrics`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outhaul_api.vocabulary import ENGINE_LABEL, Action, ActionPhase, InstallationPhase
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outhaul_operator import engines, metrics
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.queue import Queue
from outhaul_operator.view import View
from outhaul_operator.watches import Watches

_FINAL = {phase for phase in ActionPhase if phase.is_final}


def count_end(kind: Kind, before: Object, after: Object) -> None:
    """Counts a run where it has just ended; the view tells of each change.

    An operator counts what it has seen happen, so no run is counted again after a restart.
    """
    if kind is not Kind.AGENT_ACTION or _phase(before) in _FINAL or _phase(after) not in _FINAL:
        return
    engine = after["metadata"].get("labels", {}).get(ENGINE_LABEL, "none")
    action = after["spec"].get("action")
    metrics.RUNS.labels(
        # What people may have written is no label's value.
        engine if engine in {"none", *engines.NAMES} else "other",
        action if action in set(Action) else "other",
        _phase(after),
    ).inc()


@contextmanager
def exposed(view: View, queues: Mapping[str, Queue[Any]], watches: Watches) -> Iterator[None]:
    """Lets each scrape look at these, as long as the context lasts."""
    phases = Phases(view)
    metrics.REGISTRY.register(phases)
    for name, queue in queues.items():
        metrics.QUEUE_WAITING.labels(name).set_function(queue.waiting)
        metrics.QUEUE_LONGEST_WAIT.labels(name).set_function(queue.longest_wait)
        metrics.QUEUE_RETRIES.labels(name)
    for resource in {place.resource for place in watches.ages()}:
        metrics.WATCH_AGE.labels(resource).set_function(_oldest(watches, resource))
    try:
        yield
    finally:
        metrics.REGISTRY.unregister(phases)
        for gauge in (metrics.QUEUE_WAITING, metrics.QUEUE_LONGEST_WAIT, metrics.WATCH_AGE):
            gauge.clear()


def _oldest(watches: Watches, resource: str) -> Callable[[], float]:
    return lambda: max(age for place, age in watches.ages().items() if place.resource == resource)


class Phases(Collector):
    """How many Installations and AgentActions are in each phase, by the view.

    Args:
        view: What was seen.
    """

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        yield self._family("outhaul_installations", Kind.INSTALLATION, InstallationPhase)
        yield self._family("outhaul_agentactions", Kind.AGENT_ACTION, ActionPhase)

    def _family(self, name: str, kind: Kind, phases: Iterable[str]) -> Metric:
        family = GaugeMetricFamily(name, f"{kind.value[1]} by phase; none: not looked at yet.", labels=["phase"])
        found = Counter(_phase(obj) for obj in self._view.objects(kind))
        for phase in (*phases, "none"):
            family.add_metric([phase], found[phase])
        return family


def _phase(obj: Object) -> str:
    return str(obj.get("status", {}).get("phase") or "none")
