"""One namespace of a cluster in which Outhaul works: make objects, wait for what becomes of them, read it decoded."""

import base64
import json
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from cluster.client import Client
from cluster.controlplane import ControlPlane
from cluster.errors import NotInTime, RequestFailed
from cluster.waiting import until

T = TypeVar("T")
Json = dict[str, Any]

NOT_FOUND = 404
DEADLINE = 120.0
"""Seconds in which anything has to happen that a test waits for; most of it takes one or two."""

_OURS = "/apis/outhaul.dev/v1alpha1"
_PATHS = {
    "Installation": (_OURS, "installations"),
    "AgentAction": (_OURS, "agentactions"),
    "AgentConfig": (_OURS, "agentconfigs"),
    "InstallationOutput": (_OURS, "installationoutputs"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "LimitRange": ("/api/v1", "limitranges"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "Pod": ("/api/v1", "pods"),
}
LEFT_BY_RUNS = ("Pod", "Secret", "Lease", "AgentAction", "InstallationOutput")
"""Kinds that runs leave objects of."""


class Objects:
    """The objects of one namespace.

    Args:
        control_plane: the cluster.
        namespace: the namespace; it exists.
        client: who asks; the administrator when not given.
    """

    def __init__(self, control_plane: ControlPlane, namespace: str, client: Client | None = None) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self._client = client or control_plane

    # -- writing

    def create(self, kind: str, name: str, **fields: Any) -> Json:
        """Creates an object; `fields` are its top-level fields beside `metadata`, which may be among them."""
        base, _ = _PATHS[kind]
        version = base.removeprefix("/apis/").removeprefix("/api/")
        metadata = {"name": name, "namespace": self.namespace, **fields.pop("metadata", {})}
        body = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
        answer: Json = self._client.request("POST", self._path(kind), body)
        return answer

    def install(self, name: str, **spec: Any) -> Json:
        """Creates an Installation of this spec."""
        return self.create("Installation", name, spec=spec)

    def limit(self, name: str, hard: dict[str, str]) -> None:
        """Creates a ResourceQuota and waits until it is in force; until all is counted, it refuses in other words.

        A controller that did not know a kind when the quota was made (it looks for new ones every 30 s) counts it in
        five minutes, or in another quota: so it is made again.
        """

        def counted(one: Json) -> bool:
            return all(what in one.get("status", {}).get("used", {}) for what in hard)

        def is_in_force() -> bool:
            self.create("ResourceQuota", name, spec={"hard": hard})
            try:
                return bool(self.until("ResourceQuota", name, counted, what="it is in force", timeout=10))
            except NotInTime:
                self.delete("ResourceQuota", name)
                return False

        until(is_in_force, what=f"ResourceQuota {name} to count {', '.join(hard)}", timeout=DEADLINE)

    def patch(self, kind: str, name: str, body: Json) -> Json:
        """Applies a JSON merge patch."""
        path = self._path(kind, name)
        answer: Json = self._client.request("PATCH", path, body, content_type="application/merge-patch+json")
        return answer

    def respec(self, name: str, **spec: Any) -> Json:
        """Changes fields of an Installation's spec."""
        return self.patch("Installation", name, {"spec": spec})

    def annotate(self, name: str, annotations: dict[str, str]) -> Json:
        """Annotates an Installation."""
        return self.patch("Installation", name, {"metadata": {"annotations": annotations}})

    def delete(self, kind: str, name: str) -> None:
        """Asks for an object's deletion, and does not wait for it."""
        self._client.request("DELETE", self._path(kind, name), {"propagationPolicy": "Background"})

    # -- reading

    def find(self, kind: str, name: str) -> Json | None:
        """Returns an object, or None."""
        try:
            answer: Json = self._client.request("GET", self._path(kind, name))
        except RequestFailed as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return answer

    def get(self, kind: str, name: str) -> Json:
        """Returns an object that exists."""
        found = self.find(kind, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def all(self, kind: str) -> list[Json]:
        """Returns the objects of a kind, the oldest first."""
        items: list[Json] = self._client.request("GET", self._path(kind))["items"]
        return sorted(items, key=lambda one: int(one["metadata"]["resourceVersion"]))

    def names(self, kind: str) -> list[str]:
        """Returns the names of a kind's objects."""
        return sorted(one["metadata"]["name"] for one in self.all(kind))

    def runs(self, installation: str) -> list[Json]:
        """Returns an Installation's AgentActions, by number."""
        theirs = [one for one in self.all("AgentAction") if _reference(one).get("name") == installation]
        return sorted(theirs, key=lambda one: int(_reference(one)["number"]))

    def records(self, installation: str) -> dict[str, str]:
        """Returns the phase of each of an Installation's records, by name."""
        items = self.all("InstallationOutput")
        theirs = [one for one in items if one["spec"].get("installation") == installation]
        return {one["metadata"]["name"]: one["status"]["phase"] for one in theirs}

    def secret(self, name: str) -> dict[str, bytes]:
        """Returns the data of a Secret, decoded."""
        return {key: base64.b64decode(value) for key, value in self.get("Secret", name).get("data", {}).items()}

    def events(self, kind: str, name: str) -> list[tuple[str, str, str]]:
        """Returns type, reason and message of the events about an object."""
        return [
            (one["type"], one["reason"], one["message"])
            for one in self.all("Event")
            if (one["involvedObject"]["kind"], one["involvedObject"]["name"]) == (kind, name)
        ]

    def left(self, kinds: Iterable[str] = LEFT_BY_RUNS) -> list[str]:
        """Returns what there is of some kinds, as `Kind/name`."""
        return [f"{kind}/{name}" for kind in kinds for name in self.names(kind)]

    # -- waiting

    def until(
        self, kind: str, name: str, probe: Callable[[Json], T | None], *, what: str, timeout: float = DEADLINE
    ) -> T:
        """Waits until an object exists and `probe` returns something true about it, and returns that."""
        seen: list[Json] = []

        def look() -> T | None:
            found = self.find(kind, name)
            seen[:] = [found] if found is not None else []
            return probe(found) if found is not None else None

        try:
            return until(look, what=f"{kind} {name}: {what}", timeout=timeout)
        except NotInTime as error:
            state = json.dumps(seen[0].get("status", {}), indent=1) if seen else "it does not exist"
            raise NotInTime(f"{error}; {state}") from None

    def condition(
        self,
        kind: str,
        name: str,
        type_: str,
        status: str = "True",
        reason: str | None = None,
        *,
        timeout: float = DEADLINE,
    ) -> Json:
        """Waits until an object's condition says this of its newest generation; returns the condition."""

        def probe(obj: Json) -> Json | None:
            found = condition_of(obj, type_)
            current = found is not None and found.get("observedGeneration") in {None, obj["metadata"]["generation"]}
            fits = found is not None and found["status"] == status and reason in {None, found["reason"]}
            return found if current and fits else None

        return self.until(kind, name, probe, what=f"{type_} is {status} ({reason or 'any reason'})", timeout=timeout)

    def ready(self, name: str, *, timeout: float = DEADLINE) -> Json:
        """Waits until an Installation is ready at its newest generation; returns it. Fails at once where it stalls."""

        def probe(obj: Json) -> Json | None:
            if obj.get("status", {}).get("observedGeneration") != obj["metadata"]["generation"]:
                return None
            stalled = condition_of(obj, "Stalled")
            assert stalled is None, f"Installation {name} is stalled: {stalled}"
            found = condition_of(obj, "Ready")
            return obj if found is not None and found["status"] == "True" else None

        return self.until("Installation", name, probe, what="it is ready", timeout=timeout)

    def ran(self, name: str, number: int, *, timeout: float = DEADLINE) -> Json:
        """Waits until the run of this number has ended and its Installation has taken note; returns the AgentAction."""

        def probe(obj: Json) -> Json | None:
            action: Json = obj.get("status", {}).get("action", {})
            return action if action.get("number") == number and action.get("phase") else None

        action = self.until("Installation", name, probe, what=f"run {number} has ended", timeout=timeout)
        return self.get("AgentAction", action["name"])

    def ended(self, action: str, *, timeout: float = DEADLINE) -> Json:
        """Waits until a run has ended; returns its AgentAction."""

        def probe(obj: Json) -> Json | None:
            return obj if obj.get("status", {}).get("phase") in {"Succeeded", "Failed", "Cancelled"} else None

        return self.until("AgentAction", action, probe, what="it has ended", timeout=timeout)

    def said(self, kind: str, name: str, type_: str, reason: str) -> str:
        """Waits for an event about an object; returns its message."""

        def look() -> str | None:
            found = [message for one, why, message in self.events(kind, name) if (one, why) == (type_, reason)]
            return found[-1] if found else None

        return until(look, what=f"an event {type_} {reason} of {kind} {name}", timeout=DEADLINE)

    def gone(self, kind: str, name: str, *, timeout: float = DEADLINE) -> None:
        """Waits until an object is gone."""
        until(lambda: self.find(kind, name) is None, what=f"{kind} {name} is gone", timeout=timeout)

    def settle(self) -> None:
        """Waits until the operator has seen everything so far, and had time to do something about it.

        It takes what happens in order, so an Installation that is made now and refused is refused after the rest. That
        one is in another namespace: what the operator asks because of it is not what this one's objects cost.
        """
        name = f"fence-{time.monotonic_ns()}"
        aside = Objects(self.control_plane, "default")
        aside.install(name, engine="no-such-engine")
        aside.condition("Installation", name, "Stalled")
        aside.delete("Installation", name)
        aside.gone("Installation", name)

    def abandon(self) -> None:
        """Lets every Installation go without an uninstall, and every run and pod.

        The namespace stays: for each one that goes, Kubernetes asks for the objects of every kind that it knows.
        """
        for name in self.names("Installation"):
            # One may be going by itself.
            with suppress(RequestFailed):
                self.respec(name, deletionPolicy="Orphan")
                self.delete("Installation", name)
        for kind in ("AgentAction", "Pod"):
            # The namespace may be going.
            with suppress(RequestFailed):
                self._client.request("DELETE", self._path(kind), {"propagationPolicy": "Background"})

    def delete_namespace(self) -> None:
        """Asks for the namespace's deletion, and does not wait for it; one that is gone is fine."""
        self._has_namespace("DELETE")

    def namespace_gone(self, *, timeout: float = 150.0) -> None:
        """Waits until the namespace is gone with all that is in it: its controller tries again at growing intervals."""
        until(
            lambda: not self._has_namespace("GET"),
            what=f"namespace {self.namespace} is gone",
            timeout=timeout,
            interval=0.5,
        )

    def _has_namespace(self, verb: str) -> bool:
        """Asks something of the namespace; returns whether it is there."""
        try:
            self.control_plane.request(verb, f"/api/v1/namespaces/{self.namespace}")
        except RequestFailed as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    def _path(self, kind: str, name: str | None = None) -> str:
        base, plural = _PATHS[kind]
        path = f"{base}/namespaces/{self.namespace}/{plural}"
        return path if name is None else f"{path}/{name}"


def script(*texts: str, **fields: Any) -> Json:
    """The spec of an Installation whose steps are shell scripts: `main`, or `first`, `second`, `third`."""
    names = ("main",) if len(texts) == 1 else ("first", "second", "third")[: len(texts)]
    steps = [{"name": name, "command": ["sh", "-c", text]} for name, text in zip(names, texts, strict=True)]
    return {"engine": "exec", "commands": {"install": steps}, **fields}


def condition_of(obj: Json, type_: str) -> Json | None:
    """Returns an object's condition of a type, or None."""
    conditions: list[Json] = obj.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == type_), None)


def requests_in(events: Iterable[Json], namespace: str, verbs: Collection[str]) -> list[str]:
    """Returns those of an audit log's requests that are of one namespace, as `verb path -> status`, in order."""
    return [
        f"{one['verb']} {one['requestURI']} -> {one['responseStatus']['code']}"
        for one in events
        if one.get("objectRef", {}).get("namespace") == namespace and one["verb"] in verbs
    ]


def _reference(action: Json) -> Json:
    reference: Json = action["spec"].get("installation", {})
    return reference
