"""Kubernetes events, once a fact: the event's name is derived from the fact, so a repeated step says nothing twice."""

import hashlib
import logging
from typing import Literal

from outhaul_api.vocabulary import MANAGER, Reason

from outhaul_operator.apierrors import AlreadyExistsError, ApiError, RefusedError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.verdicts import now

EventType = Literal["Normal", "Warning"]
_MAX_MESSAGE = 1024

_logger = logging.getLogger(__name__)


async def emit(
    cluster: Cluster,
    obj: Object,
    type_: EventType,
    reason: Reason,
    message: str,
    *,
    fact: str = "",
    must: bool = False,
) -> None:
    """Says something about an object, unless it was said.

    Called before the status says the same: who is broken off in between says it again, under the same name.

    Args:
        cluster: Where to.
        obj: What it is about.
        type_: Warning where a person should look.
        reason: In one word.
        message: For people; cut at 1,024 characters.
        fact: Tells this fact from others with the same reason and message, as a run's name does.
        must: Whether it is an error if it cannot be said; else that holds nothing up.

    Raises:
        ApiError: It must be said, and could not.
    """
    metadata = obj["metadata"]
    about = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
    }
    try:
        await _post(cluster, _event(metadata["namespace"], about, (type_, reason, message), fact))
    except ApiError as error:
        if must:
            raise
        _logger.warning("%s: %s (there is no event of it: %s)", reason, message, error)


async def emit_of_namespace(cluster: Cluster, namespace: str, reason: Reason, message: str, *, fact: str) -> None:
    """Warns of something in a namespace that takes no events any more, where events of namespaces are: in `default`."""
    about = {"apiVersion": "v1", "kind": "Namespace", "name": namespace}
    await _post(cluster, _event("default", about, ("Warning", reason, message), fact))


def _event(namespace: str, about: Object, said: tuple[EventType, Reason, str], fact: str) -> Object:
    type_, reason, message = said
    digest = hashlib.sha256("\0".join([about.get("uid", ""), *said, fact]).encode()).hexdigest()[:16]
    time = now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about['name'][:230].rstrip('-.')}.{digest}", "namespace": namespace},
        "involvedObject": about,
        "type": type_,
        "reason": reason,
        "message": message[:_MAX_MESSAGE],
        "source": {"component": MANAGER},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


async def _post(cluster: Cluster, body: Object) -> None:
    try:
        await cluster.create(Kind.EVENT, body)
    except (AlreadyExistsError, RefusedError):
        # Said before; or the namespace takes nothing new, as one that is being deleted.
        return
    _logger.log(
        logging.WARNING if body["type"] == "Warning" else logging.INFO, "%s: %s", body["reason"], body["message"]
    )
