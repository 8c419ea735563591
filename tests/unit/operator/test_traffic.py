"""What a request to the API server is about."""

import pytest
from outhaul_operator.traffic import Asked, asked
from yarl import URL

OURS = "/apis/outhaul.dev/v1alpha1"


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource"),
    [
        ("GET", f"{OURS}/namespaces/n/installations/a", "get", "installations"),
        ("GET", f"{OURS}/namespaces/n/installations", "list", "installations"),
        ("GET", f"{OURS}/installations?limit=1", "list", "installations"),
        ("GET", f"{OURS}/installations?watch=true", "watch", "installations"),
        ("PATCH", f"{OURS}/namespaces/n/installations/a/status", "patch", "installations/status"),
        ("POST", "/api/v1/namespaces/n/secrets", "create", "secrets"),
        ("DELETE", "/api/v1/namespaces/n/pods/a", "delete", "pods"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/a", "update", "leases"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "create", "selfsubjectaccessreviews"),
        ("GET", "/api/v1/namespaces/n", "get", "namespaces"),
        ("GET", "/api/v1/namespaces?watch=true", "watch", "namespaces"),
        ("GET", "/apis/outhaul.dev", "list", "other"),
        ("GET", "/version", "list", "other"),
        ("GET", "/", "list", "other"),
    ],
)
def test_a_request_is_named_without_names(method: str, path: str, verb: str, resource: str) -> None:
    """A request is told by verb and resource, wherever and about whatever object it is."""
    assert asked(method, URL(f"https://host:6443{path}")) == Asked(verb, resource)
