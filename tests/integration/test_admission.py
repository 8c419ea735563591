"""The operator under its admission policy, and what its account can do without one.

The tests' API server is too old for a ValidatingAdmissionPolicy. A webhook takes its place: the API server sends it
every request that the policy's rules name, and it answers as the policy's expressions say.
"""

import base64
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import webhooks
from cluster.controlplane import ControlPlane
from cluster.errors import RequestFailed
from cluster.objects import Json, Objects
from cluster.stack import REPOSITORY, Stack, operator_user
from cluster.waiting import until
from policies import Policy

JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
COMMAND = {"name": "main", "command": ["sh", "-c", 'printf up > "$OUTHAUL_OUTPUTS/state"']}
SPEC: dict[str, Any] = {"engine": "exec", "commands": {"install": [COMMAND], "uninstall": [COMMAND]}}


class Reviews:
    """What the API server has asked, and the policy that answers."""

    def __init__(self) -> None:
        self.policy = Policy(REPOSITORY / "deploy/components/admission-policy/policy.yaml")
        self.requests: list[Json] = []

    def answer(self, request: Json) -> Json:
        """Answers the request of an AdmissionReview."""
        self.requests.append(request)
        refusal = self.policy.refusal(request)
        if refusal is None:
            return {"allowed": True}
        return {"allowed": False, "status": {"code": 422, "message": refusal}}

    def of_the_operator(self, namespace: str) -> set[tuple[str, str]]:
        """Operation and the Secret's type of each request of the operator in a namespace."""
        theirs = (one for one in self.requests if one["userInfo"]["username"] == operator_user())
        return {
            (one["operation"], (one["object"] or one["oldObject"])["type"])
            for one in theirs
            if one["namespace"] == namespace
        }


@pytest.fixture(scope="module")
def reviews(stack: Stack, shared_objects: Objects) -> Iterator[Reviews]:
    """The policy, in force in the module's namespace."""
    found = Reviews()
    plane, namespace = stack.control_plane, shared_objects.namespace
    with (
        webhooks.serving(plane, found.answer) as url,
        webhooks.registered(plane, namespace, url, found.policy.rules),
    ):
        secrets = as_operator(plane, namespace)

        def refused() -> bool:
            try:
                secrets.create("Secret", f"probe-{uuid.uuid4().hex[:10]}")
            except RequestFailed:
                return True
            return False

        until(refused, what="the API server asks the webhook")
        yield found


def as_operator(plane: ControlPlane, namespace: str) -> Objects:
    """A namespace as the operator's account sees it."""
    return Objects(plane, namespace, plane.client_for(operator_user()))


def attempt(objects: Objects, method: str, name: str, body: Any, how: str) -> Any:
    """Asks for something about a Secret, as the operator's account."""
    client = objects.control_plane.client_for(operator_user())
    path = f"/api/v1/namespaces/{objects.namespace}/secrets/{name}"
    return client.request(method, path, body, content_type=how)


ATTEMPTS = [
    pytest.param("PATCH", [], JSON_PATCH, id="empty JSON patch"),
    pytest.param("PATCH", [{"op": "test", "path": "/type", "value": "Opaque"}], JSON_PATCH, id="patch that only tests"),
    pytest.param("PATCH", {}, MERGE, id="empty merge patch"),
    pytest.param("PATCH", {"stringData": {"token": "mine"}}, MERGE, id="merge patch"),
    pytest.param("DELETE", None, "application/json", id="delete"),
]


def test_a_whole_life_under_the_policy(reviews: Reviews, shared_objects: Objects) -> None:
    """The operator installs, upgrades, renames and uninstalls, and never needs what the policy refuses."""
    objects = shared_objects
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
    seen = reviews.of_the_operator(objects.namespace)
    types = {"outhaul.dev/run", "outhaul.dev/source", "outhaul.dev/outputs"}
    assert {one for one in seen if one[1] in types} >= {
        ("CREATE", "outhaul.dev/run"),
        ("DELETE", "outhaul.dev/run"),
        ("CREATE", "outhaul.dev/source"),
        ("DELETE", "outhaul.dev/source"),
        ("CREATE", "outhaul.dev/outputs"),
        ("UPDATE", "outhaul.dev/outputs"),
        ("DELETE", "outhaul.dev/outputs"),
    }
    # Beside them there are only the attempts of this module.
    assert {type_ for _, type_ in seen} <= types | {"Opaque"}


@pytest.mark.parametrize(("method", "body", "how"), ATTEMPTS)
def test_a_foreign_secret_is_refused(
    reviews: Reviews, shared_objects: Objects, method: str, body: Any, how: str
) -> None:
    """Under the policy the operator's account can neither see nor change nor delete a Secret that is not Outhaul's."""
    name = f"foreign-{uuid.uuid4().hex[:10]}"
    shared_objects.create("Secret", name, stringData={"token": "hunter2"})
    with pytest.raises(RequestFailed) as caught:
        attempt(shared_objects, method, name, body, how)
    assert "may write its own Secrets alone" in str(caught.value) or "may touch its own" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert base64.b64encode(b"hunter2").decode() not in str(caught.value)
    assert shared_objects.secret(name) == {"token": b"hunter2"}


def test_no_other_secret_is_made(reviews: Reviews, shared_objects: Objects) -> None:
    """Under the policy the operator's account makes no Secret that others would take for theirs."""
    theirs = as_operator(shared_objects.control_plane, shared_objects.namespace)
    for type_, metadata in (
        ("Opaque", {}),
        ("kubernetes.io/service-account-token", {"annotations": {"kubernetes.io/service-account.name": "default"}}),
    ):
        with pytest.raises(RequestFailed) as caught:
            theirs.create("Secret", "made", type=type_, metadata=metadata)
        assert "may write its own Secrets alone" in str(caught.value)
    assert "made" not in shared_objects.names("Secret")


def test_others_are_not_affected(reviews: Reviews, shared_objects: Objects) -> None:
    """Whoever is not the operator makes, patches and deletes Secrets as before."""
    shared_objects.create("Secret", "theirs", stringData={"a": "1"})
    shared_objects.patch("Secret", "theirs", {"stringData": {"a": "2"}})
    shared_objects.delete("Secret", "theirs")
    asked = {one["operation"] for one in reviews.requests if one["name"] == "theirs"}
    assert asked == {"CREATE", "UPDATE", "DELETE"}


def test_without_the_policy_a_patch_shows_a_secret(objects: Objects) -> None:
    """RBAC alone does not keep the operator's account from reading: this is what the policy is for."""
    objects.create("Secret", "foreign", stringData={"token": "hunter2"})
    shown = attempt(objects, "PATCH", "foreign", [], JSON_PATCH)
    assert base64.b64decode(shown["data"]["token"]) == b"hunter2"
    with pytest.raises(RequestFailed) as caught:
        attempt(objects, "GET", "foreign", None, "application/json")
    assert caught.value.status == 403
