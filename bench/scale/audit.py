"""The API server's audit log, read from where one has left off."""

import json
import uuid
from collections import Counter
from collections.abc import Container, Iterable
from datetime import datetime
from typing import Any

from cluster import waiting
from cluster.controlplane import ControlPlane
from cluster.stack import operator_user

Json = dict[str, Any]


class Audit:
    """Reads what was logged since it was made, or read last."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._read: int = plane.audit_log.stat().st_size

    def read(self) -> list[Json]:
        """Returns the requests that were answered since the last time."""
        self._catch_up()
        with self._plane.audit_log.open("rb") as log:
            log.seek(self._read)
            lines = log.read().splitlines(keepends=True)
        self._read += sum(map(len, lines))
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def _catch_up(self) -> None:
        marker = f"/readyz?caught-up={uuid.uuid4()}"
        self._plane.request("GET", marker)

        def is_there() -> bool:
            with self._plane.audit_log.open("rb") as log:
                log.seek(max(0, self._plane.audit_log.stat().st_size - (1 << 16)))
                return marker.encode() in log.read()

        waiting.until(is_there, what="the audit log to catch up", timeout=30)


def of_operator(events: Iterable[Json]) -> Counter[str]:
    """Counts the operator's requests by verb, resource and answer; watches, which last, are left out."""
    counted: Counter[str] = Counter()
    for one in events:
        if one["user"].get("username") != operator_user() or one["verb"] == "watch":
            continue
        about = one.get("objectRef", {"resource": one["requestURI"]})
        resource = "/".join(filter(None, [about["resource"], about.get("subresource")]))
        counted[f"{one['verb']} {resource} {one.get('responseStatus', {}).get('code', 'none')}"] += 1
    return counted


def written(events: Iterable[Json], names: Container[str]) -> dict[str, float]:
    """Returns when each of these Secrets was first written, by name."""
    found: dict[str, float] = {}
    for one in events:
        about = one.get("objectRef", {})
        if about.get("resource") != "secrets" or one["verb"] not in {"create", "patch"}:
            continue
        if one["responseStatus"]["code"] in {200, 201} and about.get("name") in names:
            found.setdefault(about["name"], datetime.fromisoformat(one["stageTimestamp"]).timestamp())
    return found
