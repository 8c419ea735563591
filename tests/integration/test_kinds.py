"""A real API server takes the CRDs, and means by them what the models mean."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.controlplane import ControlPlane
from cluster.errors import RequestFailed
from cluster.stack import await_kinds
from cluster.waiting import until
from outhaul_api import KINDS, Installation
from outhaul_api.common import Model, Resource
from outhaul_api.vocabulary import API_VERSION

pytestmark = pytest.mark.versions

ROOT = Path(__file__).parents[2]
NOW = "2026-01-01T00:00:00Z"
Kubectl = Callable[..., str]

MINIMAL: dict[str, dict[str, Any]] = {
    "Installation": {"spec": {}},
    "AgentAction": {"spec": {}},
    "AgentConfig": {"spec": {}},
    "InstallationOutput": {"spec": {"action": "run"}, "status": {"phase": "Current"}},
}
FULL: dict[str, dict[str, Any]] = {
    "Installation": {
        "spec": {
            "schemaVersion": "1.0.2",
            "name": "n",
            "namespace": "ns",
            "bundle": {"repository": "r", "version": "1", "digest": "sha256:0", "tag": "t"},
            "parameters": {"a": {"b": [1, "c", None, 1.5]}, "d": None},
            "labels": {"a": "b"},
            "uninstalled": True,
            "agentConfig": {"name": "c"},
            "engine": "exec",
            "source": {
                "files": {"a": "b"},
                "configMapRef": {"name": "m"},
                "secretRef": {"name": "s"},
                "archive": {"url": "https://h/a.tar.gz", "sha256": "0" * 64, "path": "a"},
            },
            "commands": {
                "install": [
                    {
                        "name": "i",
                        "command": ["a"],
                        "args": ["b"],
                        "env": [{"name": "A", "value": "b"}],
                        "workingDir": "d",
                        "timeout": "1h30m",
                        "continueOnError": True,
                    }
                ],
                "upgrade": [],
                "uninstall": [],
            },
            "outputs": {
                "from": [
                    {"directory": {"path": "/o", "required": ["a"]}},
                    {"command": {"command": ["a"], "format": "text", "name": "n", "workingDir": "d"}},
                    {"manifest": {"path": "o.json"}},
                ],
                "secretName": "s",
                "declare": [
                    {"name": "n", "type": "number", "sensitive": False, "required": True, "default": 1.5},
                ],
                "nonSensitive": ["a-*"],
                "keyStyle": "Env",
                "template": {"dsn": "{{ a }}"},
                "binding": {"type": "postgresql", "provider": "p"},
                "historyLimit": 3,
            },
            "inputs": [
                {"name": "a", "output": {"installation": "i", "name": "o"}, "file": "f"},
                {"name": "b", "configMapKeyRef": {"name": "c", "key": "k"}},
                {"name": "c", "secretKeyRef": {"name": "s", "key": "k"}},
            ],
            "dependsOn": ["other"],
            "deletionPolicy": "Orphan",
            "timeout": "10m",
            "retry": {"limit": 3, "backoff": "1m"},
            "suspend": True,
        },
    },
    "AgentAction": {
        "spec": {
            "action": "uninstall",
            "installation": {"name": "i", "uid": "u", "generation": 3},
            "agentConfig": {"name": "c"},
            "command": ["a"],
            "args": ["b"],
            "commands": [{"name": "i", "command": ["a"]}],
            "outputs": [{"directory": {"path": "o"}}],
            "declare": [{"name": "n", "required": True}],
            "nonSensitive": ["a-*"],
            "files": {"a/b": "aGVsbG8="},
            "archive": {"url": "https://h/a.tar.gz", "sha256": "0" * 64, "path": "a"},
            "copyFrom": ["/m"],
            "keepSource": True,
            "keptSource": {"secretName": "s", "required": ["/m"]},
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "volumeMounts": [{"name": "v", "mountPath": "/m"}],
            "timeout": "5m",
        },
    },
    "AgentConfig": {
        "spec": {
            "image": "i",
            "pullPolicy": "Never",
            "engine": "exec",
            "serviceAccount": "a",
            "linger": "1h",
            "startTimeout": "5m",
            "retryLimit": 2,
            "ttlSecondsAfterFinished": 60,
            "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"a": "b"}}},
        },
    },
    "InstallationOutput": {
        "spec": {"name": "n", "namespace": "ns", "installation": "i", "action": "run", "generation": 2},
        "status": {
            "phase": "Current",
            "outputs": [
                {
                    "name": name,
                    "type": kind,
                    "sensitive": False,
                    "value": value,
                    "secretKeyRef": {"name": "s", "key": name},
                    "size": 1,
                    "sha256": "0" * 64,
                }
                for name, kind, value in [
                    ("a", "string", "text"),
                    ("b", "number", 1.5),
                    ("c", "boolean", False),
                    ("d", "object", {"a": {"b": [1]}}),
                    ("e", "array", [1, "two", {"three": 3}]),
                ]
            ],
            "outputNames": "a, b",
            "secretName": "s",
            "provenance": {"agentVersion": "1", "operatorVersion": "1", "image": "i", "actionUid": "u"},
        },
    },
}
PORTER: dict[str, Any] = {
    "schemaVersion": "1.0.2",
    "name": "myinstallation",
    "namespace": "staging",
    "uninstalled": False,
    "labels": {"team": "marketing", "customer": "bigbucks"},
    "bundle": {
        "repository": "ghcr.io/getporter/examples/porter-hello",
        "digest": "sha256:276b44be3f478b4c8d1f99c1925386d45a878a853f22436ece5589f32e9df384",
        "version": "0.2.0",
        "tag": "latest",
    },
    "parameters": {"log-level": 11},
}
"""Porter's documentation of its installation file, but for the fields that are not supported yet."""

ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def definitions_of(control_plane: ControlPlane) -> dict[str, Any]:
    """The schemas that the API server publishes."""
    # Asked through kubectl, since the server does not call it JSON.
    answer: dict[str, Any] = json.loads(control_plane.kubectl("get", "--raw", "/openapi/v2"))
    return dict(answer["definitions"])


@pytest.fixture(scope="module", autouse=True)
def crds(control_plane: ControlPlane) -> None:
    """The CRDs are installed and served."""
    control_plane.kubectl("apply", "-k", str(ROOT / "crds"))
    await_kinds(control_plane)


@pytest.fixture(scope="module", autouse=True)
def documented(control_plane: ControlPlane, crds: None) -> None:
    """The API server publishes the schemas a moment later than the objects; kubectl needs them."""

    def published() -> bool:
        definitions = definitions_of(control_plane)
        return all(f"dev.outhaul.v1alpha1.{kind.__name__}" in definitions for kind in KINDS)

    until(published, what="the schemas of the kinds", timeout=60)


class Server:
    """The API server, as the tests of one namespace use it."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._request = control_plane.request
        self._namespace = namespace

    def path(self, kind: type[Resource], name: str = "") -> str:
        """Where an object is, or with no name its collection."""
        path = f"/apis/{API_VERSION}/namespaces/{self._namespace}/{kind.definition.plural}"
        return f"{path}/{name}" if name else path

    def create(self, kind: type[Resource], content: dict[str, Any], name: str = "it") -> dict[str, Any]:
        """Creates an object and returns what the server made of it."""
        head = {"apiVersion": API_VERSION, "kind": kind.__name__, "metadata": {"name": name}}
        answer: dict[str, Any] = self._request("POST", self.path(kind), head | content)
        return answer

    def refusal(self, kind: type[Resource], content: dict[str, Any]) -> str:
        """Creates what must not be created, and returns the server's words."""
        with pytest.raises(RequestFailed) as caught:
            self.create(kind, content)
        assert caught.value.status == 422
        return str(caught.value)

    def merge(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Changes an object by a merge patch."""
        answer: dict[str, Any] = self._request("PATCH", path, content, content_type="application/merge-patch+json")
        return answer


@pytest.fixture
def server(control_plane: ControlPlane, namespace: str) -> Server:
    """The API server, for a namespace of the test's own."""
    return Server(control_plane, namespace)


def content(obj: dict[str, Any]) -> dict[str, Any]:
    """Spec and status of an object."""
    return {part: obj[part] for part in ("spec", "status") if part in obj}


@ALL
def test_nothing_of_a_full_object_is_dropped(kind: type[Resource], server: Server) -> None:
    """Each field that a model has is in the schema: the server keeps it, and the model reads it back."""
    wanted = FULL[kind.__name__]
    made = server.create(kind, wanted)
    assert content(made) == wanted
    model = kind.model_validate(made)
    assert content(model.model_dump(mode="json", by_alias=True, exclude_unset=True)) == wanted


@ALL
def test_full_samples_are_full(kind: type[Resource]) -> None:
    """The test above leaves out no field of the spec."""
    model = kind.model_fields["spec"].annotation
    assert isinstance(model, type)
    assert issubclass(model, Model)
    aliases = {field.alias for field in model.model_fields.values()}
    assert set(FULL[kind.__name__]["spec"]) == aliases


@ALL
def test_server_and_model_have_the_same_defaults(kind: type[Resource], server: Server) -> None:
    """An object that says as little as it may means the same before and after the server saw it."""
    said = MINIMAL[kind.__name__]
    made = kind.model_validate(server.create(kind, said))
    alone = kind.model_validate(said)
    assert content(made.to_json()) == content(alone.to_json())


def test_shown_defaults_are_the_servers(server: Server) -> None:
    """`kubectl get -o yaml` shows what deleting an Installation will do."""
    assert server.create(Installation, {"spec": {}})["spec"] == {"deletionPolicy": "Delete"}


COMMAND = {"name": "a", "command": ["b"]}


@pytest.mark.parametrize(
    ("kind", "path", "value", "complaint"),
    [
        ("Installation", "spec.deletionPolicy", "Keep", "supported values"),
        ("Installation", "spec.engine", "x" * 64, "Too long: may not be [a-z]+ than 63"),
        ("Installation", "spec.timeout", "1 hour", "should match"),
        ("Installation", "spec.timeout", 60, "must be of type string"),
        ("Installation", "spec.retry.limit", -1, "greater than or equal to 0"),
        ("Installation", "spec.retry.backoff", "soon", "should match"),
        ("Installation", "spec.uninstalled", "yes", "must be of type boolean"),
        ("Installation", "spec.bundle", {"version": "1"}, "repository"),
        ("Installation", "spec.bundle", {"repository": ""}, "at least 1"),
        ("Installation", "spec.labels", {"a": 1}, "must be of type string"),
        ("Installation", "spec.parameters", ["a"], "must be of type object"),
        ("Installation", "spec.agentConfig", {"name": "Not_A_Name"}, "should match"),
        ("Installation", "spec.commands", {"install": [{"name": "a"}]}, "command"),
        ("Installation", "spec.commands", {"install": [{"name": "a", "command": []}]}, "at least 1"),
        ("AgentAction", "spec.action", "destroy", "supported values"),
        ("AgentAction", "spec.commands", [COMMAND, COMMAND], "Duplicate"),
        ("AgentAction", "spec.commands", [{**COMMAND, "name": "-"}], "should match"),
        ("AgentAction", "spec.env", [{"name": "A"}, {"name": "A"}], "Duplicate"),
        ("AgentAction", "spec.env", [{"name": "1A"}], "should match"),
        ("AgentAction", "spec.files", {"a": "not base64!"}, "should match"),
        (
            "AgentAction",
            "spec.outputs",
            [{"command": {"command": ["a"], "format": "xml"}}],
            "supported values",
        ),
        ("AgentAction", "spec.outputs", [{"manifest": {"path": "a"}}] * 33, "at most 32"),
        ("AgentConfig", "spec.pullPolicy", "Sometimes", "supported values"),
        ("AgentConfig", "spec.ttlSecondsAfterFinished", -1, "greater than or equal to 0"),
        ("AgentConfig", "spec.serviceAccount", "a" * 254, "Too long: may not be [a-z]+ than 253"),
        ("InstallationOutput", "status.phase", "Old", "supported values"),
        ("InstallationOutput", "spec", {}, "action"),
        ("InstallationOutput", "status.outputs", [{"name": "a", "type": "string"}], "size"),
        (
            "InstallationOutput",
            "status.outputs",
            [{"name": "a", "type": "string", "size": -1}],
            "greater than",
        ),
        (
            "InstallationOutput",
            "status.outputs",
            [{"name": "a", "type": "string", "size": 1, "sha256": "X"}],
            "should match",
        ),
        ("InstallationOutput", "status", None, "status"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_refuses(kind: str, path: str, value: Any, complaint: str, server: Server) -> None:
    """One wrong object a rule: the server says no, and names the field."""
    wrong = json.loads(json.dumps(MINIMAL[kind]))
    *parents, last = path.split(".")
    target = wrong
    for parent in parents:
        target = target.setdefault(parent, {})
    if value is None:
        del target[last]
    else:
        target[last] = value
    model = next(model for model in KINDS if model.__name__ == kind)
    said = server.refusal(model, wrong)
    assert re.search(complaint, said), said
    assert path.partition("[")[0] in said


def test_a_null_output_is_kept(server: Server) -> None:
    """Terraform has outputs that are null; the record may say so."""
    kind = next(kind for kind in KINDS if kind.__name__ == "InstallationOutput")
    output = {"name": "a", "type": "null", "sensitive": False, "size": 4}
    made = server.create(kind, {"spec": {"action": "a"}, "status": {"phase": "Current", "outputs": [output]}})
    assert made["status"]["outputs"] == [output]


@pytest.mark.parametrize("name", ["Installation", "AgentAction"])
def test_status_is_a_subresource(name: str, server: Server) -> None:
    """Status and spec are written apart, and a written status is no new generation."""
    kind = next(kind for kind in KINDS if kind.__name__ == name)
    made = server.create(kind, {"spec": {}, "status": {"phase": "Succeeded"}})
    assert "status" not in made
    assert server.merge(server.path(kind, "it"), {"status": {"phase": "Failed"}}).get("status") is None
    patched = server.merge(
        server.path(kind, "it") + "/status", {"status": {"phase": "Running"}, "spec": {"timeout": "1s"}}
    )
    assert patched["status"] == {"phase": "Running"}
    assert patched["spec"] == made["spec"]
    assert patched["metadata"]["generation"] == made["metadata"]["generation"]


def test_a_record_is_written_in_one_request(server: Server) -> None:
    """An InstallationOutput has its status from the start, and has no subresource for it."""
    kind = next(kind for kind in KINDS if kind.__name__ == "InstallationOutput")
    made = server.create(kind, MINIMAL[kind.__name__])
    assert made["status"] == {"phase": "Current"}
    with pytest.raises(RequestFailed) as caught:
        server.merge(server.path(kind, "it") + "/status", {"status": {"phase": "Superseded"}})
    assert caught.value.status == 404


def test_a_porter_installation_pasted_in_is_valid(server: Server) -> None:
    """The spec as Porter documents it is taken whole, by the server and by the strict model."""
    made = server.create(Installation, {"spec": PORTER})
    assert made["spec"] == {**PORTER, "deletionPolicy": "Delete"}
    Installation.model_validate({"spec": PORTER}, extra="forbid", by_alias=True, by_name=False)


@pytest.mark.parametrize("sample", ["exec", "porter", "terraform"])
def test_the_samples_are_taken_whole(sample: str, kubectl: Kubectl, namespace: str) -> None:
    """Nothing in a sample is pruned."""
    path = ROOT / "samples" / sample / "installation.yaml"
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    made = json.loads(kubectl("create", "-n", namespace, "-f", str(path), "-o", "json"))
    assert made["spec"] == {**written["spec"], "deletionPolicy": "Delete"}


@ALL
def test_explain_says_something_about_every_field(
    kind: type[Resource], kubectl: Kubectl, control_plane: ControlPlane
) -> None:
    """What `kubectl explain` reads has each field of the model, each with its words."""
    definitions = definitions_of(control_plane)
    schema = definitions[f"dev.outhaul.v1alpha1.{kind.__name__}"]

    def mute(schema: dict[str, Any], path: str) -> list[str]:
        found = [] if schema.get("description") else [path]
        for name, below in schema.get("properties", {}).items():
            if name != "metadata":
                found += mute(below, f"{path}.{name}")
        for name, below in schema.get("items", {}).get("properties", {}).items():
            found += mute(below, f"{path}[].{name}")
        return found

    assert mute(schema, kind.__name__) == []
    told = kubectl("explain", kind.definition.plural, "--recursive")
    assert kind.__doc__ is not None
    assert " ".join(kind.__doc__.split()) in " ".join(told.split())
    for name in schema["properties"]["spec"]["properties"]:
        assert re.search(rf"^\s+{name}\s", told, re.MULTILINE), name


def test_one_category_and_short_names(server: Server, kubectl: Kubectl, namespace: str) -> None:
    """`kubectl get outhaul` shows all kinds; each has its short name."""
    for kind in KINDS:
        server.create(kind, MINIMAL[kind.__name__])
    shown = kubectl("get", "outhaul", "-n", namespace, "-o", "name").split()
    assert sorted(shown) == sorted(f"{kind.__name__.lower()}.outhaul.dev/it" for kind in KINDS)
    for kind in KINDS:
        (short,) = kind.definition.short_names
        assert kubectl("get", short, "it", "-n", namespace, "-o", "name").strip() in shown


def test_columns_show_the_state(server: Server, kubectl: Kubectl, namespace: str) -> None:
    """`kubectl get` shows readiness with its reason, and the outputs' names."""
    server.create(Installation, {"spec": {}})
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "RunFailed",
        "message": "see the log",
        "lastTransitionTime": NOW,
    }
    server.merge(
        server.path(Installation, "it") + "/status",
        {"status": {"phase": "Failed", "conditions": [ready], "binding": {"name": "it-outputs"}}},
    )
    head, row = kubectl("get", "inst", "-n", namespace, "-o", "wide").splitlines()
    assert head.split() == ["NAME", "READY", "PHASE", "REASON", "SECRET", "MESSAGE", "AGE"]
    assert row.split()[:-1] == ["it", "False", "Failed", "RunFailed", "it-outputs", "see", "the", "log"]
    record = next(kind for kind in KINDS if kind.__name__ == "InstallationOutput")
    server.create(record, FULL["InstallationOutput"])
    head, row = kubectl("get", "io", "-n", namespace).splitlines()
    assert head.split() == ["NAME", "INSTALLATION", "PHASE", "OUTPUTS", "AGE"]
    assert row.split()[:-1] == ["it", "i", "Current", "a,", "b"]
