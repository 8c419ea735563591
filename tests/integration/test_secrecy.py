"""A value that is sensitive is in Secrets and nowhere else: not in any other object, not in a log, not on the way."""

import base64
import gzip
import json
import uuid

import pytest
from cluster.objects import Objects
from cluster.stack import Stack

MODULE = """
variable "token" { type = string }
resource "terraform_data" "service" { input = "up" }
output "token" {
  value     = join("-", ["prefix", file("${path.module}/canary")])
  sensitive = true
}
output "name" { value = "plain" }
"""


def everything_but_secrets(objects: Objects) -> str:
    """All objects of a namespace, of every kind that can be listed, but Secrets, as one text."""
    plane = objects.control_plane
    groups = ["/api/v1"]
    groups += [f"/apis/{one['preferredVersion']['groupVersion']}" for one in plane.request("GET", "/apis")["groups"]]
    paths = [
        f"{group}/namespaces/{objects.namespace}/{resource['name']}"
        for group in groups
        for resource in plane.request("GET", group)["resources"]
        if resource["namespaced"] and "list" in resource["verbs"] and resource["name"] != "secrets"
    ]
    return json.dumps([plane.request("GET", path) for path in paths])


def assert_absent(canary: str, text: str, where: str) -> None:
    """The canary is not in a text, neither as it is nor in base64, at whatever offset."""
    assert canary not in text, where
    for offset in range(3):
        # Without the ends, whose bits belong to the neighbours.
        encoded = base64.b64encode(b"\0" * offset + canary.encode()).decode()[4:-4]
        assert encoded not in text, f"{where}, in base64"


@pytest.fixture
def canary() -> str:
    """A value that is nowhere else."""
    return f"canary-{uuid.uuid4().hex}"


def test_a_script_s_secret_is_only_in_secrets(objects: Objects, stack: Stack, canary: str) -> None:
    """The content of an output file is in the Secrets of run and Installation, and in no other object and no log."""
    # The value comes from a Secret, so that the Installation's own spec does not have it.
    objects.create("Secret", "origin", stringData={"token": canary})
    container = {
        "name": "agent",
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "origin", "key": "token"}}}],
    }
    objects.create("AgentConfig", "default", spec={"podTemplate": {"spec": {"containers": [container]}}})
    command = {"name": "main", "command": ["sh", "-c", 'printf "$TOKEN" > "$OUTHAUL_OUTPUTS/token"']}
    objects.install("service", engine="exec", commands={"install": [command]})
    run = objects.ready("service")["status"]["action"]["name"]
    objects.until("Pod", run, lambda one: one["status"]["phase"] == "Succeeded", what="it has ended")
    assert objects.secret("service-outputs")["token"] == canary.encode()
    assert_absent(canary, everything_but_secrets(objects), "an object")
    assert_absent(canary, (stack.control_plane.root / "log/operator.log").read_text(), "the operator's log")
    assert_absent(canary, stack.operator_answer("/metrics")[1], "the operator's metrics")
    assert_absent(canary, stack.container_log(objects.namespace, run), "the agent's log")


def test_terraform_s_secret_is_only_in_secrets(tenant: Objects, stack: Stack, canary: str) -> None:
    """A sensitive output of Terraform is in Secrets only, while a plain one is in the record as well."""
    tenant.create("Secret", "origin", stringData={"canary": canary})
    mount = {"name": "origin", "mountPath": "/outhaul/origin"}
    template = {
        "spec": {
            "containers": [{"name": "agent", "volumeMounts": [mount]}],
            "volumes": [{"name": "origin", "secret": {"secretName": "origin"}}],
        }
    }
    tenant.patch("AgentConfig", "default", {"spec": {"podTemplate": template}})
    module = MODULE.replace("${path.module}/canary", "/outhaul/origin/canary")
    tenant.install("service", source={"files": {"main.tf": module}}, parameters={"token": "unused"})
    run = tenant.ready("service")["status"]["action"]["name"]
    tenant.until("Pod", run, lambda one: one["status"]["phase"] == "Succeeded", what="it has ended")
    assert tenant.secret("service-outputs") == {"token": f"prefix-{canary}".encode(), "name": b"plain"}
    objects = everything_but_secrets(tenant)
    assert '"value": "plain"' in objects
    assert_absent(canary, objects, "an object")
    assert_absent(canary, (stack.control_plane.root / "log/operator.log").read_text(), "the operator's log")
    assert_absent(canary, stack.operator_answer("/metrics")[1], "the operator's metrics")
    assert_absent(canary, stack.container_log(tenant.namespace, run), "the agent's log")


def test_a_kept_source_is_only_in_secrets(objects: Objects, stack: Stack, canary: str) -> None:
    """What is kept of a source and of inputs, for an uninstall, is in no other object, no event and no log."""
    objects.create("Secret", "origin", stringData={"token": canary, "script": f"# {canary}\ntrue"})
    command = {"name": "main", "command": ["sh", "script"]}
    objects.install(
        "service",
        engine="exec",
        source={"secretRef": {"name": "origin"}},
        inputs=[{"name": "token", "secretKeyRef": {"name": "origin", "key": "token"}}],
        commands={"install": [command], "uninstall": [command, {"name": "stay", "command": ["false"]}]},
    )
    run = objects.ready("service")["status"]["action"]["name"]
    copy = gzip.decompress(objects.secret(f"{run}-source")["source.tar.gz"])
    assert copy.count(canary.encode()) == 3
    objects.delete("Secret", "origin")
    objects.delete("Installation", "service")
    objects.condition("Installation", "service", "Stalled", "True", "UninstallFailed")
    assert_absent(canary, everything_but_secrets(objects), "an object")
    assert_absent(canary, (stack.control_plane.root / "log/operator.log").read_text(), "the operator's log")
    assert_absent(canary, stack.operator_answer("/metrics")[1], "the operator's metrics")
    for pod, log in stack.container_logs(objects.namespace).items():
        assert_absent(canary, log, f"the log of {pod}")


def test_an_error_shows_no_value(objects: Objects, stack: Stack, canary: str) -> None:
    """Output that cannot be read fails the run, and neither message nor log quotes it."""
    # The command makes the value up, so that the spec does not have it either.
    reverse = canary[::-1]
    source = {"command": {"command": ["sh", "-c", f'printf "{{%s" "$(echo {reverse} | rev)"'], "format": "json"}}
    command = {"name": "main", "command": ["true"]}
    objects.install("service", engine="exec", commands={"install": [command]}, outputs={"from": [source]})
    run = objects.ran("service", 1)
    assert run["status"]["reason"] == "BadOutput"
    assert_absent(canary, everything_but_secrets(objects), "an object")
    assert_absent(canary, (stack.control_plane.root / "log/operator.log").read_text(), "the operator's log")
    assert_absent(canary, stack.operator_answer("/metrics")[1], "the operator's metrics")
    assert_absent(canary, stack.container_log(objects.namespace, run["metadata"]["name"]), "the agent's log")
