"""`kubectl apply -k deploy` works, and gives the operator the rights that it needs and no others."""

import base64
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.controlplane import ControlPlane
from cluster.errors import RequestFailed
from cluster.objects import Objects
from cluster.stack import await_kinds
from outhaul_operator import authorities
from outhaul_operator.leadership import LEASE

pytestmark = pytest.mark.versions

ROOT = Path(__file__).parents[2]
Kubectl = Callable[..., str]
Object = dict[str, Any]

OPERATOR = "system:serviceaccount:outhaul-system:outhaul-operator"
TENANT = "system:serviceaccount:team-a:outhaul-terraform"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
KINDS = {"installations", "agentactions", "agentconfigs", "installationoutputs"}


@pytest.fixture(scope="module", autouse=True)
def deployed(control_plane: ControlPlane) -> Iterator[None]:
    """The operator's manifests, and a tenant's, are applied; the namespaces go afterwards, the CRDs stay."""
    control_plane.kubectl("apply", "-k", str(ROOT / "deploy"))
    await_kinds(control_plane)
    control_plane.kubectl("apply", "-k", str(ROOT / "deploy/examples/terraform-tenant"))
    yield
    control_plane.kubectl("delete", "--wait=false", "namespace", "outhaul-system", "team-a")
    control_plane.kubectl("delete", "clusterrolebinding", "outhaul-operator")
    control_plane.kubectl("delete", "clusterrole", "outhaul-operator", "outhaul-view", "outhaul-edit")


def rendered(kubectl: Kubectl, path: str) -> list[Object]:
    """The objects that a kustomization makes."""
    return list(yaml.safe_load_all(kubectl("kustomize", str(ROOT / path))))


def stored(kubectl: Kubectl, namespace: str, kind: str, name: str) -> Object:
    """An object as the API server has it."""
    answer: Object = json.loads(kubectl("get", "-n", namespace, kind, name, "-o", "json"))
    return answer


def may(control_plane: ControlPlane, user: str, verb: str, resource: str, namespace: str, *, name: str = "") -> bool:
    """The API server's own answer to whether a user may do something (`plural.group/subresource`)."""
    whole, _, subresource = resource.partition("/")
    plural, _, group = whole.partition(".")
    attributes = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "name": name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = control_plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def assert_admitted(plane: ControlPlane, namespace: str, spec: Object) -> None:
    """A namespace that enforces `restricted` takes such a pod; nothing is made."""
    enforced = plane.request("GET", f"/api/v1/namespaces/{namespace}")["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = {"metadata": {"name": "trial"}, "spec": spec}
    plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)


def test_applying_again_changes_nothing(kubectl: Kubectl) -> None:
    """What the API server stores is what the manifests say, so a second apply is quiet."""
    kubectl("apply", "-k", str(ROOT / "deploy"))
    said = kubectl("apply", "-k", str(ROOT / "deploy")).splitlines()
    assert [line for line in said if not line.endswith("unchanged")] == []


def test_all_objects_exist(kubectl: Kubectl) -> None:
    """Each object of the kustomization is on the server, in the operator's namespace or in none."""
    objects = rendered(kubectl, "deploy")
    assert {obj["kind"] for obj in objects} == {
        "Namespace",
        "CustomResourceDefinition",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
    }
    for obj in objects:
        assert obj["metadata"].get("namespace", "outhaul-system") == "outhaul-system"
        assert stored(kubectl, "outhaul-system", obj["kind"], obj["metadata"]["name"])


def test_the_crds_are_those_of_the_folder(kubectl: Kubectl) -> None:
    """No second copy of a CRD is kept under deploy/."""
    found = {obj["metadata"]["name"] for obj in rendered(kubectl, "deploy") if "CustomRes" in obj["kind"]}
    assert found == {f"{plural}.outhaul.dev" for plural in KINDS}


@pytest.mark.parametrize("path", ["deploy", "deploy/examples/terraform-tenant"])
def test_no_wildcards(path: str, kubectl: Kubectl) -> None:
    """No rule says "everything": new resources and verbs stay out until somebody thinks of them."""
    rules = [rule for obj in rendered(kubectl, path) for rule in obj.get("rules", [])]
    assert rules
    assert "*" not in str(rules)


def test_the_operator_cannot_look_through_secrets(kubectl: Kubectl) -> None:
    """Outside of its own namespace it creates, patches and deletes; it never gets, lists or watches."""
    roles = {obj["metadata"]["name"]: obj for obj in rendered(kubectl, "deploy") if obj["kind"] == "ClusterRole"}
    role = roles["outhaul-operator"]
    verbs = {verb for rule in role["rules"] if "secrets" in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {"create", "patch", "delete"}


@pytest.mark.parametrize(
    ("resource", "verbs"),
    [
        ("installations.outhaul.dev", "get list watch patch"),
        ("installations.outhaul.dev/status", "patch"),
        ("agentactions.outhaul.dev", "get list watch create delete"),
        ("agentactions.outhaul.dev/status", "patch"),
        ("agentconfigs.outhaul.dev", "get list watch"),
        ("installationoutputs.outhaul.dev", "get list create patch"),
        ("pods", "get list watch create delete"),
        ("pods/exec", ""),
        ("pods/log", ""),
        ("secrets", "create patch delete"),
        ("configmaps", ""),
        ("events", "create watch"),
        ("serviceaccounts", ""),
        ("serviceaccounts/token", ""),
        ("namespaces", ""),
        ("customresourcedefinitions.apiextensions.k8s.io", ""),
    ],
)
def test_what_the_operator_may_do_anywhere(resource: str, verbs: str, control_plane: ControlPlane) -> None:
    """The API server's own answer, for every verb."""
    allowed = [verb for verb in VERBS if may(control_plane, OPERATOR, verb, resource, "default")]
    assert sorted(allowed) == sorted(verbs.split())


def test_without_its_policy_a_patch_shows_the_operator_a_secret(control_plane: ControlPlane, namespace: str) -> None:
    """RBAC alone does not keep the operator's account from reading: that is what the admission policy is for."""
    objects = Objects(control_plane, namespace)
    objects.create("Secret", "foreign", stringData={"token": "hunter2"})
    operator, path = control_plane.client_for(OPERATOR), f"/api/v1/namespaces/{namespace}/secrets/foreign"
    shown = operator.request("PATCH", path, [], content_type="application/json-patch+json")
    assert base64.b64decode(shown["data"]["token"]) == b"hunter2"
    with pytest.raises(RequestFailed) as caught:
        operator.request("GET", path)
    assert caught.value.status == 403


def test_the_operator_keeps_its_authority_at_home(control_plane: ControlPlane) -> None:
    """In its own namespace it may make, read and write the one Secret of its authorities, and list none."""
    home = (control_plane, OPERATOR)
    for verb in ("create", "get", "update"):
        assert may(*home, verb, "secrets", "outhaul-system", name=authorities.SECRET_NAME)
    for verb in ("get", "list", "watch"):
        assert not may(*home, verb, "secrets", "outhaul-system")


def test_the_component_for_an_own_authority_names_its_secret(kubectl: Kubectl, tmp_path: Path) -> None:
    """Added to the operator, it has the Deployment read a Secret that its Role lets it read, and no other."""
    deploy = os.path.relpath(ROOT / "deploy", tmp_path)
    wanted = {"resources": [f"{deploy}/operator"], "components": [f"{deploy}/components/own-ca"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    objects = {(one["kind"], one["metadata"]["name"]): one for one in rendered(kubectl, str(tmp_path))}
    (container,) = objects["Deployment", "outhaul-operator"]["spec"]["template"]["spec"]["containers"]
    (name,) = [one["value"] for one in container["env"] if one["name"] == "OUTHAUL_CA_SECRET"]
    role = objects["Role", "outhaul-own-ca"]
    assert role["metadata"]["namespace"] == "outhaul-system"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}]
    assert {"POD_NAMESPACE", "OUTHAUL_AGENT_IMAGE"} <= {one["name"] for one in container["env"]}


def test_the_operator_has_one_lease(control_plane: ControlPlane) -> None:
    """In its own namespace it may keep the one Lease that says who leads, and touches no other, as Terraform's are."""
    lease, home = "leases.coordination.k8s.io", "outhaul-system"
    named = [verb for verb in VERBS if may(control_plane, OPERATOR, verb, lease, home, name=LEASE)]
    unnamed = [verb for verb in VERBS if may(control_plane, OPERATOR, verb, lease, home)]
    elsewhere = [verb for verb in VERBS if may(control_plane, OPERATOR, verb, lease, "default")]
    assert (named, unnamed, elsewhere) == (["get", "create", "patch"], ["create"], [])


def test_the_deployment_is_two_careful_pods(control_plane: ControlPlane, kubectl: Kubectl) -> None:
    """One operator works and one waits; each is probed, limited, and fit for `restricted`."""
    deployment = stored(kubectl, "outhaul-system", "deployment", "outhaul-operator")["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (2, "RollingUpdate")
    pod = deployment["template"]["spec"]
    assert_admitted(control_plane, "outhaul-system", pod)
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}
    for probe, path in (("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http", "scheme": "HTTP"}
    assert {variable["name"] for variable in container["env"]} == {"POD_NAMESPACE", "POD_NAME", "OUTHAUL_AGENT_IMAGE"}


def test_the_application_sample_is_restricted(control_plane: ControlPlane) -> None:
    """The sample's namespace enforces it."""
    app = yaml.safe_load((ROOT / "samples/terraform/app.yaml").read_text(encoding="utf-8"))
    assert_admitted(control_plane, "team-a", app["spec"])


def test_a_tenant_is_prepared(kubectl: Kubectl) -> None:
    """The component puts its objects into the tenant's namespace, and binds the tenant's own account."""
    config = stored(kubectl, "team-a", "agentconfig", "default")["spec"]
    assert (config["engine"], config["serviceAccount"]) == ("terraform", "outhaul-terraform")
    assert stored(kubectl, "team-a", "serviceaccount", "outhaul-terraform")
    binding = stored(kubectl, "team-a", "rolebinding", "outhaul-terraform")
    assert [subject["namespace"] for subject in binding["subjects"]] == ["team-a"]


def test_a_tenant_keeps_state_and_lock_at_home(control_plane: ControlPlane) -> None:
    """What Terraform's backend asks for, in the tenant's namespace alone."""
    tenant = (control_plane, TENANT)
    for verb in ("get", "list", "create", "update", "delete"):
        assert may(*tenant, verb, "secrets", "team-a")
        assert not may(*tenant, verb, "secrets", "default")
    for verb in ("get", "create", "update", "delete"):
        assert may(*tenant, verb, "leases.coordination.k8s.io", "team-a")
    assert not may(*tenant, "create", "pods", "team-a")


def test_the_example_with_another_registry(kubectl: Kubectl) -> None:
    """Both images are replaced: the operator's own, and the agent's in its settings."""
    (deployment,) = [obj for obj in rendered(kubectl, "deploy/examples/operator") if obj["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/outhaul-operator:0.1.0"
    values = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert values == {
        "OUTHAUL_AGENT_IMAGE": "registry.example.com/outhaul-agent:0.1.0",
        "POD_NAMESPACE": None,
        "POD_NAME": None,
    }


def test_the_example_for_one_namespace(kubectl: Kubectl) -> None:
    """The operator is bound in its own namespace and in the one that it works in, and nowhere else."""
    objects = rendered(kubectl, "deploy/examples/namespaced")
    assert not [obj for obj in objects if obj["kind"] == "ClusterRoleBinding"]
    bindings = [obj for obj in objects if obj["kind"] == "RoleBinding"]
    assert {obj["metadata"]["namespace"] for obj in bindings} == {"outhaul-system", "team-a"}
    assert {subject["namespace"] for obj in bindings for subject in obj["subjects"]} == {"outhaul-system"}
    (deployment,) = [obj for obj in objects if obj["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "OUTHAUL_NAMESPACES", "value": "team-a"} in container["env"]


def test_the_policies_are_components_of_the_operator(kubectl: Kubectl, tmp_path: Path) -> None:
    """What guards the operator joins its manifests, each in its place; what has no namespace gets none."""
    up = "/".join([".."] * (len(tmp_path.resolve().parts) - 1))
    deploy = f"{up}/{(ROOT / 'deploy').relative_to(tmp_path.anchor)}"
    guards = [f"{deploy}/components/{name}" for name in ("admission-policy", "network-policy")]
    overlay = {"resources": [f"{deploy}/operator"], "components": guards}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(tmp_path))))
    places = {obj["kind"]: obj["metadata"].get("namespace") for obj in objects}
    assert places["NetworkPolicy"] == "outhaul-system"
    assert places["ValidatingAdmissionPolicy"] is places["ValidatingAdmissionPolicyBinding"] is None


def test_the_component_goes_into_any_namespace(kubectl: Kubectl, tmp_path: Path) -> None:
    """An overlay elsewhere names the component by a relative path."""
    component = Path("deploy/components/terraform-tenant")
    relative = (ROOT / component).relative_to(tmp_path.anchor)
    up = "/".join([".."] * (len(tmp_path.resolve().parts) - 1))
    overlay = {"namespace": "elsewhere", "components": [f"{up}/{relative}"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(tmp_path))))
    assert {obj["metadata"]["namespace"] for obj in objects} == {"elsewhere"}


def test_the_terraform_sample_applies(kubectl: Kubectl) -> None:
    """The sample goes into a tenant's namespace with `-n`, its code as a ConfigMap of the name it gives."""
    kubectl("apply", "-n", "team-a", "-k", str(ROOT / "samples/terraform"))
    module = stored(kubectl, "team-a", "configmap", "database-module")
    assert module["data"] == {"main.tf": (ROOT / "samples/terraform/main.tf").read_text(encoding="utf-8")}
    assert stored(kubectl, "team-a", "installation", "database")
