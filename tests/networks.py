"""What NetworkPolicies let through, by their selectors, for nodes whose network enforces none. Ingress alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A pod, as policies see it."""

    namespace: str
    labels: dict[str, str]
    namespace_labels: dict[str, str] = field(default_factory=dict)


def reaches(policies: Iterable[Json], source: Place, target: Place, port: int) -> bool:
    """Whether a connection is let through: by any policy that selects the target, or where none selects it."""
    selecting = [
        one["spec"]
        for one in policies
        if one["metadata"]["namespace"] == target.namespace
        and _selects(one["spec"]["podSelector"], target.labels)
        and "Ingress" in one["spec"]["policyTypes"]
    ]
    rules = [rule for spec in selecting for rule in spec.get("ingress", [])]
    return not selecting or any(_lets_through(rule, source, target, port) for rule in rules)


def _lets_through(rule: Json, source: Place, target: Place, port: int) -> bool:
    ports, peers = rule.get("ports", []), rule.get("from", [])
    fits = not ports or any(one.get("protocol", "TCP") == "TCP" and one["port"] == port for one in ports)
    return fits and (not peers or any(_is(peer, source, target) for peer in peers))


def _is(peer: Json, source: Place, target: Place) -> bool:
    assert not peer.keys() - {"namespaceSelector", "podSelector"}, peer  # addresses are not known here
    if "namespaceSelector" in peer:
        there = _selects(peer["namespaceSelector"], source.namespace_labels)
    else:
        there = source.namespace == target.namespace
    return there and _selects(peer.get("podSelector", {}), source.labels)


def _selects(selector: Json, labels: dict[str, str]) -> bool:
    assert not selector.keys() - {"matchLabels"}, selector
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()
