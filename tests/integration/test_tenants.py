"""Two tenants with the rights that Kubernetes' own role `edit` gives, and the operator between them.

Alice tries to have it do for her what she may not do herself: see what is Bob's, write where he is, say what has not
happened, hold up his runs. Carol may do less, namely nothing with Secrets, and more: all that there is with our kinds.
"""

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster.errors import RequestFailed
from cluster.objects import Json, Objects, condition_of
from cluster.stack import OPERATOR, OPERATOR_NAMESPACE, Stack, operator_user
from cluster.waiting import until
from outhaul_api.vocabulary import API_VERSION
from outhaul_operator.names import run_name

OURS = f"/apis/{API_VERSION}"
OUTPUTS = [{"directory": {"path": "/outhaul/outputs"}}]


def command(text: str) -> dict[str, Any]:
    """The commands of a run of one shell script."""
    return {"name": "main", "command": ["sh", "-c", text]}


@dataclass
class Tenants:
    """Two namespaces, each as the administrator and as its tenant sees it."""

    a: Objects
    alice: Objects
    b: Objects
    bob: Objects
    canary: str
    """What only Bob may know."""


def bound(objects: Objects, user: str, **role: str) -> Objects:
    """Gives a user a role in a namespace; returns the namespace as the user sees it, once the API server knows."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    reference = {"apiGroup": "rbac.authorization.k8s.io", **role}
    objects.create("RoleBinding", user, roleRef=reference, subjects=[subject])
    theirs = Objects(objects.control_plane, objects.namespace, objects.control_plane.client_for(user))
    until(lambda: not is_refused(theirs.all, "Installation"), what=f"{user} may list Installations")
    return theirs


def is_refused(request: Callable[..., object], *arguments: Any, **fields: Any) -> bool:
    """Tells whether the API server denies a request for want of rights."""
    try:
        request(*arguments, **fields)
    except RequestFailed as error:
        if error.status != 403:
            raise
        return True
    return False


@pytest.fixture(scope="module")
def tenants(shared_objects: Objects, another: Objects) -> Tenants:
    """Alice's namespace, and Bob's with an Installation whose output is his secret."""
    canary = f"canary-{uuid.uuid4().hex}"
    edit = {"kind": "ClusterRole", "name": "edit"}
    alice, bob = bound(shared_objects, "alice", **edit), bound(another, "bob", **edit)
    bob.create("AgentConfig", "special", spec={"pullPolicy": "Always"})
    bob.create("Secret", "origin", stringData={"token": canary})
    bob.install(
        "service",
        engine="exec",
        inputs=[{"name": "TOKEN", "secretKeyRef": {"name": "origin", "key": "token"}}],
        commands={"install": [command('printf "$OUTHAUL_INPUT_TOKEN" > "$OUTHAUL_OUTPUTS/token"')]},
    )
    run = bob.ready("service")["status"]["action"]["name"]
    bob.until("Pod", run, lambda one: one["status"]["phase"] == "Succeeded", what="it has ended")
    assert bob.secret("service-outputs") == {"token": canary.encode()}
    return Tenants(shared_objects, alice, another, bob, canary)


@pytest.fixture
def untouched(tenants: Tenants) -> Iterator[None]:
    """Watches that the operator asks nothing of the API server in Bob's namespace during the test."""

    def requests() -> list[Json]:
        events = tenants.b.control_plane.audit_events(operator_user())
        return [one for one in events if one.get("objectRef", {}).get("namespace") == tenants.b.namespace]

    before = len(requests())
    yield
    tenants.a.settle()
    assert requests()[before:] == []


def another_run(tenants: Tenants) -> None:
    """Has Bob's Installation run once more, and waits until that has succeeded."""
    number = tenants.bob.ready("service")["status"]["action"]["number"]
    tenants.bob.annotate("service", {"outhaul.dev/retry": uuid.uuid4().hex})
    assert tenants.bob.ran("service", number + 1)["status"]["phase"] == "Succeeded"


def everything(objects: Objects) -> str:
    """All objects of a namespace in which a value could turn up, as one text; Secrets decoded."""
    kinds = ("Installation", "AgentAction", "InstallationOutput", "AgentConfig", "ConfigMap", "Event", "Pod")
    shown = [str(one) for kind in kinds for one in objects.all(kind)]
    return "\n".join(shown + [f"{name}: {objects.secret(name)}" for name in objects.names("Secret")])


# -- what the roles give


@pytest.mark.parametrize("kind", ["Secret", "Installation", "AgentAction", "AgentConfig", "InstallationOutput", "Pod"])
def test_a_tenant_sees_nothing_of_another(tenants: Tenants, kind: str) -> None:
    """With `edit` in one namespace nobody reads or makes anything in another, nor in the operator's."""
    for namespace in (tenants.b.namespace, OPERATOR_NAMESPACE):
        there = Objects(tenants.a.control_plane, namespace, tenants.a.control_plane.client_for("alice"))
        assert is_refused(there.all, kind)
        assert is_refused(there.create, kind, "mine")


def test_what_has_happened_is_the_operator_s_to_say(tenants: Tenants) -> None:
    """With `edit` a tenant makes Installations, runs and AgentConfigs, and reads, but does not write, how they went."""
    alice = tenants.alice
    alice.install("truth", engine="exec", commands={"install": [command("true")]})
    run = alice.ready("truth")["status"]["action"]["name"]
    record = alice.get("InstallationOutput", run)
    forged = {"spec": record["spec"], "status": record["status"]}
    assert is_refused(alice.create, "InstallationOutput", "forged", **forged)
    assert is_refused(alice.patch, "InstallationOutput", run, {"status": {"phase": "Superseded"}})
    assert is_refused(alice.delete, "InstallationOutput", run)
    client = alice.control_plane.client_for("alice")
    for path in ("installations/truth/status", f"agentactions/{run}/status"):
        where, how = f"{OURS}/namespaces/{alice.namespace}/{path}", "application/merge-patch+json"
        assert is_refused(client.request, "PATCH", where, {"status": {}}, content_type=how)


def test_who_may_view_sees_how_things_stand(tenants: Tenants) -> None:
    """Kubernetes' own role `view` shows our kinds, lets nobody change them, and shows no Secret."""
    viewer = bound(tenants.b, "viewer", kind="ClusterRole", name="view")
    assert viewer.ready("service")
    assert viewer.records("service")
    assert is_refused(viewer.respec, "service", uninstalled=True)
    assert is_refused(viewer.all, "Secret")
    assert tenants.canary not in str(
        [viewer.all(kind) for kind in ("Installation", "AgentAction", "InstallationOutput")]
    )


# -- runs that say they are somebody's


def test_a_copy_of_a_run_is_none(tenants: Tenants) -> None:
    """A run that was copied under another name, owner and all, is refused, and changes nothing for its Installation."""
    alice = tenants.alice
    alice.install("copied", engine="exec", commands={"install": [command('printf 1 > "$OUTHAUL_OUTPUTS/x"')]})
    run = alice.get("AgentAction", alice.ready("copied")["status"]["action"]["name"])
    kept = {key: run["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    spec = run["spec"] | {"commands": [command('printf 2 > "$OUTHAUL_OUTPUTS/x"')]}
    spec["installation"] = spec["installation"] | {"number": 7}
    alice.create("AgentAction", "copy", spec=spec, metadata=kept)
    status = alice.ended("copy")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "InvalidSpec")
    assert alice.names("Pod").count("copy") == 0
    tenants.a.settle()
    assert alice.ready("copied")["status"]["action"]["number"] == 1
    assert alice.secret("copied-outputs") == {"x": b"1"}


def test_a_run_cannot_claim_another_tenant_s_installation(tenants: Tenants, untouched: None) -> None:
    """A run with the name, the owner and the number of Bob's next run changes nothing of his, nor tries his secret.

    The fingerprints of a run's outputs are under a key of its Installation: were they made under Bob's, whoever may
    read his record could find out in a namespace of their own what a weak secret is.
    """
    theirs = tenants.b.get("Installation", "service")
    uid = theirs["metadata"]["uid"]
    mine = tenants.alice.create(
        "ConfigMap", "anchor"
    )  # an owner that is there: no garbage collector takes the run away
    owners = [
        {
            "apiVersion": API_VERSION,
            "kind": "Installation",
            "name": "service",
            "uid": uid,
            "controller": True,
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "anchor", "uid": mine["metadata"]["uid"]},
    ]
    number = theirs["status"]["action"]["number"] + 1
    name = run_name("service", uid=uid, number=number)
    spec = {
        "installation": {"name": "service", "uid": uid, "generation": 9, "number": number},
        "commands": [command(f'printf {tenants.canary} > "$OUTHAUL_OUTPUTS/token"')],
        "outputs": OUTPUTS,
    }
    tenants.alice.create("AgentAction", name, spec=spec, metadata={"ownerReferences": owners})
    tenants.alice.ended(name)
    record = tenants.a.find("InstallationOutput", name)
    his = tenants.b.get("InstallationOutput", theirs["status"]["lastSucceeded"]["name"])
    if record is not None:  # else the garbage collector was first, and the run was refused for its missing owner
        assert record["status"]["outputs"][0]["fingerprint"] != his["status"]["outputs"][0]["fingerprint"]
    assert "service-outputs" not in tenants.a.names("Secret")


@pytest.mark.parametrize(
    "spec",
    [
        {"agentConfig": {"name": "{b}/special"}},
        {"agentConfig": {"name": "../../{b}/agentconfigs/special"}},
        {"outputs": {"secretName": "../../{b}/secrets/service-outputs"}},
        {"outputs": {"secretName": "{b}/service-outputs"}},
        {"dependsOn": ["{b}/service"]},
        {"inputs": [{"name": "X", "output": {"installation": "{b}/service", "name": "token"}}]},
        {"inputs": [{"name": "X", "secretKeyRef": {"name": "{b}/origin", "key": "token"}}]},
    ],
    ids=str,
)
def test_names_lead_nowhere_else(tenants: Tenants, spec: dict[str, Any]) -> None:
    """Wherever an Installation names something, the API server takes no name that could lead out of its namespace."""
    named = json.loads(json.dumps(spec).replace("{b}", tenants.b.namespace))
    with pytest.raises(RequestFailed) as caught:
        tenants.alice.install("elsewhere", engine="exec", commands={"install": [command("true")]}, **named)
    assert caught.value.status == 422


def test_an_agent_config_of_another_is_not_found(tenants: Tenants, untouched: None) -> None:
    """A name that exists in Bob's namespace alone is the name of nothing."""
    tenants.alice.create(
        "AgentAction", "borrowing", spec={"commands": [command("true")], "agentConfig": {"name": "special"}}
    )
    waits = lambda one: one.get("status", {}).get("reason") == "AgentConfigNotFound"  # noqa: E731
    assert tenants.alice.until("AgentAction", "borrowing", waits, what="it finds no AgentConfig")
    tenants.alice.delete("AgentAction", "borrowing")


# -- names and labels that are already somebody's


def test_what_has_a_run_s_names_is_left_alone(tenants: Tenants) -> None:
    """A Secret and a pod that only look like a run's, by name and labels, are neither used nor cleaned up with it."""
    alice = tenants.alice
    alice.create("AgentConfig", "brief", spec={"ttlSecondsAfterFinished": 0})
    alice.create("Secret", "victim-run", stringData={"crown": "jewels"})
    labels = {"app.kubernetes.io/managed-by": "outhaul"}
    pod = {"containers": [{"name": "agent", "image": "outhaul-agent", "command": ["true"]}], "restartPolicy": "Never"}
    alice.create("Pod", "victim", spec=pod, metadata={"labels": labels})
    spec = {"commands": [command("true")], "agentConfig": {"name": "brief"}}
    alice.create("AgentAction", "victim", spec=spec)
    assert alice.ended("victim")["status"]["reason"] == "NameTaken"
    # An honest run that comes later is cleaned up, so the other would have been.
    alice.create("AgentAction", "honest", spec=spec)
    alice.ended("honest")
    alice.gone("Pod", "honest")
    assert alice.secret("victim-run") == {"crown": b"jewels"}
    assert alice.find("Pod", "victim")


# -- a user who may not read Secrets, and may write all of our kinds


@pytest.fixture(scope="module")
def carol(tenants: Tenants) -> Objects:
    """Alice's namespace as somebody sees it who may do everything with our kinds, and nothing with Secrets."""
    rules = [{"apiGroups": ["outhaul.dev"], "resources": ["*"], "verbs": ["*"]}]
    tenants.a.create("Role", "all-of-outhaul", rules=rules)
    tenants.a.create("Secret", "crown", stringData={"jewels": f"crown-{tenants.canary}"})
    return bound(tenants.a, "carol", kind="Role", name="all-of-outhaul")


def test_a_forged_record_copies_no_secret(tenants: Tenants, carol: Objects) -> None:
    """A record that names a foreign Secret as a run's brings nothing of it into the latest Secret, nor anywhere."""
    carol.install("mirror", engine="exec", commands={"install": [command('printf 1 > "$OUTHAUL_OUTPUTS/jewels"')]})
    run = carol.ready("mirror")["status"]["action"]["name"]
    (output,) = carol.get("InstallationOutput", run)["status"]["outputs"]
    forged = output | {"secretKeyRef": {"name": "crown", "key": "jewels"}}
    carol.patch("InstallationOutput", run, {"status": {"outputs": [forged]}})
    carol.respec("mirror", outputs={"keyStyle": "Env"})
    stalled = carol.condition("Installation", "mirror", "Stalled", "True", "OutputsLost")
    assert "set the annotation outhaul.dev/retry" in stalled["message"]  # the script's file cannot be read again
    forged = output | {"secretKeyRef": output["secretKeyRef"] | {"key": "no-such-key"}}
    carol.patch("InstallationOutput", run, {"status": {"outputs": [forged]}})
    carol.respec("mirror", outputs={"keyStyle": "Name", "template": {"x": "y"}})
    tenants.a.settle()
    assert carol.condition("Installation", "mirror", "Stalled", "True", "OutputsLost")
    assert tenants.a.secret("mirror-outputs") == {"jewels": b"1"}
    assert everything(tenants.a).count(f"crown-{tenants.canary}") == 1


def test_a_record_in_a_run_s_name_is_not_believed(tenants: Tenants, carol: Objects) -> None:
    """A record that is there before the run's own, with the run as owner, fails the run: others would believe it."""
    spec = {
        "commands": [command('printf true > "$OUTHAUL_OUTPUTS/x"')],
        "outputs": OUTPUTS,
        "agentConfig": {"name": "late"},
    }
    made = carol.create("AgentAction", "outrun", spec=spec)
    owner = {
        "apiVersion": API_VERSION,
        "kind": "AgentAction",
        "name": "outrun",
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    forged = {"name": "x", "type": "string", "size": 3, "secretKeyRef": {"name": "crown", "key": "jewels"}}
    carol.create(
        "InstallationOutput",
        "outrun",
        spec={"action": "outrun", "generation": 0},
        status={"phase": "Current", "outputs": [forged]},
        metadata={"ownerReferences": [owner]},
    )
    carol.create("AgentConfig", "late", spec={})
    status = carol.ended("outrun")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "NameTaken")


def test_a_run_of_an_installation_can_be_forged_by_who_may_change_it(tenants: Tenants, carol: Objects) -> None:
    """Who may create AgentActions can stand in for an Installation's next run: the right is given with that in mind.

    It is no more than to change the Installation, which is what docs/security.md says of this right.
    """
    carol.install("stood-in-for", engine="exec", commands={"install": [command('printf 1 > "$OUTHAUL_OUTPUTS/x"')]})
    run = carol.get("AgentAction", carol.ready("stood-in-for")["status"]["action"]["name"])
    reference = run["spec"]["installation"] | {"number": 2}
    kept = {key: run["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    name = run_name(reference["name"], uid=reference["uid"], number=2)
    spec = run["spec"] | {"installation": reference, "commands": [command('printf 2 > "$OUTHAUL_OUTPUTS/x"')]}
    carol.create("AgentAction", name, spec=spec, metadata=kept)
    carol.ran("stood-in-for", 2)
    carol.ready("stood-in-for")
    assert tenants.a.secret("stood-in-for-outputs") == {"x": b"2"}


# -- the operator's time and memory


def test_what_is_nested_too_deeply_stops_nobody(objects: Objects, tenants: Tenants, stack: Stack) -> None:
    """Objects that are nested as deeply as the API server takes them are refused each, and the operator goes on."""
    process = stack.control_plane.processes.find(OPERATOR)
    assert process is not None
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(12_000)  # this side has to write it
    try:
        deep: object = 1
        for _ in range(9_900):
            deep = [deep]
        objects.install("deep", engine="exec", commands={"install": [command("true")]}, parameters={"a": deep})
        objects.create("AgentAction", "deep", spec={"commands": [command("true")], "volumes": [{"a": deep}]})
        objects.create("AgentConfig", "deep", spec={"podTemplate": {"spec": {"a": deep}}})
        objects.create("AgentAction", "using", spec={"commands": [command("true")], "agentConfig": {"name": "deep"}})
        stalled = objects.condition("Installation", "deep", "Stalled", "True", "InvalidSpec")
        assert stalled["message"] == "spec.parameters: Value error, it is nested more than 100 levels deep"
        assert objects.ended("deep")["status"]["reason"] == "InvalidSpec"
        refused = lambda one: one.get("status", {}).get("reason") == "InvalidSpec"  # noqa: E731
        objects.until("AgentAction", "using", refused, what="its AgentConfig is refused")
        for kind, name in (("Installation", "deep"), ("AgentAction", "deep"), ("AgentConfig", "deep")):
            objects.delete(kind, name)
            objects.gone(kind, name)
    finally:
        sys.setrecursionlimit(limit)
    another_run(tenants)
    assert process.running()


def test_a_neighbour_s_crowd_holds_up_nobody(objects: Objects, tenants: Tenants) -> None:
    """While many objects of one tenant wait for what does not come, a run of another is carried out."""
    for number in range(20):
        objects.create(
            "AgentAction", f"waiting-{number}", spec={"commands": [command("true")], "agentConfig": {"name": "none"}}
        )
        objects.install(f"waiting-{number}", engine="exec", dependsOn=["none"], commands={"install": [command("true")]})
    another_run(tenants)
    waiting = condition_of(objects.get("Installation", "waiting-0"), "Ready")
    assert waiting is not None
    assert waiting["reason"] == "DependencyNotReady"


def test_who_borrows_kopf_s_finalizer_stops_nobody(objects: Objects, tenants: Tenants, stack: Stack) -> None:
    """Objects that carry what the operator's framework leaves on objects do not end it: it would take that away."""
    process = stack.control_plane.processes.find(OPERATOR)
    assert process is not None
    left = {
        "finalizers": ["outhaul.dev/kopf"],
        "annotations": {"kopf.outhaul.dev/last-handled-configuration": "{", "kopf.outhaul.dev/on_installations": "{"},
        "labels": {"app.kubernetes.io/managed-by": "outhaul"},
    }
    pod = {"containers": [{"name": "agent", "image": "outhaul-agent", "command": ["true"]}], "restartPolicy": "Never"}
    kinds = {
        "AgentConfig": {},
        "Pod": pod,
        "AgentAction": {"commands": [command("true")]},
        "Installation": {"engine": "exec", "commands": {"install": [command("true")]}},
    }
    for kind, spec in kinds.items():
        objects.create(kind, f"borrower-{kind.lower()}", spec=spec, metadata=left)
    assert objects.ended("borrower-agentaction")["status"]["phase"] == "Succeeded"
    objects.ready("borrower-installation")
    another_run(tenants)
    assert process.running()
    for kind in kinds:
        objects.patch(kind, f"borrower-{kind.lower()}", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("duration", ["9" * 60 + "h", "0." + "0" * 50 + "1ms", "876000h", "9999999h"])
def test_a_period_without_end_stops_nobody(objects: Objects, tenants: Tenants, stack: Stack, duration: str) -> None:
    """A run that may take longer than a calendar lasts ends, others go on, and the operator keeps its root."""
    before = expiry(stack)
    objects.create("AgentConfig", "patient", spec={"linger": duration, "ttlSecondsAfterFinished": 31536000})
    spec = {"commands": [command("true")], "timeout": duration, "agentConfig": {"name": "patient"}}
    objects.create("AgentAction", "endless", spec=spec)
    status = objects.ended("endless")["status"]
    assert status["phase"] == "Succeeded" or status["message"]
    another_run(tenants)
    assert expiry(stack) == before


def expiry(stack: Stack) -> str:
    """When the operator's root ends, as its metric says."""
    lines = stack.operator_answer("/metrics")[1].splitlines()
    return next(line for line in lines if line.startswith("outhaul_ca_expiry_timestamp_seconds "))
