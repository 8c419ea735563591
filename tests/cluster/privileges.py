"""What accounts of Outhaul asked of the API server during the tests, and what the manifests of `deploy/` let them.

Each control plane on which they were at work records at its end what its audit log says; `tests/privileges` compares
when all suites have run. Only `make test` does that, and says by a variable where the recordings are kept.
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cluster.client import USER_AGENT
from cluster.controlplane import ControlPlane
from cluster.stack import OPERATOR_NAMESPACE, REPOSITORY

FOLDER_VARIABLE = "OUTHAUL_PRIVILEGES"
"""Names the folder of the recordings; without it nothing is recorded."""

_ACCOUNT = "system:serviceaccount:"
_OURS = "outhaul-"
_DEFAULT_ROLE = 'of ClusterRole "system:'
"""In the audit log's reason: a role that every account has, such as the right to ask what it may do."""


class Use(NamedTuple):
    """A request that was allowed, without what does not matter for a right."""

    account: str
    verb: str
    group: str
    resource: str
    """With its subresource, as in `installations/status`."""
    place: str
    """`own`: the account's own namespace; `other`; `cluster`: all namespaces, or an object of none."""
    name: str
    """Of the object; empty where the request names none."""
    reason: str
    """The API server's own account of why it was allowed."""


class Grant(NamedTuple):
    """One verb on one resource that a role of the manifests gives to an account."""

    role: str
    account: str
    verb: str
    group: str
    resource: str
    place: str
    """Where its binding has it count: as in a use, or `everywhere`."""
    name: str
    """The only object that it is for; empty: all."""

    def allows(self, use: Use) -> bool:
        """Whether it is enough for a use."""
        same = (self.account, self.verb, self.group, self.resource) == (use.account, use.verb, use.group, use.resource)
        return same and self.place in {"everywhere", use.place} and self.name in {"", use.name}


def record(plane: ControlPlane) -> None:
    """Writes down what the accounts were allowed. A watch counts once it has ended, so let them end before."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    uses = sorted({use for event in plane.audit_events() if (use := _use(event)) is not None})
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{uuid.uuid4().hex}.json").write_text(json.dumps(uses))


def recorded(folder: Path) -> set[Use]:
    """What was recorded by all control planes."""
    return {Use(*fields) for file in folder.glob("*.json") for fields in json.loads(file.read_text())}


def granted(folder: Path = REPOSITORY / "deploy") -> set[Grant]:
    """What the manifests grant to our accounts, examples left aside."""
    grants: set[Grant] = set()
    for part in (folder / "operator", *sorted((folder / "components").iterdir())):
        home = "own" if part.name == "operator" else None
        grants |= set(_grants(_objects(part) + _objects(folder / "operator"), _objects(part), home))
    return grants


def _use(event: dict[str, Any]) -> Use | None:
    user, about = event["user"].get("username", ""), event.get("objectRef")
    _, _, identity = user.partition(_ACCOUNT)
    namespace, _, account = identity.partition(":")
    notes = event.get("annotations", {})
    allowed = notes.get("authorization.k8s.io/decision") == "allow"
    reason = notes.get("authorization.k8s.io/reason", "")
    is_test = event.get("userAgent") == USER_AGENT
    if not (account.startswith(_OURS) and about and allowed) or is_test or _DEFAULT_ROLE in reason:
        return None
    where = about.get("namespace")
    return Use(
        account=account,
        verb=event["verb"],
        group=about.get("apiGroup", ""),
        resource="/".join(filter(None, [about["resource"], about.get("subresource")])),
        place="cluster" if where is None else "own" if where == namespace else "other",
        # Names of runs are random; a name matters where a role has it.
        name=about.get("name", "") if where == OPERATOR_NAMESPACE == namespace else "",
        reason=reason,
    )


def _objects(folder: Path) -> list[dict[str, Any]]:
    files = [file for file in sorted(folder.glob("*.yaml")) if file.name != "kustomization.yaml"]
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def _grants(objects: Iterable[dict[str, Any]], bindings: Iterable[dict[str, Any]], home: str | None) -> Iterator[Grant]:
    """Yields what the bindings give, of roles among the objects."""
    roles = {(one["kind"], one["metadata"]["name"]): one for one in objects if "rules" in one}
    for binding in bindings:
        for subject in binding.get("subjects", []):
            reference = binding["roleRef"]["kind"], binding["roleRef"]["name"]
            # A component's role counts in the namespace that it is added to, unless it names one: for its own account
            # that is its own one.
            there = binding["metadata"].get("namespace")
            own = home or ("other" if subject["namespace"] == OPERATOR_NAMESPACE != there else "own")
            place = "everywhere" if binding["kind"] == "ClusterRoleBinding" else own
            for rule in roles[reference]["rules"]:
                for group, resource, verb, name in product(
                    rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
                ):
                    yield Grant(" ".join(reference), subject["name"], verb, group, resource, place, name)
