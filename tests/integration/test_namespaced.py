"""The operator for one namespace, as deploy/examples/namespaced has it: it has no rights elsewhere, and needs none.

On this control plane pods need a policy too (a PodSecurityPolicy, which is what its version has): that of the namespace
admits what is restricted, so the pods of runs are held against a real server's idea of that.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import privileges
from cluster.controlplane import ControlPlane
from cluster.objects import Json, Objects
from cluster.stack import OPERATOR, OPERATOR_NAMESPACE, REPOSITORY, Stack, operator_user

TENANT, OTHER = "team-a", "team-b"
POLICIES = "/apis/policy/v1beta1/podsecuritypolicies"
SECCOMP = "seccomp.security.alpha.kubernetes.io/allowedProfileNames"
ANY: Json = {"rule": "RunAsAny"}
RESTRICTED: Json = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "requiredDropCapabilities": ["ALL"],
    "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI", "persistentVolumeClaim"],
    "hostNetwork": False,
    "hostIPC": False,
    "hostPID": False,
    "runAsUser": {"rule": "MustRunAsNonRoot"},
    "seLinux": ANY,
    "supplementalGroups": ANY,
    "fsGroup": ANY,
}
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
    plane = ControlPlane(
        tmp_path_factory.mktemp("narrow"),
        audit=True,
        apiserver_args=["--enable-admission-plugins=PodSecurityPolicy"],
    ).start()
    try:
        command = (sys.executable, "-m", "outhaul_operator", "--namespace", TENANT)
        stack = Stack(plane, operator=command, manifests=REPOSITORY / "deploy/examples/namespaced").start()
        plane.create_namespace(OTHER)
        metadata = {"name": "restricted", "annotations": {SECCOMP: "runtime/default"}}
        plane.request("POST", POLICIES, {"metadata": metadata, "spec": RESTRICTED})
        let_in(Objects(plane, TENANT))
        yield stack
        stack.stop()
        privileges.record(plane)
    finally:
        plane.stop(forget=True)


def let_in(objects: Objects) -> None:
    """Has a namespace admit pods that are restricted, whoever makes them."""
    rule = {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "resourceNames": ["restricted"]}
    objects.create("Role", "restricted", rules=[rule | {"verbs": ["use"]}])
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": f"system:serviceaccounts:{TENANT}"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "restricted"}
    objects.create("RoleBinding", "restricted", roleRef=reference, subjects=[group])


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
    assert pod["metadata"]["annotations"]["kubernetes.io/psp"] == "restricted"
    assert pod["spec"]["automountServiceAccountToken"] is (account is not None)


HOST = {"name": "host", "hostPath": {"path": "/"}}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"hostNetwork": True}, "Host network is not allowed"),
        ({"hostPID": True}, "Host PID is not allowed"),
        ({"volumes": [HOST]}, "hostPath volumes are not allowed"),
        ({"containers": [{"name": "agent", "securityContext": {"privileged": True}}]}, "Privileged containers"),
        (
            {"containers": [{"name": "agent", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "capability may not be added",
        ),
        (
            {"containers": [{"name": "agent", "ports": [{"containerPort": 7465, "hostPort": 7465}]}]},
            "Host port 7465 is not allowed",
        ),
        (
            {"initContainers": [{"name": "first", "image": "outhaul-agent", "securityContext": {"runAsUser": 0}}]},
            "root",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_template_loosens_no_more_than_the_policy(objects: Objects, pod: Json, words: str) -> None:
    """What a podTemplate asks for beyond the namespace's policy is refused by the API server, whose words are shown."""
    name = words.lower().replace(" ", "-")
    objects.create("AgentConfig", name, spec={"podTemplate": {"spec": pod}})
    spec = {"commands": [{"name": "main", "command": ["true"]}], "agentConfig": {"name": name}}
    objects.create("AgentAction", name, spec=spec)
    refused = lambda one: one.get("status", {}).get("reason") == "PodRefused" and one["status"]["message"]  # noqa: E731
    assert words in objects.until("AgentAction", name, refused, what="its pod is refused")
    assert name not in objects.names("Pod")
    objects.delete("AgentAction", name)


def test_a_run_by_hand_loosens_no_more_than_the_policy(objects: Objects) -> None:
    """A volume that a run itself names is held against the same policy."""
    spec = {"commands": [{"name": "main", "command": ["true"]}], "volumes": [HOST]}
    objects.create("AgentAction", "by-hand", spec=spec)
    refused = lambda one: one.get("status", {}).get("reason") == "PodRefused" and one["status"]["message"]  # noqa: E731
    assert "hostPath volumes are not allowed" in objects.until("AgentAction", "by-hand", refused, what="it is refused")
    objects.delete("AgentAction", "by-hand")
