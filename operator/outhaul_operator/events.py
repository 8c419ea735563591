"""Kubernetes events, once a fact: the event's name is derived from the fact, so a repeated step says nothing twice."""

import hashlib
from typing import Literal

from outhaul_api.vocabulary import MANAGER, Reason

from outhaul_operator.cluster import AlreadyExistsError, Cluster, Kind, Object, RefusedError
from outhaul_operator.verdicts import now

EventType = Literal["Normal", "Warning"]
_MAX_MESSAGE = 1024


async def emit(
    cluster: Cluster, obj: Object, type_: EventType, reason: Reason, message: str, *, fact: str = ""
) -> None:
    """Says something about an object, unless it was said.

    Args:
        cluster: Where to.
        obj: What it is about.
        type_: Warning where a person should look.
        reason: In one word.
        message: For people; cut at 1,024 characters.
        fact: Tells this fact from others with the same reason and message, as a run's name does.
    """
    metadata = obj["metadata"]
    digest = hashlib.sha256("\0".join([metadata["uid"], type_, reason, message, fact]).encode()).hexdigest()[:16]
    time = now()
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:230].rstrip('-.')}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": type_,
        "reason": reason,
        "message": message[:_MAX_MESSAGE],
        "source": {"component": MANAGER},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
    try:
        await cluster.create(Kind.EVENT, body)
    except (AlreadyExistsError, RefusedError):
        # Said before; or the namespace takes nothing new, as one that is being deleted.
        return
