"""The inputs of a run: resolved from records, put into a plan, remembered for an uninstall."""

import base64
import json
from typing import Any

import pytest
from builders import installation
from outhaul_api.agentaction import AgentActionSpec, PodEnvVar
from outhaul_api.installation import Installation
from outhaul_api.installationoutput import InstallationOutput
from outhaul_api.vocabulary import Action, Reason
from outhaul_operator import engines, inputs
from outhaul_operator.decisions import have_inputs_changed
from outhaul_operator.engines.plan import Plan
from outhaul_operator.inputs import Reference, Resolved
from outhaul_operator.kinds import Kind
from outhaul_operator.verdicts import StalledError, WaitingError

SHA, OTHER_SHA = "a" * 64, "b" * 64
CONFIG = (Kind.CONFIG_MAP, "settings")
SECRET = (Kind.SECRET, "login")


def record(*outputs: dict[str, Any]) -> InstallationOutput:
    """A record with these outputs; each is a text that is no secret, unless it says otherwise."""
    filled = [
        {"name": "host", "type": "string", "sensitive": False, "size": 1, "sha256": SHA}
        | ({"secretKeyRef": {"name": "db-1-outputs", "key": one.get("name", "host")}} | one)
        for one in outputs
    ]
    return InstallationOutput.model_validate(
        {
            "metadata": {"name": "db-1", "namespace": "tenant", "uid": "u"},
            "spec": {"action": "db-1"},
            "status": {"phase": "Current", "outputs": filled},
        }
    )


def from_output(name: str = "host", **fields: Any) -> dict[str, Any]:
    """An input from an output of `db`."""
    return {"name": "in", "output": {"installation": "db", "name": name}, **fields}


def wants(*given: dict[str, Any], **spec: Any) -> Installation:
    """An Installation with these inputs."""
    return installation({"inputs": list(given), **spec})


def resolved(given: dict[str, Any], *outputs: dict[str, Any]) -> str | Reference:
    """What one input is."""
    return inputs.resolve(wants(given), {"db": record(*outputs)}, {}).values["in"]


def plan_with(value: str | Reference, **fields: Any) -> Plan:
    """A plan with one input of this value."""
    plan = Plan(commands=[])
    inputs.add(plan, wants(from_output(**fields)), Resolved({"in": value}), "TF_VAR_")
    return plan


# -- resolving


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ({"value": "db"}, "db"),
        ({"value": 5432, "type": "number"}, "5432"),
        ({"value": True, "type": "boolean"}, "true"),
        ({"value": {"b": 1}, "type": "object"}, Reference("secret", "db-1-outputs", "host")),
        ({"type": "null"}, "null"),
        ({"sensitive": True, "sha256": None, "fingerprint": SHA}, Reference("secret", "db-1-outputs", "host")),
        ({"sensitive": True, "type": "null", "fingerprint": SHA}, Reference("secret", "db-1-outputs", "host")),
        ({"size": 9999}, Reference("secret", "db-1-outputs", "host")),
    ],
    ids=["text", "number", "boolean", "object", "null", "secret", "secret null", "not inline"],
)
def test_a_value_or_a_reference(output: dict[str, Any], value: str | Reference) -> None:
    """What a record shows is put into the run, text as it is and the rest as JSON; everything else is a reference."""
    assert resolved(from_output(), output) == value


def test_a_file_is_always_a_reference() -> None:
    """A file is mounted, so its content is exact, whatever it is."""
    wanted = Reference("secret", "db-1-outputs", "host")
    assert resolved(from_output(file="a"), {"value": "db"}) == wanted
    assert resolved(from_output(file="a"), {"type": "bytes"}) == wanted


def test_bytes_are_no_variable() -> None:
    """A binary output cannot be a variable; the message says what to do."""
    with pytest.raises(StalledError, match="give `file`"):
        resolved(from_output(), {"type": "bytes"})


def test_a_large_value_is_no_variable() -> None:
    """An output that is too large for a variable can be a file; the message says so."""
    large = {"size": 200_000, "sensitive": True}
    with pytest.raises(StalledError, match="200,000 bytes, too many for a variable; give `file`"):
        resolved(from_output(), large)
    assert resolved(from_output(file="a"), large) == Reference("secret", "db-1-outputs", "host")


def test_a_nul_is_in_no_variable() -> None:
    """A text with a NUL can be a file and no variable."""
    with pytest.raises(
        StalledError, match="'in': the output has a NUL character and cannot be a variable; give `file`"
    ):
        resolved(from_output(), {"value": "a\0b"})


def test_an_output_that_was_not_stored() -> None:
    """An output that no Secret held cannot be an input."""
    with pytest.raises(StalledError, match="too large"):
        resolved(from_output(), {"secretKeyRef": None})


@pytest.mark.parametrize(
    ("records", "words"),
    [
        pytest.param({"db": record()}, "has no output 'host', but none; correct the name", id="others"),
        pytest.param({"db": None}, "has no record of its outputs", id="no record"),
        pytest.param({}, "has no record of its outputs", id="unknown"),
    ],
)
def test_an_output_that_is_missing(records: dict[str, InstallationOutput | None], words: str) -> None:
    """An output that does not exist may come: the names and what to do are told, and a watch reports it."""
    with pytest.raises(WaitingError, match=f"Installation db {words}") as caught:
        inputs.resolve(wants(from_output()), records, {})
    assert caught.value.reason is Reason.OUTPUT_NOT_FOUND
    assert caught.value.is_watched


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "in"}, "exactly one of"),
        (from_output(secretKeyRef={"name": "s", "key": "k"}), "exactly one of"),
        (from_output(file="/etc/passwd"), "no relative path"),
        (from_output(file="a/../../b"), "has '..'"),
        (from_output(file="a\nb"), "control character"),
        (from_output(file="./a"), "has '.'"),
    ],
    ids=["nothing", "two", "absolute", "out", "two lines", "a dot"],
)
def test_a_bad_input(given: dict[str, Any], words: str) -> None:
    """An input that is not as it has to be is named."""
    with pytest.raises(StalledError, match=f"'in'.*{words}"):
        resolved(given, {"value": "db"})


def test_config_maps_and_secrets_are_references() -> None:
    """Keys of ConfigMaps and Secrets are never read."""
    pool = {"name": "pool", "configMapKeyRef": {"name": "settings", "key": "p"}}
    token = {"name": "token", "secretKeyRef": {"name": "login", "key": "t"}}
    assert inputs.resolve(wants(pool, token), {}, {}).values == {
        "pool": Reference("configMap", "settings", "p"),
        "token": Reference("secret", "login", "t"),
    }


# -- digests


def digest(*outputs: dict[str, Any], versions: dict[tuple[Kind, str], str] | None = None) -> str | None:
    """The digest of an Installation with an input from an output, and a ConfigMap and a Secret that it refers to."""
    token = {"name": "token", "secretKeyRef": {"name": "login", "key": "t"}}
    wanted = wants(from_output(), token, source={"configMapRef": {"name": "settings"}})
    return inputs.resolve(wanted, {"db": record(*outputs)}, versions or {}).digest


def test_no_inputs_have_no_digest() -> None:
    """Where nothing comes from elsewhere there is nothing to compare."""
    assert inputs.resolve(wants(), {}, {}).digest is None


def test_a_digest_tells_outputs_apart() -> None:
    """Another digest or fingerprint of the output in use is a change, another output is none."""
    first = digest({"value": "x"}, {"name": "other", "sha256": SHA})
    assert not have_inputs_changed(first, digest({"value": "x"}, {"name": "other", "sha256": OTHER_SHA}))
    assert have_inputs_changed(first, digest({"value": "y", "sha256": OTHER_SHA}))
    secret = {"sensitive": True, "sha256": None}
    one, two = (digest(secret | {"fingerprint": sum_}) for sum_ in (SHA, OTHER_SHA))
    assert have_inputs_changed(one, two)


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({CONFIG: "1", SECRET: "1"}, {CONFIG: "1", SECRET: "1"}, False),
        ({CONFIG: "1", SECRET: "1"}, {CONFIG: "2", SECRET: "1"}, True),
        ({CONFIG: "1", SECRET: "1"}, {CONFIG: "1", SECRET: "2"}, True),
        ({CONFIG: "1", SECRET: "1"}, {}, False),
        ({CONFIG: "1", SECRET: "1"}, {CONFIG: "1"}, False),
        ({}, {CONFIG: "1", SECRET: "1"}, True),
        ({}, {}, False),
    ],
    ids=["same", "ConfigMap", "Secret", "right taken back", "one missing", "right given", "never told"],
)
def test_versions_count_where_all_can_be_told(
    before: dict[tuple[Kind, str], str], now: dict[tuple[Kind, str], str], *, changed: bool
) -> None:
    """Another version is a change; one that cannot be told now is none."""
    output = {"value": "x"}
    assert have_inputs_changed(digest(output, versions=before), digest(output, versions=now)) is changed


def test_what_is_referred_to() -> None:
    """The source's ConfigMap or Secret and those of inputs are referred to, each once."""
    token = {"name": "token", "secretKeyRef": {"name": "login", "key": "t"}}
    pool = {"name": "pool", "configMapKeyRef": {"name": "settings", "key": "p"}}
    other = {"name": "other", "secretKeyRef": {"name": "login", "key": "o"}}
    wanted = wants(token, pool, other, source={"configMapRef": {"name": "settings"}})
    assert inputs.references(wanted) == [CONFIG, SECRET]
    assert inputs.references(wants(source={"secretRef": {"name": "login"}})) == [SECRET]


# -- in the run


def test_a_value_is_a_variable() -> None:
    """A value is the engine's variable of the input's name; Kubernetes replaces nothing in it."""
    assert plan_with("$(HOME) $x").env == [PodEnvVar(name="TF_VAR_in", value="$$(HOME) $$x")]


def test_a_reference_is_a_variable() -> None:
    """A reference is a variable whose value the pod finds."""
    found = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert plan_with(Reference("secret", "s", "k")).env == [PodEnvVar(name="TF_VAR_in", value_from=found)]


def test_a_file_is_a_volume() -> None:
    """A file is a volume of its own, whose content is copied into the working directory."""
    plan = plan_with(Reference("configMap", "c", "k"), file="etc/x")
    items = [{"key": "k", "path": "etc/x"}]
    assert plan.volumes == [{"name": "input-0", "configMap": {"name": "c", "items": items}}]
    assert plan.volume_mounts == [{"name": "input-0", "mountPath": "/outhaul/inputs/in", "readOnly": True}]
    assert plan.copy_from == ["/outhaul/inputs/in"]
    assert plan.env == []


def test_porter_gets_a_parameter_set() -> None:
    """Engine porter writes a parameter set that takes inputs from variables and files, and applies it first."""
    given = [from_output(), from_output() | {"name": "key", "file": "keys/id"}]
    wanted = wants(*given, engine="porter", bundle={"repository": "r/b", "version": "1.0.0"})
    plan = engines.plan(wanted, Action.INSTALL, None)
    assert plan is not None
    documents = [json.loads(base64.b64decode(content)) for content in plan.files.values()]
    (parameters,) = (one for one in documents if one["schemaType"] == "ParameterSet")
    (document,) = (one for one in documents if one["schemaType"] == "Installation")
    assert parameters["parameters"] == [
        {"name": "in", "source": {"env": "OUTHAUL_INPUT_in"}},
        {"name": "key", "source": {"path": "keys/id"}},
    ]
    assert document["parameterSets"] == [parameters["name"]]
    assert plan.commands[0].command[:3] == ["porter", "parameters", "apply"]


# -- the uninstall


def test_an_uninstall_has_what_the_run_before_had() -> None:
    """What cannot be told any more is taken from the newest run, references as ones that may lead nowhere."""
    before = plan_with(Reference("secret", "s", "k"))
    file = plan_with(Reference("secret", "s", "f"), file="etc/x")
    previous = AgentActionSpec(
        env=[*before.env, PodEnvVar(name="TF_VAR_plain", value="v"), PodEnvVar(name="HOME", value="/")],
        volumes=[*file.volumes, {"name": "source", "configMap": {"name": "c"}}],
        volume_mounts=file.volume_mounts,
    )
    plan = Plan(commands=[])
    inputs.add_as_before(plan, previous, "TF_VAR_")
    optional = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
    assert plan.env == [PodEnvVar(name="TF_VAR_in", value_from=optional), PodEnvVar(name="TF_VAR_plain", value="v")]
    (volume,) = plan.volumes
    assert volume["secret"]["optional"] is True
    assert volume["secret"]["items"] == [{"key": "f", "path": "etc/x"}]
    assert plan.copy_from == ["/outhaul/inputs/in"]


def test_an_uninstall_has_what_can_be_told() -> None:
    """What can be told now is not taken from the run before."""
    plan = plan_with("now")
    inputs.add_as_before(plan, AgentActionSpec(env=[PodEnvVar(name="TF_VAR_in", value="then")]), "TF_VAR_")
    assert plan.env == [PodEnvVar(name="TF_VAR_in", value="now")]
