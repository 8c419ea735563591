"""A run's Secret and Pod: what Kubernetes takes, what the agent reads, and what a template may change."""

import base64
import json
from typing import Any

import kubernetes_validate
import pytest
from builders import OTHER_UID, action
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.agentaction import AgentAction
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.vocabulary import Reason
from outhaul_grpc import layout
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import pods
from outhaul_operator.verdicts import StalledError

IMAGE = "ghcr.io/outhaul/agent:1"

FULL: dict[str, Any] = {
    "action": "upgrade",
    "installation": {"name": "shop", "uid": "u", "generation": 3, "number": 4},
    "commands": [
        {"name": "init", "command": ["sh", "-c"], "args": ["true"], "env": [{"name": "A", "value": "b"}]},
        {"name": "apply", "command": ["x"], "workingDir": "sub", "timeout": "1m30s", "continueOnError": True},
    ],
    "outputs": [
        {"directory": {"path": "/outhaul/outputs", "required": ["host"]}},
        {"command": {"command": ["cat", "x"], "format": "text", "name": "x", "workingDir": "sub"}},
        {"command": {"command": ["terraform", "output", "-json"], "format": "terraform"}},
        {"manifest": {"path": "outputs.json"}},
    ],
    "files": {"main.tf": base64.b64encode(b"\x00\xff").decode(), "a/b": ""},
    "copyFrom": ["/outhaul/source"],
    "env": [
        {"name": "PLAIN", "value": "1"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "envFrom": [{"secretRef": {"name": "s"}}],
    "volumes": [{"name": "source", "configMap": {"name": "c"}}],
    "volumeMounts": [{"name": "source", "mountPath": "/outhaul/source", "readOnly": True}],
    "timeout": "2h",
}


def build(spec: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """Returns the pod of a run under an AgentConfig."""
    return pods.pod(action(spec), AgentConfigSpec.model_validate(config), IMAGE)


def agent_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Returns the agent's container."""
    (only,) = [one for one in pod["spec"]["containers"] if one["name"] == pods.CONTAINER]
    assert isinstance(only, dict)
    return only


def check(document: dict[str, Any]) -> None:
    """Validates an object as the API server's schema does, with no field too many."""
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


# -- the pod


RUNS = pytest.mark.parametrize(
    ("spec", "config"),
    [
        pytest.param(None, {}, id="smallest"),
        pytest.param(FULL, {}, id="full"),
        pytest.param(FULL, {"serviceAccount": "tenant", "pullPolicy": "Always", "linger": "1h"}, id="configured"),
        pytest.param({"command": ["porter"], "args": ["install"]}, {}, id="porter's form"),
    ],
)


@RUNS
def test_a_pod_is_valid(spec: dict[str, Any] | None, config: dict[str, Any]) -> None:
    """A run's pod has no field that the API server would refuse or drop."""
    check(build(spec, **config))


# The controls of https://kubernetes.io/docs/concepts/security/pod-security-standards/, Restricted and what it includes.
RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(pod: dict[str, Any]) -> list[str]:
    """Returns the controls of the Restricted profile that a pod does not pass."""
    spec = pod["spec"]
    security = spec.get("securityContext", {})
    found = [f"host {name}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [
        f"volume {one['name']}" for one in spec.get("volumes", []) if not (set(one) - {"name"}) <= RESTRICTED_VOLUMES
    ]
    annotations = pod["metadata"].get("annotations", {})
    found += [key for key in annotations if key.startswith("container.apparmor.security.beta.kubernetes.io/")]
    if security.get("sysctls"):
        found.append("sysctls")
    for container in [*spec["containers"], *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]:
        own = container.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        passed = {
            "privileged": not own.get("privileged"),
            "privilege escalation": own.get("allowPrivilegeEscalation") is False,
            "non-root": own.get("runAsNonRoot", security.get("runAsNonRoot")) is True,
            "user": own.get("runAsUser", security.get("runAsUser")) != 0,
            "seccomp": own.get("seccompProfile", security.get("seccompProfile", {})).get("type")
            in {"RuntimeDefault", "Localhost"},
            "drop": "ALL" in capabilities.get("drop", []),
            "add": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
            "proc mount": own.get("procMount", "Default") == "Default",
            "selinux": not (own.get("seLinuxOptions") or security.get("seLinuxOptions")),
            "windows": not any(one.get("windowsOptions", {}).get("hostProcess") for one in (own, security)),
            "host ports": not any(port.get("hostPort") for port in container.get("ports", [])),
            "probe hosts": not any(
                handler.get(kind, {}).get("host")
                for handler in (
                    *(container.get(probe, {}) for probe in ("livenessProbe", "readinessProbe", "startupProbe")),
                    *container.get("lifecycle", {}).values(),
                )
                for kind in ("httpGet", "tcpSocket")
            ),
        }
        found += [f"{container['name']}: {name}" for name, ok in passed.items() if not ok]
    return found


@RUNS
def test_a_pod_passes_the_restricted_standard(spec: dict[str, Any] | None, config: dict[str, Any]) -> None:
    """Without a template of the user's a run's pod needs no exception from the strictest standard."""
    assert violations(build(spec, **config)) == []


def test_the_check_of_the_standard_finds_something() -> None:
    """The check above is no empty one: a pod that takes what it can get fails it."""
    container = {"name": "agent", "securityContext": {"privileged": True, "runAsUser": 0}, "ports": [{"hostPort": 1}]}
    host = {"hostNetwork": True, "volumes": [{"name": "host", "hostPath": {"path": "/"}}], "containers": [container]}
    assert len(violations({"metadata": {}, "spec": host})) >= 8


def test_a_run_gets_no_token() -> None:
    """Without a service account that somebody chose, the pod cannot talk to the API server."""
    spec = build()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec


def test_a_run_gets_the_token_that_was_chosen() -> None:
    """With a service account in the AgentConfig, the pod runs under it."""
    spec = build(serviceAccount="tenant")["spec"]
    assert spec["automountServiceAccountToken"] is True
    assert spec["serviceAccountName"] == "tenant"


def test_the_runs_secret_is_mounted_read_only() -> None:
    """The agent reads its instructions and its key where it looks for them, and nobody else can."""
    pod = build()
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "run"]
    assert volume["secret"] == {"secretName": "shop-1-run", "defaultMode": 0o440}
    (mount,) = [one for one in agent_of(pod)["volumeMounts"] if one["name"] == "run"]
    assert mount == {"name": "run", "mountPath": layout.RUN_DIR, "readOnly": True}


def test_a_pod_is_one_attempt() -> None:
    """A container that has ended is not started again, and Terraform has time to let go of its lock."""
    spec = build()["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 120


def test_a_pod_belongs_to_its_run() -> None:
    """Owner, labels and names lead from the pod to its AgentAction and its Installation."""
    pod = build(FULL)
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        "AgentAction",
        "shop-1",
        OTHER_UID,
        True,
    )
    assert pod["metadata"]["name"] == "shop-1"
    assert pod["metadata"]["namespace"] == "tenant"
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "outhaul",
        "outhaul.dev/action": OTHER_UID,
        "outhaul.dev/installation": "shop",
    }


def test_nothing_of_the_runs_is_on_the_command_line() -> None:
    """Commands and files are in the Secret alone; the container says only whom to start."""
    container = agent_of(build(FULL))
    assert container["command"] == ["outhaul-agent"]
    assert "args" not in container


def test_what_the_run_asks_for_is_in_the_pod() -> None:
    """Variables, volumes and mounts of the spec come after our own."""
    pod = build(FULL, pullPolicy="Always")
    container = agent_of(pod)
    assert {"name": "PLAIN", "value": "1"} in container["env"]
    secret = next(one for one in container["env"] if one["name"] == "SECRET")
    assert secret["valueFrom"] == {"secretKeyRef": {"name": "s", "key": "k"}}
    assert container["envFrom"] == FULL["envFrom"]
    assert container["imagePullPolicy"] == "Always"
    assert container["image"] == IMAGE
    assert pod["spec"]["volumes"][-1] == FULL["volumes"][0]
    assert container["volumeMounts"][-1] == FULL["volumeMounts"][0]


# -- the template


def test_a_template_changes_the_agents_container() -> None:
    """A container called `agent` is merged into ours, its variables by name."""
    theirs = {"name": "agent", "env": [{"name": "HOME", "value": "/h"}], "resources": {"limits": {"memory": "1Gi"}}}
    pod = build(podTemplate={"spec": {"containers": [theirs], "nodeSelector": {"a": "b"}}})
    container = agent_of(pod)
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert [one["value"] for one in container["env"] if one["name"] == "HOME"] == ["/h"]
    assert container["command"] == ["outhaul-agent"]
    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    check(pod)


def test_a_template_adds_a_container_and_a_volume() -> None:
    """Other containers and volumes are added to ours."""
    template = {
        "containers": [{"name": "proxy", "image": "p"}],
        "initContainers": [{"name": "fetch", "image": "f"}],
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}],
    }
    pod = build(podTemplate={"spec": template})
    assert [one["name"] for one in pod["spec"]["containers"]] == ["agent", "proxy"]
    assert pod["spec"]["volumes"][-1]["name"] == "cache"
    check(pod)


def test_null_removes_what_we_would_set() -> None:
    """A cluster that assigns users itself takes our user away with null."""
    security = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    pod = build(podTemplate={"spec": {"securityContext": security}})
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert violations(pod) == []


def test_a_template_does_not_make_a_second_attempt() -> None:
    """The restart policy stays, or a run could happen twice in one pod."""
    assert build(podTemplate={"spec": {"restartPolicy": "Always"}})["spec"]["restartPolicy"] == "Never"
    assert build(podTemplate={"spec": {"restartPolicy": None}})["spec"]["restartPolicy"] == "Never"


def test_a_template_does_not_take_the_pod_away() -> None:
    """Labels and annotations are added; our labels stay as they are."""
    metadata = {
        "labels": {"outhaul.dev/action": "other", "team": "a", "app.kubernetes.io/managed-by": None},
        "annotations": {"a": "b"},
    }
    result = build(podTemplate={"metadata": metadata})["metadata"]
    expected = build()["metadata"]
    assert result == {**expected, "labels": {**expected["labels"], "team": "a"}, "annotations": {"a": "b"}}
    assert build(podTemplate={"metadata": {"labels": None}})["metadata"] == expected


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"containers": []}, "containers"),
        ({"spec": "text"}, "spec"),
        ({"metadata": ["x"]}, "metadata"),
        ({"metadata": {"name": "mine"}}, "metadata.name"),
        ({"metadata": {"namespace": "other"}}, "metadata.namespace"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"metadata": {"labels": "text"}}, "metadata.labels"),
        ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template: dict[str, Any], named: str) -> None:
    """What would be left out of the pod is said, by its name, to whoever wrote it."""
    with pytest.raises(StalledError, match=named) as caught:
        build(podTemplate=template)
    assert caught.value.reason is Reason.INVALID_SPEC
    assert "text" not in str(caught.value).replace("(text to text)", "")


# -- what the agent reads


def spec_of(secret: dict[str, Any]) -> pb.RunSpec:
    """Returns what an agent finds in the run's Secret."""
    return json_format.Parse(base64.b64decode(secret["data"][layout.RUN_FILE]), pb.RunSpec())


def run_secret(one: AgentAction, **config: Any) -> dict[str, Any]:
    """Returns a run's Secret, with some TLS material."""
    return pods.run_secret(one, AgentConfigSpec.model_validate(config), {"tls.key": b"\x00key", "ca.crt": b"ca"})


def test_a_runs_secret_is_valid_and_final() -> None:
    """The Secret is of our type, immutable, the run's own, and holds the TLS material as it is."""
    secret = run_secret(action(FULL))
    check(secret)
    assert (secret["type"], secret["immutable"]) == ("outhaul.dev/run", True)
    assert secret["metadata"]["name"] == "shop-1-run"
    assert secret["metadata"]["ownerReferences"] == build(FULL)["metadata"]["ownerReferences"]
    assert base64.b64decode(secret["data"]["tls.key"]) == b"\x00key"


def test_the_agent_reads_what_the_run_says() -> None:
    """Every part of the spec that the agent needs arrives through the Secret's JSON."""
    spec = spec_of(run_secret(action(FULL), linger="90s"))
    assert (spec.run_uid, spec.run_namespace, spec.run_name) == (OTHER_UID, "tenant", "shop-1")
    assert list(spec.protocol_versions) == list(layout.PROTOCOL_VERSIONS)
    first, second = spec.commands
    assert (first.name, list(first.argv), dict(first.env)) == ("init", ["sh", "-c", "true"], {"A": "b"})
    assert (first.working_dir, first.timeout_seconds, first.continue_on_error) == ("", 0, False)
    assert (second.working_dir, second.timeout_seconds, second.continue_on_error) == ("sub", 90, True)
    assert [one.WhichOneof("source") for one in spec.outputs] == ["directory", "command", "command", "manifest"]
    directory, text, terraform, manifest = spec.outputs
    assert (directory.directory.path, list(directory.directory.required)) == ("/outhaul/outputs", ["host"])
    assert (text.command.format, text.command.name) == (pb.OUTPUT_FORMAT_TEXT, "x")
    assert (list(text.command.argv), text.command.working_dir) == (["cat", "x"], "sub")
    assert (terraform.command.format, terraform.command.name) == (pb.OUTPUT_FORMAT_TERRAFORM, "")
    assert manifest.manifest.path == "outputs.json"
    assert dict(spec.files) == {"main.tf": b"\x00\xff", "a/b": b""}
    assert list(spec.copy_from) == ["/outhaul/source"]
    assert (spec.timeout_seconds, spec.linger_seconds) == (7200, 90)


def test_the_agent_is_asked_for_a_copy_of_its_source() -> None:
    """Only where the run says so, with the variables that refer to something, within the bounds of a Secret."""
    assert not spec_of(run_secret(action(FULL))).HasField("keep")
    keep = spec_of(run_secret(action({**FULL, "keepSource": True}))).keep
    assert list(keep.variables) == ["SECRET"]
    assert 0 < keep.max_bytes < 1024 * 1024


def test_the_copy_of_an_earlier_run_is_mounted() -> None:
    """The pod has the copy, if it is there, and the agent is told what it may stand in for, and what must be there."""
    kept = {"secretName": "shop-1-source", "required": ["/outhaul/source"]}
    pod = build({**FULL, "keptSource": kept})
    check(pod)
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "kept"]
    assert volume["secret"] == {"secretName": "shop-1-source", "optional": True, "defaultMode": 0o440}
    mount = {"name": "kept", "mountPath": layout.KEPT_DIR, "readOnly": True}
    assert mount in agent_of(pod)["volumeMounts"]
    told = spec_of(run_secret(action({**FULL, "keptSource": kept}))).kept
    assert (list(told.variables), list(told.required)) == (["SECRET"], ["/outhaul/source"])
    assert not [one for one in build(FULL)["spec"]["volumes"] if one["name"] == "kept"]
    assert not spec_of(run_secret(action(FULL))).HasField("kept")


def test_porters_form_is_one_command() -> None:
    """`command` with `args` is one step called `run`."""
    (only,) = spec_of(run_secret(action({"command": ["porter"], "args": ["install", "x"]}))).commands
    assert (only.name, list(only.argv)) == ("run", ["porter", "install", "x"])


def test_defaults_of_a_run() -> None:
    """A run may take an hour, and its outputs are held for a day."""
    spec = spec_of(run_secret(action()))
    assert (spec.timeout_seconds, spec.linger_seconds) == (3600, 24 * 3600)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({}, 110),
        ({"terminationGracePeriodSeconds": 600}, 590),
        ({"terminationGracePeriodSeconds": 15}, 7.5),
        ({"terminationGracePeriodSeconds": 0}, 1),
        ({"terminationGracePeriodSeconds": None}, 20),
        ({"terminationGracePeriodSeconds": "x"}, 110),
    ],
)
def test_the_agent_stops_before_the_pods_grace_is_over(template: dict[str, Any], expected: float) -> None:
    """A command that does not end is killed while the agent can still say so, whatever the template gives the pod."""
    assert spec_of(run_secret(action(), podTemplate={"spec": template})).stop_grace_seconds == expected
    assert spec_of(run_secret(action())).stop_grace_seconds == 110


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(TEXT, min_size=1, max_size=5),
    st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), TEXT, max_size=3),
    st.dictionaries(TEXT, st.binary(max_size=20), max_size=3),
)
def test_texts_and_bytes_arrive_exact(argv: list[str], env: dict[str, str], files: dict[str, bytes]) -> None:
    """Arguments, variables and files of any content reach the agent as they were written."""
    one = action(
        {
            "commands": [
                {
                    "name": "a",
                    "command": argv,
                    "env": [{"name": name, "value": value} for name, value in env.items()],
                }
            ],
            "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
        }
    )
    spec = spec_of(json.loads(json.dumps(run_secret(one))))
    assert list(spec.commands[0].argv) == argv
    assert dict(spec.commands[0].env) == env
    assert dict(spec.files) == files
