"""An Installation from its creation to its end, on a real API server with a real agent."""

import base64
from collections.abc import Callable

import pytest
import yaml
from cluster import waiting
from cluster.controlplane import ControlPlane
from cluster.stack import REPOSITORY, Stack


@pytest.fixture
def tenant(namespace: str, control_plane: ControlPlane, stack: Stack) -> str:
    """A namespace that is prepared for Terraform, as `deploy/components/terraform-tenant` does it."""
    component = REPOSITORY / "deploy/components/terraform-tenant"
    for file in ("serviceaccount.yaml", "role.yaml", "agentconfig.yaml"):
        text = (component / file).read_text().replace("namespace: default", f"namespace: {namespace}")
        control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
    return namespace


def test_terraform_outputs_reach_the_latest_secret(
    tenant: str, control_plane: ControlPlane, kubectl: Callable[..., str]
) -> None:
    """Terraform's outputs are typed in the record, exact in the Secret, and the sensitive one is only there."""
    kubectl("apply", "-n", tenant, "-k", str(REPOSITORY / "samples/terraform"))
    kubectl("wait", "-n", tenant, "--for=condition=Ready", "installation/database", "--timeout=60s")
    secret = control_plane.request("GET", f"/api/v1/namespaces/{tenant}/secrets/database-outputs")
    values = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    assert values["host"] == b"shop.db.internal"
    assert values["zones"] == b'["a","b"]'
    record = yaml.safe_load(kubectl("get", "io", "-n", tenant, "-o", "yaml"))["items"][0]
    assert {one["name"]: one.get("value") for one in record["status"]["outputs"]} == {
        "host": "shop.db.internal",
        "password": None,
        "port": 5432,
        "settings": {"backup": "daily", "pool": 10, "tls": True},
        "zones": ["a", "b"],
    }
    kubectl("delete", "-n", tenant, "installation/database", "--timeout=60s")

    def left() -> list[str]:
        found = kubectl("get", "pods,secrets,leases,io,aa", "-n", tenant, "-o", "name").split()
        return [one for one in found if "token" not in one]

    # The garbage collector looks for new kinds every 30 seconds; ours are new to a new cluster.
    waiting.until(lambda: not left(), what="nothing is left", timeout=90)
