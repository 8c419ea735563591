"""What a tenant with the role `edit` makes in her own namespace to end the operator, or to have it work for her alone.

`test_tenants` has the tries by names and references; here are objects that nobody would make in good faith. After each
of them the operator is the same process, has logged no stack trace, and a run of another tenant is carried out.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.errors import RequestFailed
from cluster.objects import Json, Objects
from cluster.stack import OPERATOR, Stack
from cluster.waiting import until
from outhaul_api.vocabulary import API_VERSION, MANAGED_BY_LABEL, MANAGER, RETRY_LIMIT_ANNOTATION, SecretType
from outhaul_operator.names import run_name

COMMANDS = [{"name": "main", "command": ["sh", "-c", 'printf 1 > "$OUTHAUL_OUTPUTS/x"']}]
OWN = {"engine": "exec", "commands": {"install": COMMANDS}}


@pytest.fixture(scope="module")
def mallory(shared_objects: Objects) -> Objects:
    """The module's namespace as somebody sees it who has Kubernetes' own role `edit` there."""
    group, plane = "rbac.authorization.k8s.io", shared_objects.control_plane
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "edit"}
    subjects = [{"apiGroup": group, "kind": "User", "name": "mallory"}]
    shared_objects.create("RoleBinding", "mallory", roleRef=role, subjects=subjects)
    hers = Objects(plane, shared_objects.namespace, plane.client_for("mallory"))

    def is_bound() -> bool:
        try:
            hers.all("AgentAction")
        except RequestFailed:
            return False
        return True

    until(is_bound, what="mallory may list AgentActions")
    return hers


@pytest.fixture(autouse=True)
def _unharmed(stack: Stack, another: Objects) -> Iterator[None]:
    """Watches over the operator and over the other tenant."""
    processes = stack.control_plane.processes
    process, log = processes.find(OPERATOR), processes.log(OPERATOR)
    assert process is not None
    before = log.stat().st_size
    yield
    name = f"other-{len(another.names('AgentAction'))}"
    another.create("AgentAction", name, spec={"commands": COMMANDS})
    assert another.ended(name)["status"]["phase"] == "Succeeded"
    assert process.running()
    assert b"Traceback" not in log.read_bytes()[before:]


def owned_by(action: Json, **fields: Any) -> Json:
    """The metadata of an object that says it is a run's."""
    metadata = action["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": "AgentAction", "name": metadata["name"], "uid": metadata["uid"]}
    return {"ownerReferences": [owner | {"controller": True}], **fields}


def test_a_template_that_ends_its_process(mallory: Objects) -> None:
    """A template so deep that what renders it crashes fails, and nothing else with it."""
    bomb = "{{ " + "-" * 65_000 + "1 }}"
    mallory.install("bomb", **OWN, outputs={"template": {"a": bomb}})
    message = mallory.condition("Installation", "bomb", "OutputsReady", "False", "TemplateFailed")["message"]
    assert "'a': it takes too long or becomes too large" in message
    mallory.respec("bomb", outputs={"template": {"a": "{{ x }}{{ x }}"}})
    mallory.ready("bomb")
    assert mallory.secret("bomb-outputs") == {"x": b"1", "a": b"11"}


ODD_TEMPLATES: dict[str, Json] = {
    "nulls": {"metadata": {"labels": None, "annotations": None}, "spec": {"containers": None}},
    "maps": {"spec": {"containers": {"a": 1}}},
    "items": {"spec": {"containers": [1, None, {"name": {"a": 1}}, {"name": ["x"]}]}},
    "texts": {"spec": {"volumes": "x"}},
    "variables": {"spec": {"containers": [{"name": "agent", "env": [1, None, {"name": {}}], "ports": [3]}]}},
    "grace": {"spec": {"terminationGracePeriodSeconds": 1e300}},
    "labels": {"metadata": {"labels": {"a": "not valid\n\u2028\u0085"}}},
    "large": {"metadata": {"annotations": {"a": "x" * 300_000}}},
}


def test_pod_templates_of_no_shape(mallory: Objects) -> None:
    """A pod template that no pod can have makes its own runs wait, with the API server's words."""
    for name, template in ODD_TEMPLATES.items():
        mallory.create("AgentConfig", name, spec={"podTemplate": template})
        mallory.create("AgentAction", f"odd-{name}", spec={"commands": COMMANDS, "agentConfig": {"name": name}})
    for name in ODD_TEMPLATES:
        waits = lambda one: one.get("status", {}).get("reason") == "PodRefused"  # noqa: E731
        mallory.until("AgentAction", f"odd-{name}", waits, what="its pod is refused")
        mallory.delete("AgentAction", f"odd-{name}")


@pytest.mark.parametrize("data", [{}, {"ca.crt": "no certificate"}], ids=["empty", "nonsense"])
def test_a_secret_in_a_run_s_name(mallory: Objects, request: pytest.FixtureRequest, data: dict[str, str]) -> None:
    """A Secret that is there before the run's own, with its type and owner, fails that run and no more."""
    name = f"early-{request.node.callspec.id}"
    spec = {"commands": COMMANDS, "agentConfig": {"name": name}}
    made = mallory.create("AgentAction", name, spec=spec)
    mallory.create("Secret", f"{name}-run", type=SecretType.RUN, metadata=owned_by(made), stringData=data)
    mallory.create("AgentConfig", name, spec={})
    assert mallory.ended(name)["status"]["phase"] == "Failed"


def test_pods_in_the_name_of_another_tenant_s_run(mallory: Objects, another: Objects) -> None:
    """A pod with the name, the labels and the owner of another tenant's run is not taken for that run's pod."""
    made = another.create("AgentAction", "victim", spec={"commands": COMMANDS, "agentConfig": {"name": "victim"}})
    labels = {
        MANAGED_BY_LABEL: MANAGER,
        "outhaul.dev/action": made["metadata"]["uid"],
        "outhaul.dev/authority": "0" * 32,
    }
    # An owner that is there: no garbage collector takes the pod away.
    mine = mallory.create("ConfigMap", "anchor")["metadata"]["uid"]
    metadata = owned_by(made, labels=labels, finalizers=["example.com/stays"])
    metadata["ownerReferences"] += [{"apiVersion": "v1", "kind": "ConfigMap", "name": "anchor", "uid": mine}]
    pod = {"containers": [{"name": "agent", "image": "outhaul-agent", "command": ["true"]}], "restartPolicy": "Never"}
    mallory.create("Pod", "victim", spec=pod, metadata=metadata)
    another.create("AgentConfig", "victim", spec={})
    assert another.ended("victim")["status"]["phase"] == "Succeeded"
    mallory.patch("Pod", "victim", {"metadata": {"finalizers": None}})


def test_a_run_with_numbers_of_many_digits(mallory: Objects) -> None:
    """A run in an Installation's name whose annotations hold numbers that are none holds up no later one."""
    mallory.install("digits", **OWN)
    run = mallory.get("AgentAction", mallory.ready("digits")["status"]["action"]["name"])
    kept = {key: run["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    kept["annotations"] = kept["annotations"] | {RETRY_LIMIT_ANNOTATION: "9" * 5000}
    reference = run["spec"]["installation"] | {"number": 2}
    name = run_name("digits", uid=reference["uid"], number=2)
    mallory.create("AgentAction", name, spec=run["spec"] | {"installation": reference}, metadata=kept)
    assert mallory.ran("digits", 2)["status"]["phase"] == "Succeeded"
    mallory.annotate("digits", {"outhaul.dev/retry": "1"})
    assert mallory.ran("digits", 3)["status"]["phase"] == "Succeeded"
    mallory.ready("digits")


def test_annotations_and_names_as_long_as_they_may_be(mallory: Objects) -> None:
    """What the operator copies into names, labels and statuses may be as long as the API server lets it be."""
    names = ["n" * 253, ".".join(["a" * 63] * 3 + ["b" * 40])]
    for name in names:
        mallory.install(name, **OWN)
        mallory.annotate(name, {"outhaul.dev/retry": "z" * 100_000, "outhaul.dev/recollect": "z" * 100_000})
    for name in names:
        mallory.ready(name)
