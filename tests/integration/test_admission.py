"""The operator under its admission policy, as the API server enforces it: it touches its own Secrets alone."""

import base64
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.controlplane import ControlPlane
from cluster.errors import RequestFailed
from cluster.objects import Objects
from cluster.stack import OPERATOR_NAMESPACE, REPOSITORY, Stack, operator_user
from cluster.waiting import until
from outhaul_api.vocabulary import SecretType

pytestmark = pytest.mark.versions

JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
COMMAND = {"name": "main", "command": ["sh", "-c", 'printf up > "$OUTHAUL_OUTPUTS/state"']}
SPEC: dict[str, Any] = {"engine": "exec", "commands": {"install": [COMMAND], "uninstall": [COMMAND]}}
POLICY = REPOSITORY / "deploy/components/admission-policy/policy.yaml"
REFUSED = r"Outhaul operator may (write|touch) its own Secrets alone"
FOREIGN = {
    "Opaque": {"token": "hunter2"},
    "kubernetes.io/tls": {"tls.crt": "hunter2", "tls.key": "hunter2"},
    "kubernetes.io/service-account-token": {},
    "outhaul.dev/x": {"token": "hunter2"},
    # The Secret of its authorities is one, at home.
    SecretType.CA: {"token": "hunter2"},
}
"""Types that are not of runs, and what a Secret of each needs."""


@pytest.fixture(scope="module", autouse=True)
def policy(stack: Stack) -> Iterator[None]:
    """The policy is in force."""
    plane = stack.control_plane
    operator = as_operator(plane, "default")

    def refuses() -> bool:
        try:
            operator.create("Secret", f"probe-{uuid.uuid4().hex[:10]}")
        except RequestFailed:
            return True
        return False

    plane.kubectl("apply", "-f", str(POLICY))
    until(refuses, what="the policy to be in force", timeout=60)
    yield
    plane.kubectl("delete", "-f", str(POLICY))
    until(lambda: not refuses(), what="the policy to be gone", timeout=60)
    for name in [one for one in Objects(plane, "default").names("Secret") if one.startswith("probe-")]:
        Objects(plane, "default").delete("Secret", name)


def as_operator(plane: ControlPlane, namespace: str) -> Objects:
    """A namespace as the operator's account sees it."""
    return Objects(plane, namespace, plane.client_for(operator_user()))


def attempt(objects: Objects, method: str, name: str, body: Any, how: str) -> Any:
    """Asks for something about a Secret, as the operator's account."""
    client = objects.control_plane.client_for(operator_user())
    path = f"/api/v1/namespaces/{objects.namespace}/secrets/{name}"
    return client.request(method, path, body, content_type=how)


def made(objects: Objects, type_: str) -> str:
    """Makes a Secret of a type, as the administrator; returns its name."""
    name = f"secret-{uuid.uuid4().hex[:10]}"
    account = {"annotations": {"kubernetes.io/service-account.name": "default"}}
    objects.create("Secret", name, type=type_, metadata=account, stringData=FOREIGN[type_])
    return name


ATTEMPTS = [
    pytest.param("PATCH", [], JSON_PATCH, id="empty JSON patch"),
    pytest.param("PATCH", [{"op": "test", "path": "/type", "value": "Opaque"}], JSON_PATCH, id="patch that only tests"),
    pytest.param("PATCH", {}, MERGE, id="empty merge patch"),
    pytest.param("PATCH", {"stringData": {"token": "mine"}}, MERGE, id="merge patch"),
    pytest.param("DELETE", None, "application/json", id="delete"),
]


def test_a_whole_life_under_the_policy(stack: Stack, objects: Objects) -> None:
    """The operator installs, upgrades, renames and uninstalls, and never needs what the policy refuses."""
    log = stack.control_plane.processes.log("operator")
    before = log.stat().st_size
    objects.create("ConfigMap", "code", data={"word": "up"})
    objects.install("service", **SPEC, source={"configMapRef": {"name": "code"}})
    objects.ready("service")
    objects.respec("service", parameters={"changed": True})
    objects.ready("service")
    objects.respec("service", outputs={"secretName": "elsewhere"})
    objects.until("Secret", "elsewhere", lambda _: True, what="it is there")
    objects.gone("Secret", "service-outputs")
    objects.create("AgentConfig", "default", spec={"ttlSecondsAfterFinished": 0})
    objects.respec("service", parameters={"changed": "again"})
    run = objects.ready("service")["status"]["action"]["name"]
    objects.gone("Secret", f"{run}-run")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    asked = [
        one
        for one in stack.control_plane.audit_events(operator_user())
        if (about := one.get("objectRef", {})).get("resource") == "secrets"
        and about.get("namespace") == objects.namespace
    ]
    assert {one["verb"] for one in asked} == {"create", "patch", "delete"}
    assert b"its own Secrets alone" not in log.read_bytes()[before:]


@pytest.mark.parametrize("type_", sorted(set(SecretType) - {SecretType.CA}))
def test_secrets_of_runs_are_the_operator_s(shared_objects: Objects, type_: SecretType) -> None:
    """It makes, patches and deletes the Secrets of runs."""
    name = f"ours-{type_.partition('/')[2]}"
    as_operator(shared_objects.control_plane, shared_objects.namespace).create(
        "Secret", name, type=type_, stringData={"a": "1"}
    )
    shown = attempt(shared_objects, "PATCH", name, [{"op": "test", "path": "/type", "value": type_}], JSON_PATCH)
    assert base64.b64decode(shown["data"]["a"]) == b"1"
    attempt(shared_objects, "PATCH", name, {"stringData": {"a": "2"}}, MERGE)
    assert shared_objects.secret(name) == {"a": b"2"}
    attempt(shared_objects, "DELETE", name, None, "application/json")
    assert shared_objects.find("Secret", name) is None


@pytest.mark.parametrize("type_", FOREIGN)
@pytest.mark.parametrize(("method", "body", "how"), ATTEMPTS)
def test_a_foreign_secret_is_refused(shared_objects: Objects, type_: str, method: str, body: Any, how: str) -> None:
    """The operator's account can neither see nor change nor delete a Secret of another type."""
    name = made(shared_objects, type_)
    before = shared_objects.get("Secret", name)
    if method == "PATCH" and isinstance(body, list) and body:
        body = [{**body[0], "value": type_}]
    with pytest.raises(RequestFailed, match=REFUSED) as caught:
        attempt(shared_objects, method, name, body, how)
    for key, value in before.get("data", {}).items():
        assert value not in str(caught.value)
        # That of a token's Secret is in the path of the request.
        assert key == "namespace" or base64.b64decode(value).decode() not in str(caught.value)
    assert shared_objects.secret(name).items() >= {key: value.encode() for key, value in FOREIGN[type_].items()}.items()


@pytest.mark.parametrize("type_", FOREIGN)
@pytest.mark.parametrize("home", [True, False])
def test_a_foreign_secret_is_not_made(shared_objects: Objects, type_: str, *, home: bool) -> None:
    """The operator's account makes no Secret that others would take for theirs, nor a second one of authorities."""
    plane = shared_objects.control_plane
    theirs = as_operator(plane, OPERATOR_NAMESPACE if home else shared_objects.namespace)
    account = {"annotations": {"kubernetes.io/service-account.name": "default"}}
    with pytest.raises(RequestFailed, match=REFUSED):
        theirs.create("Secret", "made", type=type_, metadata=account, stringData=FOREIGN[type_])


def test_its_authorities_are_in_one_secret(stack: Stack) -> None:
    """The type of that Secret opens the one of its name at home, and none of that name elsewhere."""
    home, elsewhere = Objects(stack.control_plane, OPERATOR_NAMESPACE), Objects(stack.control_plane, "default")
    shown = attempt(home, "PATCH", "outhaul-ca", [], JSON_PATCH)
    assert shown["type"] == SecretType.CA
    with pytest.raises(RequestFailed, match=REFUSED):
        as_operator(stack.control_plane, elsewhere.namespace).create("Secret", "outhaul-ca", type=SecretType.CA)


@pytest.mark.parametrize(
    "user",
    [
        "alice",
        "system:serviceaccount:outhaul-system:default",
        "system:serviceaccount:team-a:outhaul-operator",
        "system:serviceaccount:kube-system:generic-garbage-collector",
    ],
)
def test_others_are_not_affected(shared_objects: Objects, user: str) -> None:
    """Whoever is not the operator makes, patches and deletes Secrets as RBAC says."""
    plane = shared_objects.control_plane
    theirs = Objects(plane, shared_objects.namespace, plane.client_for(user, ["system:masters"]))
    name = f"theirs-{uuid.uuid4().hex[:10]}"
    theirs.create("Secret", name, stringData={"a": "1"})
    theirs.patch("Secret", name, {"stringData": {"a": "2"}})
    theirs.delete("Secret", name)
    assert theirs.find("Secret", name) is None
