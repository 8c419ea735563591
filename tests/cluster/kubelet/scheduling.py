"""Binds pods to this node, as a scheduler of a cluster with one node would.

The decision is pure: `misfit` says why a pod does not go here, in the real scheduler's words.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from cluster.kubelet.api import Json

QUANTITY = re.compile(r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)([a-zA-Z]*)")
SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
Amounts = dict[str, Decimal]


def quantity(text: str) -> Decimal:
    """A Kubernetes quantity as a number."""
    match = QUANTITY.fullmatch(str(text))
    if match is None or match[2] not in SUFFIXES:
        raise ValueError(f"not a quantity: {text}")
    return Decimal(match[1]) * SUFFIXES[match[2]]


def requests(spec: Json) -> Amounts:
    """What a pod requests: the sum of its containers, or one init container's where that is more."""
    total = {"pods": Decimal(1)}
    for container in spec["containers"]:
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Decimal(0)) + quantity(amount)
    for container in spec.get("initContainers", []):
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            total[name] = max(total.get(name, Decimal(0)), quantity(amount))
    return total


def misfit(spec: Json, node: Json, others: Iterable[Json]) -> str | None:
    """Why a pod does not go to a node.

    Args:
        spec: The pod's spec.
        node: The node.
        others: The specs of the pods that take their share of it.

    Returns:
        The message of the PodScheduled condition; None where the pod fits.
    """
    reasons = []
    if node["spec"].get("unschedulable"):
        reasons.append("1 node(s) were unschedulable")
    elif not _selected(spec, node["metadata"].get("labels", {})):
        reasons.append("1 node(s) didn't match Pod's node affinity")
    else:
        used: Amounts = {}
        for other in others:
            for name, amount in requests(other).items():
                used[name] = used.get(name, Decimal(0)) + amount
        capacity = node["status"].get("allocatable", {})
        for name, amount in sorted(requests(spec).items()):
            if amount and used.get(name, Decimal(0)) + amount > quantity(capacity.get(name, "0")):
                reasons.append("1 Too many pods" if name == "pods" else f"1 Insufficient {name}")
    return f"0/1 nodes are available: {', '.join(reasons)}." if reasons else None


def _selected(spec: Json, labels: Mapping[str, str]) -> bool:
    """Whether nodeSelector and required node affinity match."""
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(
        all(_matches(expression, labels) for expression in term.get("matchExpressions", []))
        for term in required["nodeSelectorTerms"]
    )


def _matches(expression: Json, labels: Mapping[str, str]) -> bool:
    """Whether labels match one requirement."""
    value, values = labels.get(expression["key"]), expression.get("values", [])
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case _:
            return value is not None and int(value) < int(values[0])
