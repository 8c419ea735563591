"""Whether a run is to stop: an annotation on its AgentAction says so, or a new one on its Installation.

`runs` then has the pod deleted. The agent tells the command to stop and lets it finish within the pod's grace.
"""

import asyncio

from outhaul_api.vocabulary import CANCEL_ANNOTATION, FORMER_CANCEL_ANNOTATION

from outhaul_operator import ownership
from outhaul_operator.kinds import Object
from outhaul_operator.view import Key, View


def is_asked(action: Object, installation: Object | None) -> bool:
    """Tells whether an AgentAction's run is to stop. Pure.

    Args:
        action: The AgentAction.
        installation: Its Installation, if it has one and that was seen.
    """
    annotations = action["metadata"].get("annotations", {})
    if CANCEL_ANNOTATION in annotations:
        return True
    token = installation["metadata"].get("annotations", {}).get(CANCEL_ANNOTATION) if installation is not None else None
    return bool(token) and token != annotations.get(FORMER_CANCEL_ANNOTATION)


async def listen(view: View, action: Object, key: Key, pod: Key, asked: asyncio.Event) -> None:
    """Sets an event once a run is to stop, and wakes who waits for its pod.

    Args:
        view: Where it is seen.
        action: The run's AgentAction.
        key: Its key.
        pod: The pod's key.
        asked: The event.
    """
    owner = ownership.controller_of(action)
    while True:
        changes = [view.changed(one) for one in (key, owner) if one is not None]
        now = view.get(key)
        if now is not None and is_asked(now, view.get(owner) if owner is not None else None):
            asked.set()
            view.touch(pod)
            return
        waits = [asyncio.ensure_future(change.wait()) for change in changes]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
