"""Secrets and ConfigMaps that pods use: read when needed, and a signal when one changed.

Two watches for the whole cluster carry names and versions only, so a thousand Secrets of others cost nothing.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cluster.kubelet.api import Api, ApiError, Json, Relisted

NOT_FOUND = 404
PLURALS = {"Secret": "secrets", "ConfigMap": "configmaps"}


@dataclass(frozen=True)
class Ref:
    """Names one Secret or ConfigMap."""

    kind: str
    namespace: str
    name: str


class Sources:
    """Reads Secrets and ConfigMaps and tells who uses one that it changed."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: dict[Ref, set[asyncio.Event]] = defaultdict(set)

    async def read(self, ref: Ref) -> Json | None:
        """The object as it is now, or None where it does not exist."""
        path = f"/api/v1/namespaces/{ref.namespace}/{PLURALS[ref.kind]}/{ref.name}"
        try:
            return await self._api.call("GET", path)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    @contextlib.contextmanager
    def notify(self, refs: Iterable[Ref]) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of the objects may have changed."""
        changed = asyncio.Event()
        mine = set(refs)
        for ref in mine:
            self._waiting[ref].add(changed)
        try:
            yield changed
        finally:
            for ref in mine:
                self._waiting[ref].discard(changed)
                if not self._waiting[ref]:
                    del self._waiting[ref]

    async def follow(self, kind: str) -> None:
        """Watch one kind, for ever."""
        async for event in self._api.follow(f"/api/v1/{PLURALS[kind]}", metadata_only=True):
            if isinstance(event, Relisted):
                concerned = [waiting for ref, waiting in self._waiting.items() if ref.kind == kind]
            else:
                metadata = event.item["metadata"]
                found = self._waiting.get(Ref(kind, metadata["namespace"], metadata["name"]))
                concerned = [found] if found else []
            for waiting in concerned:
                for changed in waiting:
                    changed.set()
