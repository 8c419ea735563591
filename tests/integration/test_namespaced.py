"""The operator for one namespace, as deploy/examples/namespaced has it: it has no rights elsewhere, and needs none.

That namespace admits what the Pod Security Standard `restricted` allows, and nothing else.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import privileges
from cluster.controlplane import ControlPlane
from cluster.objects import Json, Objects
from cluster.stack import OPERATOR, OPERATOR_NAMESPACE, REPOSITORY, Stack, operator_user

pytestmark = pytest.mark.versions

TENANT, OTHER = "team-a", "team-b"
SPEC: dict[str, Any] = {
    "engine": "exec",
    "commands": {
        "install": [
            {"name": "main", "command": ["sh", "-c", 'printf "$OUTHAUL_INPUT_word" > "$OUTHAUL_OUTPUTS/word"']}
        ],
        "uninstall": [{"name": "main", "command": ["true"]}],
    },
    "inputs": [{"name": "word", "configMapKeyRef": {"name": "words", "key": "word"}}],
}


@pytest.fixture(scope="module")
def narrow(cluster_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An operator with the rights of the example, on a control plane of its own."""
    plane = ControlPlane(tmp_path_factory.mktemp("narrow"), audit=True).start()
    try:
        command = (sys.executable, "-m", "outhaul_operator", "--namespace", TENANT)
        stack = Stack(plane, operator=command, manifests=REPOSITORY / "deploy/examples/namespaced").start()
        plane.create_namespace(OTHER)
        plane.kubectl("label", "namespace", TENANT, "pod-security.kubernetes.io/enforce=restricted")
        yield stack
        stack.stop()
        privileges.record(plane)
    finally:
        plane.stop(forget=True)


@pytest.fixture
def objects(narrow: Stack) -> Objects:
    """The namespace that the operator works in."""
    return Objects(narrow.control_plane, TENANT)


@pytest.fixture(scope="module")
def requests(narrow: Stack) -> list[Json]:
    """What the operator has asked through the life of an Installation, while there was another one elsewhere."""
    plane = narrow.control_plane
    here, there = Objects(plane, TENANT), Objects(plane, OTHER)
    for objects in (there, here):
        objects.create("ConfigMap", "words", data={"word": "hello"})
        objects.install("service", **SPEC)
    here.ready("service")
    assert here.secret("service-outputs") == {"word": b"hello"}
    here.respec("service", parameters={"changed": True})
    here.ready("service")
    here.delete("Installation", "service")
    here.gone("Installation", "service")
    # A watch is in the log once it has ended.
    plane.processes.stop(OPERATOR, grace=10)
    events = plane.audit_events(operator_user())
    narrow.start_operator()
    return events


def test_it_stays_in_its_namespaces(requests: list[Json]) -> None:
    """Every request about an object is in a namespace that was chosen, or in the operator's own."""
    places = {one["objectRef"].get("namespace") for one in requests if asks_for_objects(one)}
    assert places == {TENANT, OPERATOR_NAMESPACE}


def test_it_is_refused_nothing(requests: list[Json]) -> None:
    """It asks for nothing that its roles do not give it."""
    refused = [
        f"{one['verb']} {one['requestURI']}"
        for one in requests
        if one["annotations"]["authorization.k8s.io/decision"] != "allow"
    ]
    assert refused == []


def test_another_namespace_is_left_alone(narrow: Stack, requests: list[Json]) -> None:
    """An Installation elsewhere has no status, no finalizer and no run."""
    there = Objects(narrow.control_plane, OTHER)
    found = there.get("Installation", "service")
    assert "status" not in found
    assert "finalizers" not in found["metadata"]
    assert there.names("AgentAction") == there.names("Pod") == []


def asks_for_objects(request: Json) -> bool:
    """Whether a request is about objects that are stored, not about what the server knows or what one may do."""
    return request.get("objectRef", {}).get("resource") not in {None, "selfsubjectaccessreviews"}


# -- what the namespace's own policy admits


@pytest.mark.parametrize("account", [None, "worker"])
def test_a_pod_passes_a_restricted_policy(objects: Objects, account: str | None) -> None:
    """A run's pod is admitted as it is, with a service account or without."""
    name = f"plain-{account}".lower()
    if account is not None:
        objects.create("ServiceAccount", account)
    objects.create("AgentConfig", name, spec={} if account is None else {"serviceAccount": account})
    spec = {"commands": [{"name": "main", "command": ["true"]}], "agentConfig": {"name": name}}
    objects.create("AgentAction", name, spec=spec)
    assert objects.ended(name)["status"]["phase"] == "Succeeded"
    pod = objects.get("Pod", name)
    assert pod["spec"]["automountServiceAccountToken"] is (account is not None)


HOST = {"name": "host", "hostPath": {"path": "/"}}


def agent(**context: Any) -> Json:
    """What a podTemplate has to say to give the agent's container this security context."""
    return {"containers": [{"name": "agent", "securityContext": context}]}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param({"hostNetwork": True}, "hostNetwork=true", id="network"),
        pytest.param({"hostPID": True}, "hostPID=true", id="processes"),
        pytest.param({"volumes": [HOST]}, '"hostPath"', id="volume"),
        pytest.param(agent(privileged=True, allowPrivilegeEscalation=True), "privileged=true", id="privileged"),
        pytest.param(agent(capabilities={"add": ["SYS_ADMIN"]}), '"SYS_ADMIN"', id="capability"),
        pytest.param(
            {"containers": [{"name": "agent", "ports": [{"containerPort": 7465, "hostPort": 7465}]}]},
            "hostPort 7465",
            id="port",
        ),
        pytest.param(
            {"initContainers": [{"name": "first", "image": "outhaul-agent", "securityContext": {"runAsUser": 0}}]},
            "runAsUser=0",
            id="root",
        ),
    ],
)
def test_a_template_loosens_no_more_than_the_policy(
    objects: Objects, request: pytest.FixtureRequest, pod: Json, words: str
) -> None:
    """What a podTemplate asks for beyond the namespace's policy is refused by the API server, whose words are shown."""
    name = f"loose-{request.node.callspec.id}"
    objects.create("AgentConfig", name, spec={"podTemplate": {"spec": pod}})
    spec = {"commands": [{"name": "main", "command": ["true"]}], "agentConfig": {"name": name}}
    objects.create("AgentAction", name, spec=spec)
    refused = lambda one: one.get("status", {}).get("reason") == "PodRefused" and one["status"]["message"]  # noqa: E731
    message = objects.until("AgentAction", name, refused, what="its pod is refused")
    assert 'violates PodSecurity "restricted:latest"' in message
    assert words in message
    assert name not in objects.names("Pod")
    objects.delete("AgentAction", name)


def test_a_run_by_hand_loosens_no_more_than_the_policy(objects: Objects) -> None:
    """A volume that a run itself names is held against the same policy."""
    spec = {"commands": [{"name": "main", "command": ["true"]}], "volumes": [HOST]}
    objects.create("AgentAction", "by-hand", spec=spec)
    refused = lambda one: one.get("status", {}).get("reason") == "PodRefused" and one["status"]["message"]  # noqa: E731
    assert '"hostPath"' in objects.until("AgentAction", "by-hand", refused, what="it is refused")
    objects.delete("AgentAction", "by-hand")
