"""Looks at everything now and then, and soon after a watch had a gap: repairs what no watch event has told.

kopf says nothing of objects that vanished while it did not watch.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from outhaul_operator.apierrors import ApiError
from outhaul_operator.cluster import Cluster
from outhaul_operator.handlers import LABELS
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.view import Key, View, key_of

_SOON_S = 1.0
"""So long after a gap, since the watches of other kinds have theirs at the same time."""
_AGAIN_S = 10.0
_KINDS = (Kind.INSTALLATION, Kind.AGENT_ACTION, Kind.POD)

_logger = logging.getLogger(__name__)


class Resync:
    """Compares the view with the API server.

    Args:
        cluster: The API server.
        view: Is brought up to date.
        changed: Told of every object, and of each that is gone.
        namespaces: The namespaces to look at; empty: all.
        interval_s: How often.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        changed: Callable[[Kind, Object], None],
        namespaces: Sequence[str],
        interval_s: float,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._changed = changed
        self._namespaces = namespaces
        self._interval_s = interval_s
        self._is_wanted = asyncio.Event()

    def soon(self) -> None:
        """Asks for a look soon."""
        self._is_wanted.set()

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._interval_s * random.uniform(0.9, 1.1)):  # noqa: S311 - jitter
                    await self._is_wanted.wait()
                await asyncio.sleep(_SOON_S)
            except TimeoutError:
                pass
            self._is_wanted.clear()
            try:
                await self._look_at_all()
            except ApiError as error:
                _logger.warning("resync: %s; again in %.0f s", error, _AGAIN_S)
                await asyncio.sleep(_AGAIN_S)
                self._is_wanted.set()
            except Exception:
                # Nothing else repairs what a watch has missed.
                _logger.exception("resync: will be tried again")

    async def _look_at_all(self) -> None:
        for kind in _KINDS:
            known = set(self._view.keys(kind))
            for namespace in self._namespaces or (None,):
                for obj in await self._cluster.list(kind, namespace, LABELS.get(kind, {})):
                    known.discard(key_of(kind, obj))
                    self._view.put(kind, obj)
                    self._changed(kind, obj)
            for key in known:
                await self._forget(key)

    async def _forget(self, key: Key) -> None:
        """Drops what a watch has not said to be gone; it may have been created after the list, so it is asked for."""
        gone = self._view.get(key)
        if gone is not None and not await self._cluster.exists(key.kind, key.namespace, key.name):
            self._view.drop(key.kind, gone)
            self._changed(key.kind, gone)
