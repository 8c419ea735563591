"""The NetworkPolicies of `deploy/components`: the API server takes them, and they fit the pods that there are.

Nothing here enforces them: what they let through is read from their selectors, held against a real pod of a run, the
real namespaces, and the operator's pods as its Deployment makes them.
"""

from typing import Any

import pytest
import yaml
from cluster.objects import Json, Objects
from cluster.stack import OPERATOR_NAMESPACE, REPOSITORY, Stack
from networks import Place, reaches
from outhaul_grpc.layout import PORT

COMPONENTS = REPOSITORY / "deploy/components"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
DENY_ALL: Json = {"podSelector": {}, "policyTypes": ["Ingress"]}


def place(stack: Stack, namespace: str, pod: Json) -> Place:
    """A pod's place among real namespaces."""
    found = stack.control_plane.request("GET", f"/api/v1/namespaces/{namespace}")
    return Place(namespace, pod["metadata"]["labels"], found["metadata"].get("labels") or {})


def applied(stack: Stack, component: str, namespace: str) -> Json:
    """Gives a namespace the policy of a component; returns what the API server has made of it."""
    wanted: Json = yaml.safe_load((COMPONENTS / component / "networkpolicy.yaml").read_text())
    wanted["metadata"] = {"name": wanted["metadata"]["name"], "namespace": namespace}
    made: Json = stack.control_plane.request("POST", POLICIES.format(namespace), wanted)
    assert made["spec"] == wanted["spec"]
    return made


@pytest.fixture(scope="module")
def deployment(stack: Stack) -> Json:
    """The operator's Deployment, as kustomize makes it."""
    text = stack.control_plane.kubectl("kustomize", str(REPOSITORY / "deploy"))
    return next(one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment")


@pytest.fixture(scope="module")
def operator(stack: Stack, deployment: Json) -> Place:
    """A pod of the operator."""
    return place(stack, OPERATOR_NAMESPACE, deployment["spec"]["template"])


@pytest.fixture(scope="module")
def run(stack: Stack, shared_objects: Objects) -> Json:
    """A real pod of a run, whose template has tried to take its labels away."""
    labels = {"app.kubernetes.io/managed-by": "me", "app": "web"}
    shared_objects.create("AgentConfig", "default", spec={"podTemplate": {"metadata": {"labels": labels}}})
    spec: dict[str, Any] = {"commands": [{"name": "main", "command": ["true"]}]}
    shared_objects.create("AgentAction", "by-hand", spec=spec)
    shared_objects.ended("by-hand")
    return shared_objects.get("Pod", "by-hand")


@pytest.fixture(scope="module")
def agent(stack: Stack, shared_objects: Objects, run: Json) -> Place:
    """The place of the run's pod."""
    return place(stack, shared_objects.namespace, run)


@pytest.fixture(scope="module")
def policies(stack: Stack, shared_objects: Objects) -> list[Json]:
    """The tenant's policy, in a namespace that denies everything by default."""
    namespace = shared_objects.namespace
    deny = stack.control_plane.request(
        "POST", POLICIES.format(namespace), {"metadata": {"name": "deny-all"}, "spec": DENY_ALL}
    )
    return [deny, applied(stack, "tenant-network-policy", namespace)]


def test_the_operator_reaches_an_agent(policies: list[Json], operator: Place, agent: Place, run: Json) -> None:
    """It does at the port that the pod has, also where all else is denied, which without the policy it would not."""
    (port,) = run["spec"]["containers"][0]["ports"]
    assert (port["containerPort"], port["protocol"]) == (PORT, "TCP")
    assert reaches(policies, operator, agent, PORT)
    assert not reaches(policies[:1], operator, agent, PORT)


def test_nobody_else_reaches_an_agent(policies: list[Json], operator: Place, agent: Place) -> None:
    """Neither a neighbour, nor who has the operator's labels elsewhere, nor another pod of the operator's namespace."""
    neighbour = Place(agent.namespace, {"app": "web"}, agent.namespace_labels)
    pretender = Place("team-b", operator.labels, {"kubernetes.io/metadata.name": "team-b"})
    other = Place(operator.namespace, {"app": "web"}, operator.namespace_labels)
    for source in (neighbour, pretender, other, agent):
        assert not reaches(policies, source, agent, PORT)
        assert not reaches(policies[1:], source, agent, PORT)
    assert reaches([], neighbour, agent, PORT)


def test_an_agent_has_one_port(policies: list[Json], operator: Place, agent: Place) -> None:
    """What a command listens on is not reached, not even by the operator."""
    assert not reaches(policies, operator, agent, 8080)


def test_other_pods_are_as_before(policies: list[Json], agent: Place) -> None:
    """The policy says nothing about an application beside the runs."""
    application = Place(agent.namespace, {"app": "web"}, agent.namespace_labels)
    visitor = Place(agent.namespace, {"app": "client"}, agent.namespace_labels)
    assert reaches(policies[1:], visitor, application, 80)
    assert not reaches(policies, visitor, application, 80)


def test_metrics_are_for_who_is_allowed(stack: Stack, deployment: Json, operator: Place, agent: Place) -> None:
    """The operator's one port is reached from namespaces with the label, and by nobody else."""
    policy = applied(stack, "network-policy", OPERATOR_NAMESPACE)
    stack.control_plane.request("DELETE", f"{POLICIES.format(OPERATOR_NAMESPACE)}/{policy['metadata']['name']}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = [one["containerPort"] for one in container["ports"]]
    monitor = Place("monitoring", {}, {"outhaul.dev/metrics": "allowed"})
    assert reaches([policy], monitor, operator, port)
    assert not reaches([policy], monitor, operator, port + 1)
    for source in (agent, Place("monitoring", {}, {}), Place(operator.namespace, {}, operator.namespace_labels)):
        assert not reaches([policy], source, operator, port)
