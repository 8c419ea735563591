"""Merges a partial pod template over a pod as Kubernetes' strategic merge patch does, for the lists that pods have.

The `kubernetes` package has no strategic merge, and a server-side one would need the pod to exist first. Pure.
"""

import copy
from typing import Any

# The merge keys of the pod API's lists (patchMergeKey in the API's own schema); other lists are replaced.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_REPLACED = {"volumes"}
"""Lists whose items are replaced whole (patchStrategy retainKeys): a volume has one source."""


def merge_template(pod: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of `pod` with the `metadata` and `spec` of `template` over it; null removes a field."""
    result: dict[str, Any] = copy.deepcopy(pod)
    for part in ("metadata", "spec"):
        if isinstance(template.get(part), dict):
            result[part] = _merge(result.get(part, {}), template[part])
    return result


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in over.items():
        old = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(old, dict):
            result[name] = _merge(old, value)
        elif isinstance(value, list) and isinstance(old, list) and name in _MERGE_KEYS:
            result[name] = _merge_list(old, value, _MERGE_KEYS[name], replace=name in _REPLACED)
        else:
            result[name] = copy.deepcopy(value)
    return result


def _merge_list(
    base: list[dict[str, Any]], over: list[dict[str, Any]], key: str, *, replace: bool
) -> list[dict[str, Any]]:
    result = list(base)
    places: dict[str | int | None, int] = {}
    for index, one in enumerate(base):
        places.setdefault(_name(one, key), index)
    for item in over:
        name = _name(item, key)
        place = places.get(name) if name is not None else None
        if place is None:
            places[name] = len(result)
            result.append(copy.deepcopy(item))
        elif replace:
            result[place] = copy.deepcopy(item)
        else:
            result[place] = _merge(result[place], item)
    return result


def _name(item: Any, key: str) -> str | int | None:
    """Returns what an item is found by; None for one that is none, which is left for the API server to refuse."""
    name = item.get(key) if isinstance(item, dict) else None
    return name if isinstance(name, str | int) else None
