"""What a run was made from is kept with it, so that it can be uninstalled when that is gone."""

import base64
import hashlib
import secrets
from typing import Any

from cluster.objects import Json, Objects, condition_of
from cluster.stack import REPOSITORY, Stack
from cluster.waiting import until

PASSWORD, KEY = "hunter2", "the key\n"
SUMS = 'sha256sum key; printf %s "$OUTHAUL_INPUT_password" | sha256sum'
MODULES = REPOSITORY / "samples/terraform/main.tf"


def install(objects: Objects, source: str = "code", **fields: Any) -> None:
    """Creates an Installation whose script is a ConfigMap, with a password and a file from a Secret."""
    command = {"name": "run", "command": ["sh", "start.sh"]}
    objects.install(
        "service",
        engine="exec",
        source={"configMapRef": {"name": source}},
        inputs=[
            {"name": "password", "secretKeyRef": {"name": "login", "key": "password"}},
            {"name": "key", "secretKeyRef": {"name": "login", "key": "key"}, "file": "key"},
        ],
        commands={"install": [command], "uninstall": [{"name": "stop", "command": ["sh", "stop.sh"]}]},
        **fields,
    )


def code(objects: Objects, name: str = "code", *, start: str = "true", stop: str = SUMS, **more: str) -> None:
    """Creates the ConfigMap with the scripts, and the Secret unless it is there."""
    objects.create("ConfigMap", name, data={"start.sh": start, "stop.sh": stop, **more})
    if objects.find("Secret", "login") is None:
        objects.create("Secret", "login", stringData={"password": PASSWORD, "key": KEY})


def kept(objects: Objects, number: int, status: str = "True", reason: str | None = None) -> Json:
    """Waits until the service's run of this number says this of its source; returns the run."""
    run = objects.ran("service", number)["metadata"]["name"]
    objects.condition("AgentAction", run, "SourceKept", status, reason)
    return objects.get("AgentAction", run)


def uninstall(objects: Objects) -> str:
    """Deletes the service and waits for the uninstall; returns the run's name."""
    before = objects.get("Installation", "service")["status"]["action"]["number"]
    objects.delete("Installation", "service")

    def probe(obj: Json) -> str | None:
        action = obj["status"]["action"]
        return str(action["name"]) if action["number"] > before else None

    return objects.until("Installation", "service", probe, what="it has an uninstall run")


def test_an_uninstall_outlives_all_that_it_is_made_from(objects: Objects, stack: Stack) -> None:
    """ConfigMap and Secret are gone before the Installation is deleted: it is uninstalled with what it had of them."""
    code(objects)
    install(objects)
    run = kept(objects, 1)
    secret = objects.get("Secret", f"{run['metadata']['name']}-source")
    assert (secret["type"], secret["immutable"]) == ("outhaul.dev/source", True)
    assert [one["uid"] for one in secret["metadata"]["ownerReferences"]] == [run["metadata"]["uid"]]
    objects.delete("ConfigMap", "code")
    objects.delete("Secret", "login")
    ended = uninstall(objects)
    objects.gone("Installation", "service")
    said = stack.container_log(objects.namespace, ended)
    for value in (KEY, PASSWORD):
        assert hashlib.sha256(value.encode()).hexdigest() in said
    until(lambda: not objects.left(), what="nothing is left", timeout=90)


def test_terraform_destroys_without_its_configmap(tenant: Objects, stack: Stack) -> None:
    """`terraform destroy` runs with the module that was applied, when the ConfigMap is gone; its state goes too."""
    tenant.create("ConfigMap", "module", data={"main.tf": MODULES.read_text()})
    tenant.install(
        "service", engine="terraform", source={"configMapRef": {"name": "module"}}, parameters={"name": "shop"}
    )
    kept(tenant, 1)
    tenant.ready("service")
    tenant.delete("ConfigMap", "module")
    run = uninstall(tenant)
    tenant.gone("Installation", "service")
    assert "Destroy complete! Resources: 2 destroyed." in stack.container_log(tenant.namespace, run)
    assert tenant.find("Secret", "tfstate-default-service") is None


def test_a_failed_install_is_uninstalled_with_what_it_had(objects: Objects, stack: Stack) -> None:
    """What has begun has to be taken back, also where no run has ever succeeded."""
    code(objects, start="exit 3")
    install(objects)
    kept(objects, 1)
    objects.delete("ConfigMap", "code")
    run = uninstall(objects)
    objects.gone("Installation", "service")
    assert hashlib.sha256(KEY.encode()).hexdigest() in stack.container_log(objects.namespace, run)


def test_a_copy_is_kept_while_the_run_goes_on(objects: Objects, stack: Stack) -> None:
    """A run whose pod is lost half way has left a copy of its source, and is uninstalled with it."""
    code(objects, start="echo it began; sleep 600")
    install(objects)
    name = objects.until("Installation", "service", lambda one: one.get("status", {}).get("action"), what="a run")[
        "name"
    ]
    stack.printed(objects.namespace, name, "it began")
    objects.until("Secret", f"{name}-source", lambda _: True, what="it is there")
    objects.delete("ConfigMap", "code")
    objects.delete("Pod", name)
    kept(objects, 1)
    run = uninstall(objects)
    objects.gone("Installation", "service")
    assert hashlib.sha256(KEY.encode()).hexdigest() in stack.container_log(objects.namespace, run)


def test_what_is_there_counts(objects: Objects, stack: Stack) -> None:
    """A script that was mended after its uninstall has failed is the one that runs then."""
    code(objects, stop="exit 3")
    install(objects)
    objects.ready("service")
    uninstall(objects)
    objects.condition("Installation", "service", "Stalled", "True", "UninstallFailed")
    objects.patch("ConfigMap", "code", {"data": {"stop.sh": "echo mended"}})
    objects.annotate("service", {"outhaul.dev/retry": "1"})
    objects.gone("Installation", "service")
    assert sum("mended" in log for log in stack.container_logs(objects.namespace).values()) == 1


def test_a_source_that_is_nowhere_ends_in_words(objects: Objects) -> None:
    """With the copy gone as well nothing is run, and the Installation says what to bring back."""
    code(objects)
    install(objects)
    run = kept(objects, 1)["metadata"]["name"]
    objects.delete("ConfigMap", "code")
    objects.delete("Secret", f"{run}-source")
    uninstall(objects)
    stalled = objects.condition("Installation", "service", "Stalled", "True", "UninstallFailed")
    assert "bring back what spec.source names" in stalled["message"]
    code(objects)
    objects.annotate("service", {"outhaul.dev/retry": "1"})
    objects.gone("Installation", "service")


def test_too_much_is_said_and_then_needed(objects: Objects) -> None:
    """That a source is too large to be kept is told on the run; the uninstall waits until it is there."""
    large = base64.b64encode(secrets.token_bytes(600_000)).decode()
    code(objects, large=large)
    install(objects)
    run = kept(objects, 1, "False", "SourceTooLarge")
    assert objects.find("Secret", f"{run['metadata']['name']}-source") is None
    objects.ready("service")
    objects.delete("ConfigMap", "code")
    uninstall(objects)
    objects.condition("Installation", "service", "Ready", "False", "VolumeNotReady")
    code(objects, large=large)
    objects.gone("Installation", "service")


def test_only_what_an_uninstall_would_use_is_kept(objects: Objects) -> None:
    """A newer run's copy takes the place of the former one's; once uninstalled there is none."""
    code(objects)
    install(objects)
    first = kept(objects, 1)["metadata"]["name"]
    objects.ready("service")
    objects.respec("service", parameters={"changed": True})
    second = kept(objects, 2)["metadata"]["name"]
    objects.gone("Secret", f"{first}-source")
    objects.condition("AgentAction", first, "SourceKept", "False", "SourceNotKept")
    assert objects.find("Secret", f"{second}-source") is not None
    objects.respec("service", uninstalled=True)
    objects.ready("service")
    objects.gone("Secret", f"{second}-source")
    assert len(objects.runs("service")) == 3


def test_nothing_is_kept_of_what_has_it_all_in_its_spec(objects: Objects) -> None:
    """A run with files of its own alone needs no copy, and says nothing of one."""
    command = {"name": "run", "command": ["sh", "start.sh"]}
    objects.install("service", engine="exec", source={"files": {"start.sh": "true"}}, commands={"install": [command]})
    run = objects.ready("service")["status"]["action"]["name"]
    assert condition_of(objects.get("AgentAction", run), "SourceKept") is None
    assert objects.find("Secret", f"{run}-source") is None
