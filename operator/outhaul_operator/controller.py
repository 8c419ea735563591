"""The operator's process: connects, opens its authorities, starts the queues and kopf, and stops them in order."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
from outhaul_api.installation import Installation
from outhaul_api.vocabulary import CANCEL_ANNOTATION
from pydantic import ValidationError

from outhaul_operator import handlers, logs, metrics, observations, ownership
from outhaul_operator.agentactions import has_ended
from outhaul_operator.apierrors import ApiError
from outhaul_operator.authorities import Authorities
from outhaul_operator.cluster import Cluster
from outhaul_operator.context import Context
from outhaul_operator.dependencies import Graph
from outhaul_operator.health import Health
from outhaul_operator.installations import Installations
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.queue import Queue
from outhaul_operator.references import References
from outhaul_operator.resync import Resync
from outhaul_operator.runs import Runs
from outhaul_operator.settings import Settings
from outhaul_operator.verdicts import WaitingError
from outhaul_operator.view import Key, View, key_of
from outhaul_operator.watches import Watches

_MOST_RUNS = 100_000
"""A run waits most of its time; what limits their number is the cluster."""
_MOST_PASSES = 64
_LONGEST_PASS_S = 300.0
"""A look at an Installation is some requests, none of which takes longer than half a minute."""
_IDENTITY: Any = "outhaul-operator"
"""For kopf's peers, of which there are none: kopf would else ask for the user's name, which an image need not have,
and the network for the host's."""

_logger = logging.getLogger(__name__)


class MissingKindsError(Exception):
    """The API server does not know all kinds; the message says which."""


class Operator:
    """Ties watches to queues.

    Args:
        cluster: The API server.
        settings: The operator's settings.
        health: Given the checks of what runs here.
    """

    def __init__(self, cluster: Cluster, settings: Settings, health: Health) -> None:
        self._cluster = cluster
        self._settings = settings
        self._health = health
        self._is_prepared = False
        health.require_for_readiness(lambda: None if self._is_prepared else "still starting")
        self._view = View(_owner, observations.count_end)
        self._graph = Graph()

    async def run(self, stop: asyncio.Event) -> None:
        """Works until it is told to stop, or until a watch fails for good: then Kubernetes starts it again.

        Args:
            stop: Set where it is to stop. While it works kopf takes SIGTERM and SIGINT for that as well.

        Raises:
            MissingKindsError: The CustomResourceDefinitions are not installed; kopf would wait for them silently.
        """
        await self._demand_kinds()
        authorities = Authorities(self._cluster, self._view, self._settings)
        fingerprint_key = await authorities.open()
        context = Context(self._cluster, self._view, self._settings, authorities, fingerprint_key)
        references = References(self._cluster, self._wake_namespace, self._settings.resync_seconds)
        installations = Installations(context, self._graph, references)
        runs = Runs(context)
        self._installations: Queue[Key] = Queue(
            _noted("Installation", installations.reconcile),
            _reporter("installations"),
            concurrency=_MOST_PASSES,
            group=_namespace,
            share=_MOST_PASSES // 4,
            longest_s=_LONGEST_PASS_S,
            patience=_patience,
        )
        self._runs: Queue[Key] = Queue(
            _noted("AgentAction", runs.carry_out),
            _reporter("runs"),
            concurrency=_MOST_RUNS,
            group=_namespace,
            patience=_patience,
        )
        namespaces, patience_s = self._settings.watch_namespaces, self._settings.watch_timeout_seconds
        resync = Resync(self._cluster, self._view, self._changed, namespaces, self._settings.resync_seconds)
        watches = Watches(handlers.places(namespaces), patience_s, resync.soon)
        registry = handlers.register(self._view, self._changed, self._cluster, watches)
        beside = [
            asyncio.create_task(resync.run(), name="resync"),
            asyncio.create_task(authorities.keep(), name="authorities"),
        ]
        self._health.require_for_readiness(watches.unlisted)
        self._health.require_for_life(watches.wedged)
        self._health.require_for_life(self._installations.stuck)
        queues = {"installations": self._installations, "runs": self._runs}
        self._is_prepared = True

        async def close(**_: Any) -> None:
            # kopf has a task that waits for it, and would wait for that.
            stop.set()
            await self._installations.close()
            await self._runs.close()
            await references.close()

        # kopf gives whatever else runs in the loop five seconds to end by itself, so ours ends when kopf's own does.
        kopf.on.cleanup(registry=registry)(close)
        try:
            with observations.exposed(self._view, queues, watches):
                await kopf.operator(
                    registry=registry,
                    identity=_IDENTITY,
                    settings=handlers.kopf_settings(patience_s),
                    clusterwide=not namespaces,
                    namespaces=namespaces,
                    stop_flag=stop,
                )
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await close()

    async def _demand_kinds(self) -> None:
        namespace = next(iter(self._settings.watch_namespaces), None)
        ours = (Kind.INSTALLATION, Kind.AGENT_ACTION, Kind.AGENT_CONFIG, Kind.INSTALLATION_OUTPUT)
        missing = [kind.value[1] for kind in ours if not await self._cluster.is_served(kind, namespace)]
        if missing:
            raise MissingKindsError(f"the API server does not know {', '.join(missing)}; install the CRDs: see crds/")

    def _changed(self, kind: Kind, obj: Object) -> None:
        key = key_of(kind, obj)
        match kind:
            case Kind.INSTALLATION:
                self._installations.add(key)
                self._wake_neighbours(key, obj)
                if CANCEL_ANNOTATION in obj["metadata"].get("annotations", {}):
                    self._wake_runs_in_flight(key)
            case Kind.AGENT_ACTION:
                self._runs.add(key)
                owner = ownership.controller_of(obj)
                if owner is not None:
                    self._installations.add(owner)
            case Kind.AGENT_CONFIG:
                for waiting in self._in_reach(key):
                    (self._installations if waiting.kind is Kind.INSTALLATION else self._runs).add(waiting)
            case Kind.POD:
                # Runs wait at the view for their pods; of one that has ended there may be something left to clean.
                if self._view.get(key) is None:
                    self._wake_runs_of(obj)

    def _wake_runs_of(self, pod: Object) -> None:
        for owner in pod["metadata"].get("ownerReferences", []):
            if owner["kind"] == "AgentAction":
                self._runs.add(Key(Kind.AGENT_ACTION, pod["metadata"]["namespace"], owner["name"]))

    def _wake_runs_in_flight(self, installation: Key) -> None:
        """Has those looked at that wait for their next try: they do not listen meanwhile."""
        for run in self._view.owned(installation):
            if not has_ended(run):
                self._runs.add(key_of(Kind.AGENT_ACTION, run))

    def _wake_neighbours(self, key: Key, obj: Object) -> None:
        """Has those looked at that wait for an Installation, and those that it waits for."""
        namespace, name = key.namespace, key.name
        neighbours = self._graph.neighbours(namespace, name)
        try:
            if self._view.get(key) is None:
                self._graph.drop(namespace, name)
            else:
                self._graph.put(Installation.model_validate(obj))
        except ValidationError:
            self._graph.drop(namespace, name)
        for other in neighbours | self._graph.neighbours(namespace, name):
            self._installations.add(Key(Kind.INSTALLATION, namespace, other))

    def _wake_namespace(self, namespace: str) -> None:
        for key in self._view.keys(Kind.INSTALLATION):
            if key.namespace == namespace:
                self._installations.add(key)

    def _in_reach(self, config: Key) -> list[Key]:
        """Returns what an AgentConfig may matter to."""
        everywhere = config.namespace == self._settings.namespace
        keys = self._view.keys(Kind.INSTALLATION) + self._view.keys(Kind.AGENT_ACTION)
        return [key for key in keys if everywhere or key.namespace == config.namespace]


def _owner(kind: Kind, obj: Object) -> Key | None:
    return ownership.controller_of(obj) if kind is Kind.AGENT_ACTION else None


def _patience(error: Exception) -> float:
    return error.at_most_s if isinstance(error, WaitingError) else math.inf


def _namespace(key: Key) -> str:
    return key.namespace


def _noted(kind: str, work: Callable[[Key], Awaitable[float | None]]) -> Callable[[Key], Awaitable[float | None]]:
    """Has each line of the log say what the work is on."""

    async def noted(key: Key) -> float | None:
        logs.about(f"{kind} {key.namespace}/{key.name}")
        if key.kind is Kind.AGENT_ACTION:
            logs.during(key.name)
        return await work(key)

    return noted


def _reporter(queue: str) -> Callable[[Key, Exception, int], None]:
    """Returns what tells of a queue's failures."""

    def report(_: Key, error: Exception, failures: int) -> None:
        metrics.QUEUE_RETRIES.labels(queue).inc()
        if isinstance(error, WaitingError):
            _logger.info("it waits: %s", error)
        elif isinstance(error, ApiError):
            _logger.warning("%s (failure %d, will be tried again)", error, failures)
        else:
            _logger.error("failure %d, will be tried again", failures, exc_info=error)

    return report
