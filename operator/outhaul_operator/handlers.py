"""kopf's registrations, and nothing else: a watch event updates the view and becomes a key on a queue.

Only `on.event` is used: it writes nothing to the objects, while kopf's change handlers copy specs into annotations.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kopf
from outhaul_api.vocabulary import GROUP, MANAGED_BY_LABEL, MANAGER, VERSION

from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.queue import backoff
from outhaul_operator.view import View
from outhaul_operator.watches import Place, Watches

_WATCHED = {
    Kind.INSTALLATION: (GROUP, VERSION, "installations"),
    Kind.AGENT_ACTION: (GROUP, VERSION, "agentactions"),
    Kind.AGENT_CONFIG: (GROUP, VERSION, "agentconfigs"),
    Kind.POD: ("", "v1", "pods"),
}
LABELS = {Kind.POD: {MANAGED_BY_LABEL: MANAGER}}
"""Of the pods only ours are watched."""
_LONGEST_BACKOFF_S = 10.0


def places(namespaces: Sequence[str]) -> list[Place]:
    """Returns what is watched.

    Args:
        namespaces: The namespaces to work in; empty: all.
    """
    return [Place(kind.value[1], namespace) for kind in _WATCHED for namespace in namespaces or (None,)]


def register(
    view: View, changed: Callable[[Kind, Object], None], cluster: Cluster, watches: Watches
) -> kopf.OperatorRegistry:
    """Returns a registry whose handlers keep the view current and report each change.

    Args:
        view: Takes in the states.
        changed: Told of each object that changed or is gone, after the view.
        cluster: The API server.
        watches: Look after what kopf asks of it.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_kwargs: Any) -> kopf.AiohttpSession:
        # One way to find the API server: the cluster's. kopf comes back here when a token is not taken any more.
        return kopf.AiohttpSession(server=cluster.server, aiohttp_session=cluster.session(watches))

    for kind, resource in _WATCHED.items():
        kopf.on.event(*resource, labels=LABELS.get(kind), registry=registry)(_handler(kind, view, changed))
    return registry


def _handler(kind: Kind, view: View, changed: Callable[[Kind, Object], None]) -> Callable[..., Any]:
    async def on_event(event: kopf.RawEvent, **_: Any) -> None:
        obj: Object = dict(event["object"])
        if event["type"] == "DELETED":
            view.drop(kind, obj)
        else:
            view.put(kind, obj)
        changed(kind, obj)

    on_event.__name__ = f"on_{kind.value[1]}"
    return on_event


class _Backoffs:
    """How long kopf waits before it asks again: for ever, jittered. It would else give up, and end the operator."""

    def __iter__(self) -> Iterator[float]:
        return (backoff(failures, longest_s=_LONGEST_BACKOFF_S) for failures in itertools.count(1))


_NO_FINALIZER = "none, as the API server takes no such name"
"""kopf takes its finalizer away from whatever object has it, without end where it may not: nobody can set this one."""


class _NoDiffs(kopf.DiffBaseStorage):
    """Compares nothing: only change handlers need it, and kopf would copy every object that it sees, level by level."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def kopf_settings(patience_s: float) -> kopf.OperatorSettings:
    """Returns kopf's settings: no peering, no posting of logs, bounded watches.

    Args:
        patience_s: After how long a silence a watch is opened anew.
    """
    result = kopf.OperatorSettings()
    result.peering.standalone = True
    result.posting.enabled = False
    result.posting.loggers = False
    result.persistence.finalizer = _NO_FINALIZER
    result.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{GROUP}")
    result.persistence.diffbase_storage = _NoDiffs()
    result.scanning.disabled = True
    result.watching.server_timeout = 300
    result.watching.client_timeout = 330
    result.watching.label_selectors["v1", "pods"] = f"{MANAGED_BY_LABEL}={MANAGER}"
    result.watching.inactivity_timeout = patience_s
    result.networking.error_backoffs = _Backoffs()
    result.networking.connect_timeout = 10
    result.networking.request_timeout = 60
    result.process.ultimate_exiting_timeout = 20
    return result
