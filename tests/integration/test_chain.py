"""The chain of samples/chain, network, database, application: from one `kubectl apply` to the end of all three.

What changes the chain has one of its own.
"""

import base64
import itertools
import uuid
from typing import Any

import pytest
from cluster.objects import Json, Objects, requests_in
from cluster.stack import REPOSITORY, Stack, operator_user
from cluster.waiting import until

SAMPLE = str(REPOSITORY / "samples/chain")
CHAIN = ("network", "orders-database", "application")
COLLECTED = 90.0
"""Seconds: the garbage collector of a new cluster learns of our kinds within a minute."""


@pytest.fixture(scope="module")
def chain(shared_tenant: Objects) -> Objects:
    """A namespace in which the sample was applied, and in which all three are ready, for who changes nothing."""
    return applied(shared_tenant)


@pytest.fixture
def own_chain(tenant: Objects) -> Objects:
    """A namespace like it, for one test."""
    return applied(tenant)


def applied(objects: Objects) -> Objects:
    """Applies the sample, and waits until all three are ready."""
    objects.control_plane.kubectl("apply", "-n", objects.namespace, "-k", SAMPLE)
    for name in CHAIN:
        objects.ready(name)
    return objects


def everything(objects: Objects) -> str:
    """Every object of the cluster but Secrets, as JSON, with all events."""
    kubectl = objects.control_plane.kubectl
    kinds = [
        kind
        for scope in ("true", "false")
        for kind in kubectl("api-resources", "--verbs=list", f"--namespaced={scope}", "-o", "name").split()
        if kind != "secrets"
    ]
    return kubectl("get", ",".join(kinds), "-A", "-o", "json")


def test_the_chain_is_installed_in_order(chain: Objects) -> None:
    """Each of the three was installed by one run, after those that it uses."""
    runs = [run for name in CHAIN for run in chain.runs(name)]
    assert [run["spec"]["installation"]["name"] for run in runs] == list(CHAIN)
    for before, after in itertools.pairwise(runs):
        assert before["status"]["finishedAt"] <= after["metadata"]["creationTimestamp"]


def test_values_come_through(chain: Objects) -> None:
    """The address reaches the database and the application, and the database's Secret has a DSN and a binding type."""
    database = chain.secret("orders-database-outputs")
    assert database["host"] == b"10.8.0.10"
    assert database["dsn"] == b"postgresql://shop:%s@10.8.0.10/shop" % database["password"]
    assert database["type"] == b"postgresql"
    assert chain.secret("application-outputs") == {"url": b"http://app.example/?db=10.8.0.10"}


def test_the_operator_reads_no_secret(chain: Objects) -> None:
    """The password comes to the application by reference; the operator has never asked for a Secret to be shown."""
    (application,) = chain.runs("application")
    (database,) = chain.runs("orders-database")
    (password,) = (one for one in application["spec"]["env"] if one["name"] == "OUTHAUL_INPUT_password")
    reference = {"name": f"{database['metadata']['name']}-outputs", "key": "password"}
    assert password["valueFrom"] == {"secretKeyRef": reference}
    events = chain.control_plane.audit_events(operator_user())
    reads = requests_in(events, chain.namespace, {"get", "list", "watch"})
    assert reads
    assert not [one for one in reads if "/secrets" in one]


def test_the_password_is_in_secrets_alone(chain: Objects, stack: Stack) -> None:
    """No object but Secrets has the password, nor has any event, log, pod or termination message."""
    password = chain.secret("orders-database-outputs")["password"].decode()
    assert len(password) == 24
    logs = [file.read_text(errors="replace") for file in (stack.control_plane.root / "log").glob("*.log*")]
    pods = [one["metadata"]["name"] for one in chain.all("Pod")]
    logs += [stack.container_log(chain.namespace, pod) for pod in pods]
    assert len(pods) == 3
    assert all(logs)
    objects = everything(chain)
    assert '"containerStatuses"' in objects
    for canary in (password, base64.b64encode(password.encode()).decode()):
        assert canary not in objects
        assert not [log for log in logs if canary in log]


def test_another_network_runs_downstream_again(own_chain: Objects) -> None:
    """Another `cidr` of the network runs it, then the database, then the application; the password stays."""
    before = own_chain.secret("orders-database-outputs")["password"]
    own_chain.respec("network", parameters={"cidr": "10.9.0.0/16"})
    second = [own_chain.ran(name, 2) for name in CHAIN]
    for name in CHAIN:
        own_chain.ready(name)
    assert [run["spec"]["action"] for run in second] == ["upgrade"] * 3
    assert own_chain.secret("orders-database-outputs")["password"] == before
    assert own_chain.secret("application-outputs") == {"url": b"http://app.example/?db=10.9.0.10"}


def test_all_three_go_in_the_opposite_order(own_chain: Objects) -> None:
    """Deleted all at once, they are uninstalled from the last to the first, and nothing is left."""
    own_chain.control_plane.kubectl("delete", "-n", own_chain.namespace, "--wait=false", "-k", SAMPLE)
    for name in CHAIN:
        own_chain.gone("Installation", name)
    events = own_chain.control_plane.audit_events(operator_user())
    created = [one for one in events if one["verb"] == "create" and one["responseStatus"]["code"] == 201]
    runs = [
        one["objectRef"]["name"].rpartition("-")[0]
        for one in created
        if one["objectRef"].get("resource") == "agentactions"
        and one["objectRef"]["namespace"] == own_chain.namespace
        and "dryRun" not in one["requestURI"]
    ]
    assert runs[-3:] == [*reversed(CHAIN)]
    until(lambda: not own_chain.left(), what="nothing is left", timeout=COLLECTED)


def link(*users: str) -> dict[str, Any]:
    """The spec of an Installation that has something to uninstall, and that depends on others."""
    steps: dict[str, list[Json]] = {
        when: [{"name": when, "command": ["sh", "-c", 'printf x > "$OUTHAUL_OUTPUTS/x"']}]
        for when in ("install", "uninstall")
    }
    return {"engine": "exec", "commands": steps, "dependsOn": list(users)}


def test_a_namespace_with_a_chain_can_be_deleted(stack: Stack) -> None:
    """A namespace with a chain in it, deleted whole, ends: no finalizer waits for what cannot be run any more."""
    objects = Objects(stack.control_plane, f"test-{uuid.uuid4().hex[:10]}")
    stack.control_plane.create_namespace(objects.namespace)
    objects.install("first", **link())
    objects.install("second", **link("first"))
    objects.install("third", **link("second"))
    objects.ready("third")
    namespaces = "/api/v1/namespaces"
    stack.control_plane.request("DELETE", f"{namespaces}/{objects.namespace}")

    def gone() -> bool:
        items = stack.control_plane.request("GET", namespaces)["items"]
        return objects.namespace not in [one["metadata"]["name"] for one in items]

    until(gone, what=f"namespace {objects.namespace} is gone", timeout=60)
