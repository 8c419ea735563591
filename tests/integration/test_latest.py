"""The latest Secret: how it shows outputs, when it is written, and what becomes of it when others lay hands on it."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.objects import Json, Objects, condition_of
from cluster.stack import Stack, operator_user
from outhaul_api import AgentAction
from outhaul_operator.cluster import Cluster
from outhaul_operator.latest import publish_latest

SECRETS = {"user": "shop", "password": "p@ss/word 1", "db-host": "db.internal"}
DSN = "postgresql://{{ user }}:{{ password|urlencode }}@{{ outputs['db-host'] }}/shop"


def service(values: dict[str, Any] | None = None, **outputs: Any) -> dict[str, Any]:
    """The spec of an Installation with these outputs, all of them secrets, shown like this."""
    command = {"command": ["printf", "%s", json.dumps(SECRETS if values is None else values)], "format": "json"}
    return {
        "engine": "exec",
        "commands": {"install": [{"name": "nothing", "command": ["true"]}]},
        "outputs": {"from": [{"command": command}], **outputs},
    }


def new_values(values: dict[str, Any]) -> dict[str, Any]:
    """The part of a spec that makes an Installation's outputs these."""
    return {"outputs": {"from": service(values)["outputs"]["from"]}}


def version(objects: Objects, name: str = "service-outputs") -> str:
    """The resourceVersion of a Secret."""
    return str(objects.get("Secret", name)["metadata"]["resourceVersion"])


def history(objects: Objects, since: str, name: str = "service-outputs") -> list[str]:
    """What happened to a Secret since a version: types of watch events."""
    path = f"/api/v1/namespaces/{objects.namespace}/secrets?watch=1&timeoutSeconds=1"
    path += f"&fieldSelector=metadata.name%3D{name}&resourceVersion={since}"
    lines = objects.control_plane.kubectl("get", "--raw", path).splitlines()
    return [json.loads(line)["type"] for line in lines]


def unshown(objects: Objects, reason: str) -> str:
    """Waits until an Installation says that its outputs cannot be shown for this reason; returns the message."""
    message: str = objects.condition("Installation", "service", "OutputsReady", "False", reason)["message"]
    assert objects.condition("Installation", "service", "Stalled", "True", reason)["message"] == message
    assert objects.condition("Installation", "service", "Ready", "False", reason)
    return message


def written(objects: Objects, key: str, value: bytes) -> None:
    """Waits until the latest Secret has this value under this key."""

    def probe(secret: Json) -> bool:
        return bool(base64.b64decode(secret.get("data", {}).get(key, "")) == value)

    objects.until("Secret", "service-outputs", probe, what=f"it has {value!r} under {key!r}")


# -- how outputs are shown


def test_the_status_names_the_secret(objects: Objects) -> None:
    """`status.binding.name` names the latest Secret, whose annotations tell run, generation and number."""
    objects.install("service", **service())
    status = objects.ready("service")["status"]
    assert status["binding"] == {"name": "service-outputs"}
    secret = objects.get("Secret", "service-outputs")
    assert secret["type"] == "outhaul.dev/outputs"
    annotations = secret["metadata"]["annotations"]
    assert status["action"]["finishedAt"] >= annotations.pop("outhaul.dev/published-at")
    assert annotations == {
        "outhaul.dev/run": status["action"]["name"],
        "outhaul.dev/generation": "1",
        "outhaul.dev/run-number": "1",
        "outhaul.dev/parts": "1",
    }


def test_binding_entries_and_templates(objects: Objects) -> None:
    """`binding` adds the entries of servicebinding.io, `template` keys that are made from outputs, escaped as asked."""
    objects.install(
        "service", **service(template={"dsn": DSN}, binding={"type": "postgresql", "provider": "terraform"})
    )
    objects.ready("service")
    assert objects.secret("service-outputs") == {
        **{name: value.encode() for name, value in SECRETS.items()},
        "dsn": b"postgresql://shop:p%40ss/word%201@db.internal/shop",
        "type": b"postgresql",
        "provider": b"terraform",
    }


def test_keys_for_environments(objects: Objects) -> None:
    """`keyStyle: Env` makes keys that are names of variables; the run's own Secret keeps the outputs' names."""
    objects.install("service", **service(SECRETS | {"2nd": "", "größe": "9"}, keyStyle="Env"))
    run = objects.ready("service")["status"]["action"]["name"]
    assert objects.secret("service-outputs") == {
        "USER": b"shop",
        "PASSWORD": b"p@ss/word 1",
        "DB_HOST": b"db.internal",
        "_2ND": b"",
        "GR__E": b"9",
    }
    assert "db-host" in objects.secret(f"{run}-outputs")


def test_two_outputs_of_one_variable(objects: Objects) -> None:
    """Two outputs whose names give one variable are an error that names both; another style mends it without a run."""
    objects.install("service", **service({"db-host": "hunter2", "db_host": "b"}, keyStyle="Env"))
    message = unshown(objects, "TemplateFailed")
    assert "'db-host' and 'db_host' have one key, 'DB_HOST'" in message
    assert "hunter2" not in message
    objects.respec("service", outputs={"keyStyle": "Name"})
    objects.ready("service")
    assert objects.secret("service-outputs") == {"db-host": b"hunter2", "db_host": b"b"}
    assert len(objects.runs("service")) == 1


def test_a_template_with_an_output_that_is_missing(objects: Objects) -> None:
    """A template's error names the key and the output that is missing, no value, and is mended without a run."""
    objects.install("service", **service({"user": "hunter2"}, template={"dsn": "{{ user }}@{{ hots }}"}))
    message = unshown(objects, "TemplateFailed")
    assert "'dsn'" in message
    assert "there is no output hots; there are user" in message
    assert "hunter2" not in json.dumps(objects.get("Installation", "service")["status"])
    objects.respec("service", outputs={"template": {"dsn": "{{ user }}@"}})
    objects.ready("service")
    assert objects.secret("service-outputs")["dsn"] == b"hunter2@"
    assert len(objects.runs("service")) == 1


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", id="time"),
        pytest.param("{% set x = user %}" + "{% set x = x ~ x %}" * 40 + "{{ x }}", id="size"),
    ],
)
def test_a_template_without_end(objects: Objects, bomb: str) -> None:
    """A template that takes for ever, or all memory, is stopped, and the operator goes on."""
    objects.install("service", **service(template={"dsn": bomb}))
    assert "takes too long or becomes too large" in unshown(objects, "TemplateFailed")


# -- when it is written


def test_another_template_needs_no_run(objects: Objects) -> None:
    """A change of how outputs are shown alone writes the latest Secret anew from what is stored; nothing is run.

    Back and forth: what was shown before is not taken for what is shown.
    """
    objects.install("service", **service(template={"dsn": "{{ user }}"}))
    objects.ready("service")
    before = objects.get("Secret", "service-outputs")["metadata"]
    objects.respec("service", outputs={"template": {"dsn": None, "url": DSN}})
    objects.ready("service")
    data = objects.secret("service-outputs")
    assert "dsn" not in data
    assert data["url"].startswith(b"postgresql://shop")
    assert history(objects, before["resourceVersion"]) == ["MODIFIED"]
    objects.respec("service", outputs={"template": {"dsn": "{{ user }}", "url": None}})
    objects.ready("service")
    assert objects.secret("service-outputs").keys() == {*SECRETS, "dsn"}
    assert len(objects.runs("service")) == 1


def test_another_name_withdraws_the_former_secret(objects: Objects) -> None:
    """Another `secretName` moves the latest outputs there, without a run; the Secret of the former name goes."""
    objects.install("service", **service())
    objects.ready("service")
    objects.respec("service", outputs={"secretName": "shop"})
    assert objects.ready("service")["status"]["binding"] == {"name": "shop"}
    assert objects.secret("shop")["user"] == b"shop"
    assert objects.find("Secret", "service-outputs") is None
    objects.respec("service", outputs={"secretName": None})
    assert objects.ready("service")["status"]["binding"] == {"name": "service-outputs"}
    assert objects.secret("service-outputs")["user"] == b"shop"
    assert objects.find("Secret", "shop") is None
    assert len(objects.runs("service")) == 1


def test_another_name_together_with_a_run(objects: Objects) -> None:
    """Where a changed spec both needs a run and names another Secret, the former one goes as well."""
    objects.install("service", **service())
    objects.ready("service")
    objects.respec("service", parameters={"a": 1}, outputs={"secretName": "shop"})
    assert objects.ready("service")["status"]["binding"] == {"name": "shop"}
    assert len(objects.runs("service")) == 2
    assert objects.secret("shop")["user"] == b"shop"
    objects.gone("Secret", "service-outputs")


def test_new_outputs_are_one_write(objects: Objects) -> None:
    """New outputs replace all old ones in one write: nobody sees half of them."""
    objects.install("service", **service())
    objects.ready("service")
    before = version(objects)
    objects.respec("service", **new_values({"user": "store", "port": 5432}))
    objects.ready("service")
    assert objects.secret("service-outputs") == {"user": b"store", "port": b"5432"}
    assert history(objects, before) == ["MODIFIED"]


async def test_an_older_run_never_comes_back(objects: Objects) -> None:
    """What a newer run has shown stays, whatever an older one brings: an operator that was away is late, no more."""
    objects.install("service", **service())
    first = objects.ready("service")["status"]["action"]["name"]
    objects.respec("service", **new_values({"user": "newer"}))
    objects.ready("service")
    before = version(objects)
    older = AgentAction.model_validate(objects.get("AgentAction", first))
    cluster = await Cluster.connect(str(objects.control_plane.kubeconfig))
    try:
        await publish_latest(cluster, older, "service-outputs", {"user": b"older"}, newest=2, expect=True)
    finally:
        await cluster.close()
    assert version(objects) == before


def test_a_forged_number_keeps_no_outputs_away(objects: Objects) -> None:
    """A Secret that says it shows a run that there never was is taken for edited, and gets the newest outputs."""
    objects.install("service", **service())
    objects.ready("service")
    objects.respec("service", commands={"install": [{"name": "fail", "command": ["false"]}]})
    objects.ran("service", 2)
    # As if the operator had written what run 2 brought, and then forgotten that it succeeded.
    objects.patch("Secret", "service-outputs", {"metadata": {"annotations": {"outhaul.dev/run-number": "2"}}})
    before = version(objects)
    objects.respec("service", outputs={"template": {"dsn": "older"}})
    objects.settle()
    assert version(objects) == before


# -- what others do to it


def test_a_foreign_secret_of_the_name_is_left_alone(objects: Objects) -> None:
    """A Secret of the name that is not ours stays as it is, and OutputsReady says so; another name mends it."""
    objects.create("Secret", "service-outputs", stringData={"precious": "1"})
    before = version(objects)
    objects.install("service", **service())
    message = unshown(objects, "SecretConflict")
    assert "Secret service-outputs exists and is not this Installation's" in message
    assert "binding" not in objects.get("Installation", "service")["status"]
    objects.respec("service", outputs={"secretName": "shop"})
    objects.ready("service")
    assert version(objects) == before
    assert objects.secret("shop")["user"] == b"shop"
    assert len(objects.runs("service")) == 1


def test_a_conflict_does_not_take_back_what_is_shown(objects: Objects) -> None:
    """A new `secretName` that is taken leaves the outputs under the former name, for those who use them."""
    objects.create("Secret", "taken", stringData={"precious": "1"})
    objects.install("service", **service())
    objects.ready("service")
    objects.respec("service", outputs={"secretName": "taken"})
    unshown(objects, "SecretConflict")
    assert objects.secret("service-outputs")["user"] == b"shop"
    assert objects.get("Installation", "service")["status"]["binding"] == {"name": "service-outputs"}
    assert objects.secret("taken") == {"precious": b"1"}


def test_an_immutable_secret_is_replaced(objects: Objects) -> None:
    """A latest Secret that somebody has made immutable is replaced by one with the newest outputs."""
    objects.install("service", **service())
    objects.ready("service")
    objects.patch("Secret", "service-outputs", {"immutable": True})
    objects.respec("service", **new_values({"user": "newer"}))
    objects.ready("service")
    assert objects.secret("service-outputs") == {"user": b"newer"}


@pytest.fixture(scope="module")
def eager(stack: Stack) -> Iterator[None]:
    """An operator that looks at everything each second."""
    stack.restart_operator("--resync-seconds", "1")
    yield
    stack.restart_operator()


def test_a_deleted_secret_comes_back(objects: Objects, eager: None) -> None:
    """A latest Secret that somebody deletes is there again at the next look, from what the run has stored."""
    objects.install("service", **service(template={"dsn": DSN}))
    objects.ready("service")
    before = objects.secret("service-outputs")
    objects.delete("Secret", "service-outputs")
    written(objects, "user", b"shop")
    assert objects.secret("service-outputs") == before
    assert len(objects.runs("service")) == 1


def test_an_edited_secret_is_mended(objects: Objects, eager: None) -> None:
    """Values that somebody has changed or added in a latest Secret are set right at the next look."""
    objects.install("service", **service())
    objects.ready("service")
    objects.patch("Secret", "service-outputs", {"stringData": {"user": "mallory", "more": "x"}})
    written(objects, "user", b"shop")
    assert "more" not in objects.secret("service-outputs")


def test_what_is_lost_is_said_until_it_is_made_again(objects: Objects, eager: None) -> None:
    """Where what the run has stored is gone too, the Installation is not Ready until there are outputs again."""
    objects.install("service", **service())
    run = objects.ready("service")["status"]["action"]["name"]
    for name in (f"{run}-outputs", "service-outputs"):
        objects.delete("Secret", name)
    assert "set the annotation outhaul.dev/recollect" in unshown(objects, "OutputsLost")
    objects.settle()
    assert (condition_of(objects.get("Installation", "service"), "Ready") or {}).get("reason") == "OutputsLost"
    objects.annotate("service", {"outhaul.dev/retry": "1"})
    objects.ran("service", 2)
    objects.condition("Installation", "service", "Ready", "True", "Succeeded")
    assert objects.secret("service-outputs")["user"] == b"shop"


def test_looking_again_writes_nothing(objects: Objects, eager: None) -> None:
    """A latest Secret that is as it should be is looked at, and not written."""
    objects.install("service", **service())
    objects.ready("service")
    before = version(objects)

    def looks() -> int:
        path = f"/namespaces/{objects.namespace}/secrets/service-outputs"
        events = objects.control_plane.audit_events(operator_user())
        return sum(path in one["requestURI"] and one["verb"] == "patch" for one in events)

    first = looks()
    objects.until("Installation", "service", lambda _: looks() >= first + 2, what="it was looked at twice")
    assert version(objects) == before


def test_the_end_of_a_conflict_is_noticed(objects: Objects, eager: None) -> None:
    """Once the foreign Secret is gone the outputs are shown at the next look, without a run."""
    objects.create("Secret", "service-outputs", stringData={"precious": "1"})
    objects.install("service", **service())
    unshown(objects, "SecretConflict")
    objects.delete("Secret", "service-outputs")
    installation = objects.until(
        "Installation",
        "service",
        lambda one: one if (condition_of(one, "Ready") or {}).get("status") == "True" else None,
        what="it is ready",
    )
    assert installation["status"]["binding"] == {"name": "service-outputs"}
    assert objects.condition("Installation", "service", "OutputsReady")
    assert objects.secret("service-outputs")["user"] == b"shop"
    assert len(objects.runs("service")) == 1
