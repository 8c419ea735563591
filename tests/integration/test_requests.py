"""What the operator asks of the API server, by the server's own audit log: few writes, no polling, no Secret read."""

from typing import Any

import pytest
from cluster.objects import Json, Objects
from cluster.stack import OPERATOR_NAMESPACE, Stack, operator_user

WRITES = {"create", "update", "patch", "delete"}
MOST_WRITES = 13
SPEC: dict[str, Any] = {
    "engine": "exec",
    "commands": {"install": [{"name": "main", "command": ["sh", "-c", 'printf up > "$OUTHAUL_OUTPUTS/state"']}]},
}
READS = {
    "get installations": 1,  # the newest state, before a run is made from it
    "get agentactions": 2,  # is there one already, before it is made; and the newest state, before it is started
    "get agentconfigs": 2,  # the namespace's `default`: for the plan, and for the pod
    "get installationoutputs": 1,  # the names for the Installation's status
}
"""What one run may read in its namespace, and why; nothing of it is repeated while the run goes on."""


def requests_of(stack: Stack, namespace: str, since: int) -> list[Json]:
    """Returns the operator's requests from the audit log, without those that concern another namespace."""
    events = stack.control_plane.audit_events(operator_user())[since:]
    return [one for one in events if one.get("objectRef", {}).get("namespace") in {namespace, None}]


def resource_of(request: Json) -> str:
    """Returns what a request is about, such as `pods` or `installations/status`."""
    reference = request.get("objectRef", {"resource": request["requestURI"]})
    return "/".join(filter(None, [reference["resource"], reference.get("subresource")]))


def told(requests: list[Json]) -> str:
    """Returns requests for people, one a line."""
    return "\n".join(f"{one['verb']:6} {one['requestURI']} -> {one['responseStatus']['code']}" for one in requests)


def one_run(objects: Objects, stack: Stack, script: str) -> list[Json]:
    """Carries out one run that succeeds; returns the requests that the operator made for it."""
    objects.settle()
    before = len(stack.control_plane.audit_events(operator_user()))
    command = {"name": "main", "command": ["sh", "-c", script]}
    objects.install("service", engine="exec", commands={"install": [command]})
    run = objects.ready("service")["status"]["action"]["name"]
    objects.said("Installation", "service", "Normal", "Succeeded")
    objects.until("Pod", run, lambda one: one["status"]["phase"] == "Succeeded", what="it has ended")
    return requests_of(stack, objects.namespace, before)


def test_a_short_run_takes_few_writes(objects: Objects, stack: Stack) -> None:
    """One short successful run after start-up takes at most 13 writes, events and guarded reads included."""
    requests = one_run(objects, stack, 'printf up > "$OUTHAUL_OUTPUTS/state"')
    writes = [one for one in requests if one["verb"] in WRITES]
    assert len(writes) <= MOST_WRITES, told(writes)


def test_a_run_is_not_polled(objects: Objects, stack: Stack) -> None:
    """A run that takes some seconds costs the reads that start and end it, each for a reason, and no others."""
    requests = one_run(objects, stack, 'sleep 5; printf up > "$OUTHAUL_OUTPUTS/state"')
    reads: dict[str, int] = {}
    for one in requests:
        if one["verb"] not in WRITES | {"watch"}:
            name = f"{one['verb']} {resource_of(one)}"
            reads[name] = reads.get(name, 0) + 1
    assert reads.keys() <= READS.keys(), told(requests)
    assert all(count <= READS[name] for name, count in reads.items()), f"{reads}\n{told(requests)}"


def test_nothing_is_asked_while_nothing_happens(objects: Objects, stack: Stack) -> None:
    """While an agent works for seconds and nothing changes, the operator asks the API server nothing."""
    command = {"name": "main", "command": ["sleep", "6"]}
    objects.install("service", engine="exec", commands={"install": [command]})
    run = objects.until("Installation", "service", lambda one: one.get("status", {}).get("action"), what="it has a run")
    objects.condition("AgentAction", run["name"], "Started")
    objects.condition("Installation", "service", "Reconciling")
    objects.settle()
    before = len(stack.control_plane.audit_events(operator_user()))
    objects.ended(run["name"])
    during = requests_of(stack, objects.namespace, before)
    ended = next(number for number, one in enumerate(during) if resource_of(one) == "secrets")
    assert [one for one in during[:ended] if one["verb"] != "watch"] == [], told(during)


def test_secrets_are_never_read(objects: Objects, stack: Stack) -> None:
    """Through a whole life the operator never gets, lists or watches a Secret outside its own namespace."""
    uninstall = [{"name": "stop", "command": ["true"]}]
    objects.install("service", **SPEC | {"commands": SPEC["commands"] | {"uninstall": uninstall}})
    objects.ready("service")
    objects.respec("service", parameters={"changed": True})
    objects.ready("service")
    stack.kill_operator()
    stack.start_operator()
    objects.annotate("service", {"outhaul.dev/retry": "again"})
    objects.ran("service", 3)
    objects.respec("service", outputs={"secretName": "elsewhere"})
    objects.until("Secret", "elsewhere", lambda _: True, what="it is there")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    asked: dict[str | None, set[str]] = {}
    for one in stack.control_plane.audit_events(operator_user()):
        if resource_of(one) == "secrets":
            asked.setdefault(one["objectRef"].get("namespace"), set()).add(one["verb"])
    assert asked[objects.namespace] == {"create", "patch", "delete"}
    assert asked[OPERATOR_NAMESPACE] <= {"get", "create", "update"}
    assert None not in asked, "a request for the Secrets of all namespaces"


@pytest.mark.parametrize("verb", ["get", "list", "watch"])
def test_the_operator_may_not_read_secrets(objects: Objects, stack: Stack, verb: str) -> None:
    """The API server would refuse it too, in a namespace whose people have not said otherwise."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": operator_user(),
            "resourceAttributes": {"namespace": objects.namespace, "verb": verb, "resource": "secrets"},
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert stack.control_plane.request("POST", path, review)["status"]["allowed"] is False
