"""The pod of a run as the API server has it: safe as it is, and as its AgentConfig says."""

from typing import Any

from cluster.objects import Json, Objects
from cluster.stack import OPERATOR_NAMESPACE, Stack

SPEC: dict[str, Any] = {
    "engine": "exec",
    "commands": {
        "install": [{"name": "main", "command": ["sh", "-c", 'printf "$COLOUR" > "$OUTHAUL_OUTPUTS/colour"']}]
    },
}


def pod_of(objects: Objects, name: str) -> Json:
    """Waits until an Installation is ready; returns the pod of its run."""
    return objects.get("Pod", objects.ready(name)["status"]["action"]["name"])


def test_a_pod_is_restricted_as_it_is(objects: Objects) -> None:
    """Without any setting a run's pod passes the Pod Security Standard `restricted`."""
    objects.install("service", **SPEC)
    spec = pod_of(objects, "service")["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(spec)
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"secret", "emptyDir", "configMap", "projected"}


def test_a_pod_has_no_token_unless_it_is_given_an_account(objects: Objects) -> None:
    """A run's pod gets no API token of its namespace's default account."""
    objects.install("service", **SPEC)
    spec = pod_of(objects, "service")["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert all("projected" not in volume for volume in spec["volumes"])
    assert spec["restartPolicy"] == "Never"


def test_a_pod_template_reaches_the_pod(objects: Objects) -> None:
    """What an AgentConfig's podTemplate adds is in the pod: metadata, variables, resources; what is ours stays."""
    container = {
        "name": "agent",
        "env": [{"name": "COLOUR", "value": "green"}],
        "resources": {"requests": {"memory": "64Mi"}},
    }
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 7},
    }
    objects.create("AgentConfig", "default", spec={"podTemplate": template})
    objects.install("service", **SPEC)
    pod = pod_of(objects, "service")
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "outhaul"
    assert pod["metadata"]["annotations"]["note"] == "b"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 7
    assert pod["spec"]["containers"][0]["resources"] == {"requests": {"memory": "64Mi"}}
    assert objects.secret("service-outputs") == {"colour": b"green"}


def test_nearer_agent_configs_win(objects: Objects, stack: Stack) -> None:
    """The operator's `default` applies to all, the namespace's over it, the named one over both, field by field."""
    everywhere = Objects(stack.control_plane, OPERATOR_NAMESPACE)
    everywhere.create("AgentConfig", "default", spec={"image": "of-all", "pullPolicy": "Never", "engine": "exec"})
    try:
        objects.create("AgentConfig", "default", spec={"image": "of-namespace"})
        objects.create("AgentConfig", "named", spec={"pullPolicy": "Always"})
        objects.install("plain", **SPEC)
        objects.install("special", **SPEC, agentConfig={"name": "named"})
        plain, special = (pod_of(objects, name)["spec"]["containers"][0] for name in ("plain", "special"))
    finally:
        everywhere.delete("AgentConfig", "default")
    assert (plain["image"], plain["imagePullPolicy"]) == ("of-namespace", "Never")
    assert (special["image"], special["imagePullPolicy"]) == ("of-namespace", "Always")
