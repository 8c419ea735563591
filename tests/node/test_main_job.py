"""The main job on a real node: Terraform in a real pod, its outputs in a Secret that an application mounts.

The operator runs as a pod from the manifests of `deploy/`, under their rights and no others.
"""

import uuid
from collections.abc import Iterator

import pytest
from cluster.errors import RequestFailed
from cluster.objects import Objects, condition_of
from cluster.stack import OPERATOR_NAMESPACE, REPOSITORY, operator_user
from node.deployments import Deployment

pytestmark = [pytest.mark.node, pytest.mark.versions]

SAMPLE = "samples/terraform"
APPLICATION = (REPOSITORY / SAMPLE / "app.yaml").read_text()


@pytest.fixture(scope="module")
def database(outhaul: Deployment) -> Iterator[Objects]:
    """A tenant's namespace with `samples/terraform` installed, for tests that change nothing."""
    objects = outhaul.tenant(f"shop-{uuid.uuid4().hex[:10]}")
    outhaul.apply_sample(objects, SAMPLE)
    outhaul.kubectl("wait", "-n", objects.namespace, "--for=condition=Ready", "installation/database", "--timeout=60s")
    yield objects
    objects.abandon()
    objects.control_plane.request("DELETE", f"/api/v1/namespaces/{objects.namespace}")


def application(agent_image: str) -> str:
    """The sample's application, with the image of this machine."""
    return APPLICATION.replace("image: outhaul-agent", f"image: {agent_image}")


def test_the_operator_runs_from_its_manifests(outhaul: Deployment) -> None:
    """Its probes pass, it comes up at the first attempt, and the API server knows it by its own account."""
    pod = outhaul.operator_pod()
    (container,) = pod["status"]["containerStatuses"]
    assert (container["ready"], outhaul.restarts_at_first) == (True, 0)
    assert pod["spec"]["serviceAccountName"] == "outhaul-operator"
    assert outhaul.control_plane.audit_events(operator_user())


def test_the_operator_s_rights_suffice(outhaul: Deployment, database: Objects) -> None:
    """For a whole run of Terraform nothing was refused to it."""
    assert outhaul.refusals() == []


def test_terraform_s_outputs_reach_record_and_secret(outhaul: Deployment, database: Objects) -> None:
    """Plain values are typed in the record; the sensitive one is in the Secret alone."""
    run = database.get("Installation", "database")["status"]["action"]["name"]
    record = database.get("InstallationOutput", run)
    values = {one["name"]: (one["type"], one["sensitive"], one.get("value")) for one in record["status"]["outputs"]}
    assert values == {
        "host": ("string", False, "shop.db.internal"),
        "password": ("string", True, None),
        "port": ("number", False, 5432),
        "settings": ("object", False, {"backup": "daily", "pool": 10, "tls": True}),
        "zones": ("array", False, ["a", "b"]),
    }
    secret = database.secret("database-outputs")
    assert len(secret.pop("password")) == 24
    assert secret == {
        "host": b"shop.db.internal",
        "port": b"5432",
        "settings": b'{"backup":"daily","pool":10,"tls":true}',
        "zones": b'["a","b"]',
    }
    assert "Apply complete! Resources: 2 added" in outhaul.log(database, run)


def test_an_application_reads_a_mounted_value(outhaul: Deployment, database: Objects, agent_image: str) -> None:
    """The sample's application finds host and port in the files of the mounted Secret."""
    said = outhaul.run_application(database, application(agent_image))
    assert said == "connecting to shop.db.internal:5432\n"


def test_every_pod_is_restricted(outhaul: Deployment, database: Objects) -> None:
    """The pods of the run and of the operator are where the API server admits the standard `restricted` alone."""
    assert database.get("Pod", database.get("Installation", "database")["status"]["action"]["name"])
    assert outhaul.operator_pod()
    container = {"name": "main", "image": "none", "securityContext": {"privileged": True}}
    for namespace in (database.namespace, OPERATOR_NAMESPACE):
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        with pytest.raises(RequestFailed, match='violates PodSecurity "restricted:latest"'):
            outhaul.control_plane.request(
                "POST", path, {"metadata": {"name": "x"}, "spec": {"containers": [container]}}
            )


def test_only_the_tenant_s_account_is_in_the_pod(database: Objects) -> None:
    """The run's pod has the account that its AgentConfig names, and the operator's nowhere."""
    run = database.get("Installation", "database")["status"]["action"]["name"]
    pod = database.get("Pod", run)
    assert pod["spec"]["serviceAccountName"] == "outhaul-terraform"
    assert "outhaul-operator" not in str(pod["spec"])


def test_an_upgrade_and_an_end(outhaul: Deployment, tenant: Objects, agent_image: str) -> None:
    """A changed parameter supersedes what was; a deletion destroys it, and leaves nothing but what was prepared."""
    before = sorted(tenant.left())
    outhaul.apply_sample(tenant, SAMPLE)
    first = tenant.ready("database")["status"]["action"]["name"]
    password = tenant.secret("database-outputs")["password"]
    tenant.respec("database", parameters={"port": 6543})
    second = tenant.ready("database")["status"]["action"]["name"]
    assert tenant.records("database") == {first: "Superseded", second: "Current"}
    after = tenant.secret("database-outputs")
    assert (after["port"], after["password"]) == (b"6543", password)
    said = outhaul.run_application(tenant, application(agent_image))
    assert said == "connecting to shop.db.internal:6543\n"
    assert {"Lease/lock-tfstate-default-database", "Secret/tfstate-default-database"} <= set(tenant.left())
    outhaul.kubectl("delete", "-n", tenant.namespace, "installation", "database", "--timeout=60s")
    for kind in ("AgentAction", "InstallationOutput", "Pod", "Lease", "Secret"):
        for name in tenant.names(kind):
            if f"{kind}/{name}" not in before:
                tenant.gone(kind, name)
    assert sorted(tenant.left()) == before
    reasons = [reason for _, reason, _ in tenant.events("Installation", "database")]
    assert "Uninstalled" in reasons or "Succeeded" in reasons


def test_the_exec_sample(outhaul: Deployment, objects: Objects) -> None:
    """`samples/exec` needs no preparation: a namespace with nothing in it, and the operator's own agent image."""
    outhaul.apply_sample(objects, "samples/exec/installation.yaml")
    installation = objects.ready("greeting")
    assert objects.secret("greeting-outputs") == {
        "details.json": b'{"who": "world", "length": 5}',
        "greeting": b"Hello, world!",
    }
    run = installation["status"]["action"]["name"]
    assert "greeting world" in outhaul.log(objects, run)
    pod = objects.get("Pod", run)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert condition_of(installation, "OutputsReady") is not None
    outhaul.kubectl("delete", "-n", objects.namespace, "installation", "greeting", "--timeout=60s")
    for kind in ("AgentAction", "InstallationOutput", "Pod", "Secret"):
        for name in objects.names(kind):
            objects.gone(kind, name)
