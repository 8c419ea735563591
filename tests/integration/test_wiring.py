"""Installations that use each other's outputs, ConfigMaps and Secrets, and wait for each other."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from cluster.objects import Json, Objects, condition_of, requests_in
from cluster.stack import REPOSITORY, Stack, operator_user

pytestmark = pytest.mark.slow

PASSWORD = "hunter2-canary"  # noqa: S105 - it is looked for where it must not be
WATCH_INPUTS = REPOSITORY / "deploy/components/watch-inputs/role.yaml"
RETRY = "outhaul.dev/retry"
READS = {"get", "list", "watch"}
WRITES = {"create", "update", "patch", "delete"}


def step(name: str, script: str) -> list[Json]:
    """One command, a shell script."""
    return [{"name": name, "command": ["sh", "-c", script]}]


def giver(host: str = "db.internal") -> dict[str, Any]:
    """The spec of an Installation that gives a host and a port, and a password, which it has from the Secret `seed`."""
    script = (
        """printf '{"host": "%s", "port": 5432, "password": "%s"}' "$OUTHAUL_PARAMETER_host" "$OUTHAUL_INPUT_seed" """
    )
    source = {"command": {"command": ["sh", "-c", script], "format": "json"}}
    return {
        "engine": "exec",
        "parameters": {"host": host},
        "inputs": [{"name": "seed", "secretKeyRef": {"name": "seed", "key": "password"}}],
        "commands": {"install": step("make", "true"), "uninstall": step("unmake", "true")},
        "outputs": {"from": [source], "nonSensitive": ["host", "port"]},
    }


def from_giver(*names: str) -> list[Json]:
    """Inputs of these names from the outputs of the same names of `giver`."""
    return [{"name": name, "output": {"installation": "giver", "name": name}} for name in names]


def taker(*inputs: Json, **fields: Any) -> dict[str, Any]:
    """The spec of an Installation that gives what its inputs are, and that says at its end what they are then."""
    script = "; ".join(
        f'cat {one["file"]} > "$OUTHAUL_OUTPUTS/{one["name"]}"'
        if "file" in one
        else f'printf %s "$OUTHAUL_INPUT_{one["name"]}" > "$OUTHAUL_OUTPUTS/{one["name"]}"'
        for one in inputs
    )
    end = 'echo "host is ${OUTHAUL_INPUT_host:-gone}, password is ${OUTHAUL_INPUT_password:-gone}"'
    commands = {"install": step("take", script or "true"), "uninstall": step("leave", end)}
    return {"engine": "exec", "inputs": list(inputs), "commands": commands, **fields}


def give(objects: Objects, **spec: Any) -> str:
    """Makes `giver` and waits for it; returns its run's name."""
    objects.create("Secret", "seed", stringData={"password": PASSWORD})
    objects.install("giver", **spec or giver())
    return str(objects.ready("giver")["status"]["action"]["name"])


def waits(objects: Objects, name: str, reason: str) -> str:
    """Waits until an Installation says that it waits for others for this reason; returns the message."""
    message: str = objects.condition("Installation", name, "DependenciesReady", "False", reason)["message"]
    assert objects.condition("Installation", name, "Ready", "False", reason)["message"] == message
    return message


def variables(action: Json) -> dict[str, Json]:
    """The inputs that are variables of a run."""
    return {one["name"]: one for one in action["spec"]["env"] if one["name"].startswith("OUTHAUL_INPUT_")}


def second_run(objects: Objects, name: str) -> Json:
    """Waits until an Installation's second run has ended and it is ready; returns the AgentAction."""
    action = objects.ran(name, 2)
    objects.ready(name)
    return action


# -- inputs


def test_a_value_that_is_no_secret(objects: Objects) -> None:
    """An output that is no secret is put into the run as it is, and the run says by a digest what it was made from."""
    give(objects, **giver("$(HOME) $$ 'x'"))
    objects.install("taker", **taker(*from_giver("host", "port")))
    objects.ready("taker")
    assert objects.secret("taker-outputs") == {"host": b"$(HOME) $$ 'x'", "port": b"5432"}
    (run,) = objects.runs("taker")
    assert variables(run)["OUTHAUL_INPUT_port"] == {"name": "OUTHAUL_INPUT_port", "value": "5432"}
    assert len(run["metadata"]["annotations"]["outhaul.dev/inputs"]) == 64
    assert objects.condition("Installation", "taker", "DependenciesReady")


def test_a_secret_goes_by_reference(objects: Objects) -> None:
    """A secret is a reference to the giver's immutable Secret; its value is in no object but Secrets."""
    given = give(objects)
    objects.install("taker", **taker(*from_giver("password")))
    objects.ready("taker")
    assert objects.secret("taker-outputs") == {"password": PASSWORD.encode()}
    (run,) = objects.runs("taker")
    assert variables(run)["OUTHAUL_INPUT_password"] == {
        "name": "OUTHAUL_INPUT_password",
        "valueFrom": {"secretKeyRef": {"name": f"{given}-outputs", "key": "password"}},
    }
    kinds = ("Installation", "AgentAction", "InstallationOutput", "Pod", "Event", "ConfigMap")
    assert not [kind for kind in kinds if PASSWORD in json.dumps(objects.all(kind))]


def test_inputs_as_files(objects: Objects) -> None:
    """`file` gives a value as a file of the working directory, a secret or not, from wherever it comes."""
    give(objects)
    objects.create("ConfigMap", "settings", data={"pool": "10\n"}, binaryData={"blob": "AP8="})
    inputs = [
        from_giver("password")[0] | {"file": "secrets/password"},
        from_giver("port")[0] | {"file": "port"},
        {"name": "pool", "file": "etc/pool", "configMapKeyRef": {"name": "settings", "key": "pool"}},
        {"name": "blob", "file": "blob", "configMapKeyRef": {"name": "settings", "key": "blob"}},
        {"name": "seed", "file": "secrets/seed", "secretKeyRef": {"name": "seed", "key": "password"}},
    ]
    objects.install("taker", **taker(*inputs))
    objects.ready("taker")
    assert objects.secret("taker-outputs") == {
        "password": PASSWORD.encode(),
        "port": b"5432",
        "pool": b"10\n",
        "blob": b"\0\xff",
        "seed": PASSWORD.encode(),
    }


def test_config_maps_and_secrets_as_variables(objects: Objects) -> None:
    """Keys of ConfigMaps and Secrets become variables by reference; the operator reads neither."""
    objects.create("ConfigMap", "settings", data={"pool": "10"})
    objects.create("Secret", "login", stringData={"token": PASSWORD})
    pool = {"name": "pool", "configMapKeyRef": {"name": "settings", "key": "pool"}}
    token = {"name": "token", "secretKeyRef": {"name": "login", "key": "token"}}
    objects.install("taker", **taker(pool, token))
    objects.ready("taker")
    assert objects.secret("taker-outputs") == {"pool": b"10", "token": PASSWORD.encode()}
    events = objects.control_plane.audit_events(operator_user())
    assert not [one for one in requests_in(events, objects.namespace, READS) if "secrets" in one or "configmaps" in one]


def test_porter_gets_inputs_as_parameters(objects: Objects) -> None:
    """Engine porter hands inputs over as a parameter set, variables and files, beside the parameters of the spec."""
    give(objects)
    objects.install(
        "taker",
        bundle={"repository": "example/bundle", "version": "1.0.0"},
        parameters={"own": "x"},
        inputs=[from_giver("host")[0], {**from_giver("password")[0], "name": "secret", "file": "the/password"}],
    )
    objects.ready("taker")
    given = objects.secret("taker-outputs")
    assert given == {"own": b"x", "host": b"db.internal", "secret": PASSWORD.encode(), "runs": b"install"}


def test_an_output_that_does_not_exist(objects: Objects) -> None:
    """An input from an output that the other does not have waits, says which, and goes on once the output is there."""
    give(objects)
    objects.install("taker", **taker({"name": "x", "output": {"installation": "giver", "name": "zone"}}))
    assert "Installation giver has no output 'zone'" in waits(objects, "taker", "OutputNotFound")
    objects.respec("giver", outputs={"declare": [{"name": "zone", "default": "a"}]})
    objects.ready("taker")
    assert objects.secret("taker-outputs") == {"x": b"a"}


# -- changes


def test_a_changed_output_runs_the_taker_again(objects: Objects) -> None:
    """A new value of an output that is used starts a run of who uses it; one of another output does not."""
    give(objects)
    objects.install("taker", **taker(*from_giver("host")))
    objects.install("bystander", **taker(*from_giver("port")))
    objects.ready("taker")
    objects.ready("bystander")
    objects.respec("giver", parameters={"host": "other.internal"})
    assert second_run(objects, "taker")["spec"]["action"] == "upgrade"
    assert objects.secret("taker-outputs") == {"host": b"other.internal"}
    objects.settle()
    assert len(objects.runs("bystander")) == 1


def test_a_changed_secret_runs_the_taker_again(objects: Objects) -> None:
    """A new value of a secret starts a run of who uses it, although the operator compares no values."""
    give(objects)
    objects.install("taker", **taker(*from_giver("password")))
    objects.ready("taker")
    objects.patch("Secret", "seed", {"stringData": {"password": "another"}})
    objects.annotate("giver", {RETRY: "rotate"})
    second_run(objects, "taker")
    assert objects.secret("taker-outputs") == {"password": b"another"}


def test_unchanged_outputs_run_nobody(objects: Objects) -> None:
    """Another run of the giver that gives the same starts no run of who uses it."""
    give(objects)
    objects.install("taker", **taker(*from_giver("host", "password")))
    objects.ready("taker")
    objects.annotate("giver", {RETRY: "again"})
    second_run(objects, "giver")
    objects.settle()
    objects.ready("taker")
    assert len(objects.runs("taker")) == 1


# -- waiting


def test_depends_on_waits_until_the_other_is_ready(objects: Objects) -> None:
    """An Installation waits while one that it depends on is not ready, and starts at once when it is."""
    objects.create("ConfigMap", "settings", data={"pool": "10"})
    wanted = {"name": "pool", "configMapKeyRef": {"name": "settings", "key": "absent"}}
    objects.install("first", **taker(wanted))
    objects.install("second", **taker(dependsOn=["first"]))
    assert "Installation first is not Ready" in waits(objects, "second", "DependencyNotReady")
    assert objects.runs("second") == []
    objects.patch("ConfigMap", "settings", {"data": {"absent": "x"}})
    objects.ready("first")
    objects.ready("second")
    (first,), (second,) = objects.runs("first"), objects.runs("second")
    assert first["status"]["finishedAt"] <= second["metadata"]["creationTimestamp"]


def test_a_ring_is_named(objects: Objects) -> None:
    """Installations that wait for each other in a ring all say so, with the ring; an open ring is installed."""
    objects.install("a", **taker(dependsOn=["b"]))
    objects.install("b", **taker({"name": "x", "output": {"installation": "c", "name": "x"}}))
    objects.install("c", **taker(dependsOn=["a"]))
    assert "a -> b -> c -> a" in waits(objects, "a", "DependencyCycle")
    assert "b -> c -> a -> b" in waits(objects, "b", "DependencyCycle")
    assert "c -> a -> b -> c" in waits(objects, "c", "DependencyCycle")
    assert objects.runs("a") == objects.runs("b") == objects.runs("c") == []
    objects.respec("c", dependsOn=None, outputs={"declare": [{"name": "x", "default": "1"}]})
    for name in "abc":
        objects.until(
            "Installation",
            name,
            lambda one: one["status"].get("lastSucceeded"),
            what="it was installed",
        )


def test_nobody_can_wait_for_oneself(objects: Objects) -> None:
    """An Installation that names itself is a ring of one."""
    objects.install("a", **taker(dependsOn=["a"]))
    assert "a -> a" in waits(objects, "a", "DependencyCycle")


# -- deletion


def test_who_is_used_goes_last(objects: Objects) -> None:
    """An Installation that others use waits with its uninstall until they are gone, and names them."""
    give(objects)
    objects.install("taker", **taker(*from_giver("host")))
    objects.ready("taker")
    objects.delete("Installation", "giver")
    message = objects.condition("Installation", "giver", "Ready", "False", "InUse")["message"]
    assert "taker uses it" in message
    assert "outhaul.dev/uninstall-first" in message
    objects.settle()
    assert len(objects.runs("giver")) == 1
    assert objects.secret("giver-outputs")["host"] == b"db.internal"
    objects.delete("Installation", "taker")
    objects.gone("Installation", "taker")
    objects.gone("Installation", "giver")


def test_uninstall_first_and_a_missing_giver(objects: Objects, stack: Stack) -> None:
    """`uninstall-first` lets a giver go before its takers, whose deletion then does with what they had from it."""
    given = give(objects)
    objects.install("taker", **taker(*from_giver("host", "password")))
    objects.ready("taker")
    objects.annotate("giver", {"outhaul.dev/uninstall-first": "true"})
    objects.delete("Installation", "giver")
    objects.gone("Installation", "giver")
    # The garbage collector does the same, some time.
    objects.control_plane.kubectl("delete", "secret", f"{given}-outputs", "-n", objects.namespace, "--ignore-not-found")
    objects.until(
        "Installation",
        "taker",
        lambda one: "giver does not exist" in (condition_of(one, "DependenciesReady") or {}).get("message", ""),
        what="it says who is missing",
    )
    objects.ready("taker")
    assert len(objects.runs("taker")) == 1
    objects.delete("Installation", "taker")
    run = objects.until(
        "Installation",
        "taker",
        lambda one: one["status"]["action"] if one["status"]["action"]["number"] == 2 else None,
        what="it has an uninstall run",
    )
    objects.gone("Installation", "taker")
    said = stack.container_log(objects.namespace, run["name"])
    assert f"host is db.internal, password is {PASSWORD}" in said


def test_an_uninstall_takes_what_a_giver_still_has(objects: Objects, stack: Stack) -> None:
    """A giver whose newest run has failed still gives its outputs to an uninstall, whatever Secret holds them now."""
    give(objects)
    objects.install("taker", **taker(*from_giver("host", "password")))
    objects.ready("taker")
    objects.respec("giver", outputs={**giver()["outputs"], "historyLimit": 1})
    objects.annotate("giver", {"outhaul.dev/retry": "1"})
    objects.ran("giver", 2)
    objects.respec("giver", commands={"install": step("make", "false"), "uninstall": step("unmake", "true")})
    objects.condition("Installation", "giver", "Ready", "False", "RunFailed")
    objects.delete("Installation", "taker")
    run = objects.until(
        "Installation",
        "taker",
        lambda one: one["status"]["action"] if one["status"]["action"]["number"] == 2 else None,
        what="it has an uninstall run",
    )
    objects.gone("Installation", "taker")
    assert f"password is {PASSWORD}" in stack.container_log(objects.namespace, run["name"])


def test_a_run_that_waits_for_a_former_secret_begins_anew(objects: Objects) -> None:
    """A taker whose pod cannot start, since the Secret that it refers to is gone, gets the giver's newest one."""
    given = give(objects)
    objects.delete("Secret", f"{given}-outputs")
    objects.install("taker", **taker(*from_giver("password")))
    objects.condition("Installation", "taker", "Ready", "False", "ContainerNotStarted")
    objects.annotate("giver", {"outhaul.dev/retry": "1"})
    objects.ran("giver", 2)
    objects.ran("taker", 2)
    objects.condition("Installation", "taker", "Ready", "True", "Succeeded")
    assert objects.secret("taker-outputs")["password"] == PASSWORD.encode()


def test_waiting_asks_for_nothing(new_objects: Callable[[], Objects]) -> None:
    """Who waits for another is woken by a watch: meanwhile there is no request, and the run starts when it can."""
    patient, busy = new_objects(), new_objects()
    patient.install("patient", **taker(dependsOn=["late"]))
    assert "Installation late does not exist" in waits(patient, "patient", "DependencyNotReady")
    patient.settle()
    before = len(patient.control_plane.audit_events(operator_user()))
    give(busy, **giver())
    busy.settle()
    meanwhile = patient.control_plane.audit_events(operator_user())[before:]
    assert requests_in(meanwhile, busy.namespace, WRITES)
    assert requests_in(meanwhile, patient.namespace, READS | WRITES) == []
    patient.install("late", **taker())
    patient.ready("patient")


# -- ConfigMaps and Secrets that change


def reader(**fields: Any) -> dict[str, Any]:
    """The spec of an Installation whose source is a ConfigMap, and an input of which is a Secret's key."""
    token = {"name": "token", "secretKeyRef": {"name": "login", "key": "token"}}
    script = 'cat word > "$OUTHAUL_OUTPUTS/word"; printf %s "$OUTHAUL_INPUT_token" > "$OUTHAUL_OUTPUTS/token"'
    source = {"configMapRef": {"name": "source"}}
    return {"engine": "exec", "source": source, "inputs": [token], "commands": {"install": step("read", script)}}


def referred(objects: Objects) -> None:
    """Makes what `reader` refers to, and `reader`, and waits for it."""
    objects.create("ConfigMap", "source", data={"word": "one"})
    objects.create("Secret", "login", stringData={"token": "t1"})
    objects.install("reader", **reader())
    objects.ready("reader")


@pytest.fixture
def watched(objects: Objects) -> Objects:
    """A namespace that lets the operator watch its ConfigMaps and Secrets, with a reader in it."""
    for one in yaml.safe_load_all(WATCH_INPUTS.read_text()):
        fields = {key: value for key, value in one.items() if key not in {"apiVersion", "kind", "metadata"}}
        objects.create(one["kind"], one["metadata"]["name"], **fields)
    referred(objects)
    return objects


def test_changes_count_where_a_namespace_says_so(watched: Objects) -> None:
    """With the component watch-inputs a changed ConfigMap or Secret starts a run; another one does not."""
    watched.patch("ConfigMap", "source", {"data": {"word": "two"}})
    second_run(watched, "reader")
    assert watched.secret("reader-outputs") == {"word": b"two", "token": b"t1"}
    watched.patch("Secret", "login", {"stringData": {"token": "t2"}})
    watched.ran("reader", 3)
    watched.ready("reader")
    assert watched.secret("reader-outputs") == {"word": b"two", "token": b"t2"}
    watched.create("ConfigMap", "unrelated", data={"word": "three"})
    watched.settle()
    assert len(watched.runs("reader")) == 3


def test_a_restart_is_no_change(watched: Objects, stack: Stack) -> None:
    """An operator that starts again does not take for changed what it had not seen before."""
    stack.restart_operator()
    watched.settle()
    assert len(watched.runs("reader")) == 1
    watched.patch("ConfigMap", "source", {"data": {"word": "two"}})
    second_run(watched, "reader")


def test_taking_the_right_back_is_no_change(watched: Objects, stack: Stack) -> None:
    """A namespace that does not let itself be watched any more has changed nothing by that; no run starts."""
    watched.delete("RoleBinding", "outhaul-watch-inputs")
    stack.restart_operator()
    watched.settle()
    watched.ready("reader")
    assert len(watched.runs("reader")) == 1


def test_changes_elsewhere_count_at_the_next_run(objects: Objects) -> None:
    """Without the component a change starts nothing, no request is refused, and the next run has the new values."""
    referred(objects)
    objects.patch("ConfigMap", "source", {"data": {"word": "two"}})
    objects.patch("Secret", "login", {"stringData": {"token": "t2"}})
    objects.settle()
    assert len(objects.runs("reader")) == 1
    requests = requests_in(objects.control_plane.audit_events(operator_user()), objects.namespace, READS | WRITES)
    assert not [one for one in requests if one.endswith("-> 403")]
    objects.annotate("reader", {RETRY: "now"})
    second_run(objects, "reader")
    assert objects.secret("reader-outputs") == {"word": b"two", "token": b"t2"}
