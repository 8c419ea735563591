"""The ValidatingAdmissionPolicy of `deploy/`: the operator touches its own Secrets alone, others are not affected."""

from pathlib import Path
from typing import Any

import pytest
from outhaul_api.vocabulary import SecretType
from policies import Policy

OPERATOR = "system:serviceaccount:outhaul-system:outhaul-operator"
HOME, TENANT = "outhaul-system", "team-a"
POLICY = Policy(Path(__file__).parents[2] / "deploy/components/admission-policy/policy.yaml")


def secret(type_: str, namespace: str = TENANT, name: str = "x") -> dict[str, Any]:
    """A Secret of a type."""
    return {"type": str(type_), "metadata": {"name": name, "namespace": namespace}, "data": {"a": "Yg=="}}


def refused(
    operation: str,
    *,
    old: dict[str, Any] | None = None,
    new: dict[str, Any] | None = None,
    user: str = OPERATOR,
    resource: str = "secrets",
) -> bool:
    """Whether a request is refused."""
    request = {
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": resource},
        "userInfo": {"username": user},
        "object": new,
        "oldObject": old,
    }
    return POLICY.refusal(request) is not None


@pytest.mark.parametrize("type_", sorted(set(SecretType) - {SecretType.CA}))
@pytest.mark.parametrize("namespace", [HOME, TENANT])
def test_secrets_of_runs_are_the_operator_s(type_: SecretType, namespace: str) -> None:
    """It makes, patches and deletes the Secrets of runs, wherever they are."""
    ours = secret(type_, namespace)
    assert not refused("CREATE", new=ours)
    assert not refused("UPDATE", old=ours, new=ours)
    assert not refused("DELETE", old=ours)


@pytest.mark.parametrize(
    "type_", ["Opaque", "kubernetes.io/tls", "kubernetes.io/service-account-token", "outhaul.dev/x"]
)
@pytest.mark.parametrize("namespace", [HOME, TENANT])
def test_every_other_secret_is_foreign(type_: str, namespace: str) -> None:
    """A Secret of any other type is neither made nor touched, not even by a patch that changes nothing."""
    foreign, ours = secret(type_, namespace, "outhaul-ca"), secret(SecretType.OUTPUTS, namespace, "outhaul-ca")
    assert refused("CREATE", new=foreign)
    assert refused("UPDATE", old=foreign, new=foreign)
    assert refused("DELETE", old=foreign)
    assert refused("UPDATE", old=foreign, new=ours)
    assert refused("UPDATE", old=ours, new=foreign)


def test_its_authorities_are_in_one_secret() -> None:
    """The type of that Secret opens no other one, and none elsewhere."""
    own = secret(SecretType.CA, HOME, "outhaul-ca")
    assert not refused("CREATE", new=own)
    assert not refused("UPDATE", old=own, new=own)
    for other in (secret(SecretType.CA, HOME, "other-ca"), secret(SecretType.CA, TENANT, "outhaul-ca")):
        assert refused("CREATE", new=other)
        assert refused("UPDATE", old=other, new=other)
        assert refused("DELETE", old=other)


@pytest.mark.parametrize(
    "user",
    [
        "alice",
        "system:serviceaccount:outhaul-system:default",
        "system:serviceaccount:team-a:outhaul-operator",
        "system:serviceaccount:kube-system:generic-garbage-collector",
    ],
)
def test_nobody_else_is_affected(user: str) -> None:
    """Whoever is not the operator does with Secrets what RBAC says."""
    assert not refused("CREATE", new=secret("Opaque"), user=user)
    assert not refused("UPDATE", old=secret("Opaque"), new=secret("Opaque"), user=user)
    assert not refused("DELETE", old=secret(SecretType.OUTPUTS), user=user)


def test_other_resources_are_not_its_business() -> None:
    """What the operator does with pods is not looked at."""
    assert not refused("CREATE", new=secret("Opaque"), resource="pods")
