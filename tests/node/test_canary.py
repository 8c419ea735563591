"""A sensitive value is in Secrets and nowhere else: in no object, event, log, pod or termination message."""

import base64
import hashlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.objects import Objects
from cluster.stack import OPERATOR_NAMESPACE
from node.deployments import Deployment

pytestmark = [pytest.mark.node, pytest.mark.versions]

# The value is made in the pod, out of a seed, so that nobody has to write it down anywhere before.
_MODULE = """
variable "seed" { type = string }
resource "terraform_data" "kept" { input = sensitive(sha256("terraform ${var.seed}")) }
output "password" {
  value     = terraform_data.kept.output
  sensitive = true
}
output "connection" {
  value     = { host = "db", password = terraform_data.kept.output }
  sensitive = true
}
"""
_SCRIPT = """
value=$(printf '%s' "exec $OUTHAUL_PARAMETER_seed" | sha256sum | cut -c1-64)
printf '%s' "$value" > "$OUTHAUL_OUTPUTS/password"
"""


def value(engine: str, seed: str) -> str:
    """What the pod makes out of a seed."""
    return hashlib.sha256(f"{engine} {seed}".encode()).hexdigest()


def forms(secret: str) -> list[str]:
    """How a value may show: as it is, or in base64 at any offset."""
    encoded = [base64.b64encode(b"\0" * skip + secret.encode()).decode()[4 * (skip > 0) : -4] for skip in range(3)]
    return [secret, *encoded]


def everything(outhaul: Deployment, objects: Objects) -> Iterator[tuple[str, str]]:
    """All that anybody can read without the right to read Secrets: where, and the text."""
    kinds = outhaul.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    assert "events" in kinds
    assert "installationoutputs.outhaul.dev" in kinds
    kinds.remove("secrets")
    for obj in json.loads(outhaul.kubectl("get", ",".join(kinds), "--all-namespaces", "-o", "json"))["items"]:
        metadata = obj["metadata"]
        yield f"{obj['kind']} {metadata.get('namespace', '')}/{metadata['name']}", json.dumps(obj)
    yield "the operator's log", outhaul.operator_log()
    for pod in objects.all("Pod"):
        name = pod["metadata"]["name"]
        yield f"the log of {name}", outhaul.log(objects, name)
    for secret in objects.all("Secret"):
        shown: dict[str, Any] = {key: part for key, part in secret.items() if key not in {"data", "stringData"}}
        yield f"the metadata of {secret['metadata']['name']}", json.dumps(shown)


def test_it_is_in_secrets_alone(outhaul: Deployment, tenant: Objects) -> None:
    """Through an install, an upgrade, a failed run, and with an operator that is started again."""
    seed = uuid.uuid4().hex
    tenant.install("shop", source={"files": {"main.tf": _MODULE}}, parameters={"seed": seed})
    commands = {"install": [{"name": "make", "command": ["sh", "-c", _SCRIPT]}]}
    tenant.install("script", engine="exec", commands=commands, parameters={"seed": seed})
    # The second command fails once there is an output, so a failed run has one too.
    failing = {"install": [*commands["install"], {"name": "fail", "command": ["false"]}]}
    tenant.install("failing", engine="exec", commands=failing, parameters={"seed": f"failing {seed}"})
    values = [value("terraform", seed), value("exec", seed), value("exec", f"failing {seed}")]
    tenant.ready("shop")
    tenant.ready("script")
    assert tenant.ran("failing", 1)["status"]["phase"] == "Failed"
    # The values were there to be leaked.
    assert tenant.secret("shop-outputs")["password"].decode() == values[0]
    assert values[0] in tenant.secret("shop-outputs")["connection"].decode()
    assert tenant.secret("script-outputs")["password"].decode() == values[1]
    tenant.respec("shop", parameters={"seed": seed, "unused": "upgraded"})
    tenant.ran("shop", 2)
    old = outhaul.operator_pod()["metadata"]["name"]
    log = outhaul.operator_log()
    outhaul.kubectl("delete", "pod", "-n", OPERATOR_NAMESPACE, old)
    outhaul.wait_until_available()
    tenant.settle()
    places = [*everything(outhaul, tenant), ("the log of the operator before", log)]
    found = [where for where, text in places for one in values for form in forms(one) if form in text]
    assert found == []
    # What is searched is what was asked for: a value that is not sensitive is found.
    assert any(seed in text for _, text in places)
