"""What each engine makes of an Installation; the first steps of Terraform's are run for real."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import installation
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.agentaction import Command
from outhaul_api.vocabulary import Action, Reason
from outhaul_operator import engines
from outhaul_operator.engines.plan import Plan
from outhaul_operator.engines.terraform import BACKEND_FILE, PARAMETERS_FILE
from outhaul_operator.verdicts import StalledError

INSTALL, UPGRADE, UNINSTALL, RECOLLECT = Action.INSTALL, Action.UPGRADE, Action.UNINSTALL, Action.RECOLLECT
FILES = {"files": {"main.tf": "# code\n"}}
CONFIG_MAP = {"configMapRef": {"name": "code"}}
ARCHIVE = {"archive": {"url": "https://example.com/code.tar.gz", "sha256": "0" * 64}}
SECRET = {"secretRef": {"name": "code"}}
KEY = {"name": "key", "secretKeyRef": {"name": "login", "key": "k"}, "file": "key.pem"}
COMMANDS = {
    "install": [{"name": "in", "command": ["install"]}],
    "upgrade": [{"name": "up", "command": ["upgrade"]}],
    "uninstall": [{"name": "out", "command": ["uninstall"]}],
}
BUNDLE = {"repository": "ghcr.io/getporter/examples/hello", "version": "1.0.0"}


def plan(spec: dict[str, Any], action: Action = INSTALL, configured: str | None = None) -> Plan:
    """Returns the plan of an action; there is something to do."""
    result = engines.plan(installation(spec), action, configured)
    assert result is not None
    return result


def refused(spec: dict[str, Any], action: Action = INSTALL, configured: str | None = None) -> StalledError:
    """Returns why there is no plan."""
    with pytest.raises(StalledError) as caught:
        engines.plan(installation(spec), action, configured)
    return caught.value


def text(made: Plan, path: str) -> str:
    """Returns a file of a plan."""
    return base64.b64decode(made.files[path]).decode()


def steps(made: Plan) -> list[str]:
    """Returns the names of a plan's commands."""
    return [one.name for one in made.commands]


# -- which engine


@pytest.mark.parametrize(
    ("spec", "configured", "expected"),
    [
        ({}, None, "exec"),
        ({"bundle": BUNDLE}, None, "porter"),
        ({}, "terraform", "terraform"),
        ({"bundle": BUNDLE}, "terraform", "terraform"),
        ({"bundle": BUNDLE, "engine": "exec"}, "terraform", "exec"),
    ],
)
def test_the_nearest_word_chooses_the_engine(spec: dict[str, Any], configured: str | None, expected: str) -> None:
    """The Installation's own word counts before the AgentConfig's, and that before what the spec looks like."""
    assert engines.engine_name(installation(spec), configured) == expected


@pytest.mark.parametrize(("spec", "configured"), [({"engine": "pulumi"}, None), ({}, "pulumi")])
def test_an_unknown_engine_is_named(spec: dict[str, Any], configured: str | None) -> None:
    """The message says which engine is not known, and which are."""
    error = refused(spec, configured=configured)
    assert error.reason is Reason.UNKNOWN_ENGINE
    assert "'pulumi' is not known; use one of exec, porter, terraform" in error.message


@pytest.mark.parametrize(
    ("spec", "configured", "field"),
    [
        ({"commands": COMMANDS, "source": FILES}, "terraform", "spec.commands is for engine exec"),
        ({"commands": COMMANDS, "bundle": BUNDLE}, "porter", "spec.commands is for engine exec"),
        ({"bundle": BUNDLE, "source": FILES, "engine": "terraform"}, None, "spec.bundle is for engine porter"),
        ({"bundle": BUNDLE, "source": FILES}, None, "spec.source is for engine exec or terraform"),
    ],
)
def test_a_field_that_the_engine_does_not_read_is_refused(
    spec: dict[str, Any], configured: str | None, field: str
) -> None:
    """What would be ignored is refused by its name, but for an uninstall, which has to be possible."""
    error = refused(spec, configured=configured)
    assert error.reason is Reason.INVALID_SPEC
    assert field in error.message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"timeout": "0s"}, "spec.timeout must be more than 0"),
        ({"outputs": {"from": [{}]}}, "spec.outputs.from[0] must have exactly one of"),
        (
            {"outputs": {"from": [{"command": {"command": ["a"], "format": "text"}}]}},
            "spec.outputs.from[0].command.name",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_own_field(spec: dict[str, Any], words: str) -> None:
    """A fault is told before there is a run, by the name of the field that the user wrote."""
    error = refused({"commands": COMMANDS, **spec})
    assert error.reason is Reason.INVALID_SPEC
    assert words in error.message


# -- what engines share


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ({}, "none"),
        ({"files": {}}, "none"),
        ({**FILES, **CONFIG_MAP}, "files and configMapRef"),
        ({**CONFIG_MAP, **SECRET}, "configMapRef and secretRef"),
        ({**ARCHIVE, **SECRET}, "secretRef and archive"),
    ],
)
@pytest.mark.parametrize("engine", [{"engine": "terraform"}, {"engine": "exec", "commands": COMMANDS}])
def test_exactly_one_source(engine: dict[str, Any], source: dict[str, Any], given: str) -> None:
    """No source, or two, is a mistake that is told with what was given."""
    error = refused({**engine, "source": source})
    assert error.reason is Reason.INVALID_SPEC
    assert (
        error.message == f"spec.source must give exactly one of files, configMapRef, secretRef and archive, not {given}"
    )


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "../x", "a/../../x", "a\0b", "a\nb"])
def test_files_stay_in_the_working_directory(path: str) -> None:
    """A path that leads out of the working directory is refused, and named."""
    error = refused({"engine": "terraform", "source": {"files": {path: ""}}})
    assert error.reason is Reason.INVALID_SPEC
    assert error.message.startswith(f"spec.source.files: {path!r} ")


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"engine": "terraform"}, PARAMETERS_FILE),
        ({"engine": "terraform"}, f"./{PARAMETERS_FILE}"),
        ({"engine": "exec", "commands": COMMANDS}, "parameters.json"),
    ],
)
def test_a_file_of_the_engines_own_is_not_overwritten(spec: dict[str, Any], path: str) -> None:
    """A user's file that the engine would write over is refused, not lost."""
    error = refused({**spec, "source": {"files": {path: "mine"}}})
    assert "is a file that the engine writes; rename it" in error.message


@pytest.mark.parametrize("engine", [{"engine": "terraform"}, {"engine": "exec", "commands": COMMANDS}])
def test_a_config_map_is_mounted(engine: dict[str, Any]) -> None:
    """A ConfigMap goes to the pod by reference, and its files to the working directory there."""
    made = plan({**engine, "source": CONFIG_MAP})
    assert made.volumes == [{"name": "source", "configMap": {"name": "code"}}]
    assert made.volume_mounts == [{"name": "source", "mountPath": "/outhaul/source", "readOnly": True}]
    assert made.copy_from == ["/outhaul/source"]


def test_a_secret_is_mounted() -> None:
    """A Secret goes to the pod by reference as well: the operator has none of its content."""
    made = plan({"engine": "terraform", "source": SECRET})
    assert made.volumes == [{"name": "source", "secret": {"secretName": "code"}}]
    assert made.volume_mounts == [{"name": "source", "mountPath": "/outhaul/source", "readOnly": True}]
    assert made.copy_from == ["/outhaul/source"]


@pytest.mark.parametrize("engine", [{"engine": "terraform"}, {"engine": "exec", "commands": COMMANDS}])
def test_an_archive_is_the_agents_to_fetch(engine: dict[str, Any]) -> None:
    """A run is told where its archive is, and nothing of it is mounted."""
    made = plan({**engine, "source": {"archive": {**ARCHIVE["archive"], "path": "modules/vpc"}}})
    assert made.archive is not None
    assert made.archive.to_json() == {**ARCHIVE["archive"], "path": "modules/vpc"}
    assert (made.volumes, made.copy_from) == ([], [])


def test_a_directory_of_an_archive_is_within_it() -> None:
    """A path that leads out of the archive is refused, and named."""
    error = refused({"engine": "terraform", "source": {"archive": {**ARCHIVE["archive"], "path": "../x"}}})
    assert error.message == "spec.source.archive.path: '../x' has '..'; correct it"


@pytest.mark.parametrize(
    ("spec", "both"),
    [
        ({"source": {"files": {"a": "", "a/b": ""}}}, ("'a'", "'a/b'")),
        ({"source": {"files": {"key.pem/x": ""}}, "inputs": [KEY]}, ("'key.pem'", "'key.pem/x'")),
        ({"source": {"files": {"key.pem": ""}}, "inputs": [KEY]}, ("'key.pem'", "'key.pem'")),
        ({"inputs": [{**KEY, "file": "parameters.json/x"}]}, ("'parameters.json'", "'parameters.json/x'")),
    ],
)
def test_no_file_takes_another_s_place(spec: dict[str, Any], both: tuple[str, str]) -> None:
    """Files of the source, of inputs and of the engine that cannot be there together are refused, by their names."""
    error = refused({"commands": COMMANDS, **spec})
    assert error.reason is Reason.INVALID_SPEC
    assert f"{both[0]} and {both[1]} cannot both be files of the working directory" in error.message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"install": [{"name": "a", "command": ["x", "\0"]}]}, "spec.commands.install[0].command[1] has a NUL"),
        ({"upgrade": [{"name": "a", "command": ["x\n"]}]}, "spec.commands.upgrade[0].command[0] must name a program"),
        (
            {"uninstall": [{"name": "a", "command": ["x"], "env": [{"name": "A", "value": "\0"}]}]},
            "spec.commands.uninstall[0].env[0].value has a NUL character",
        ),
        (
            {"install": [{"name": "a", "command": ["x"], "workingDir": "../.."}]},
            "spec.commands.install[0].workingDir: '../..' has '..'",
        ),
    ],
)
def test_commands_that_cannot_be_run_are_refused(spec: dict[str, Any], words: str) -> None:
    """What no program can be given is told on the Installation, by its field, before there is a run."""
    assert words in refused({"commands": {**COMMANDS, **spec}}).message


def test_a_parameter_with_a_nul_is_no_variable() -> None:
    """It is refused by its name; a file has it as it is."""
    assert (
        "spec.parameters: 'p' has a NUL character" in refused({"commands": COMMANDS, "parameters": {"p": "\0"}}).message
    )
    made = plan({"engine": "terraform", "source": FILES, "parameters": {"p": "\0"}})
    assert json.loads(text(made, PARAMETERS_FILE)) == {"p": "\0"}


def test_outputs_come_from_where_the_spec_says() -> None:
    """`outputs.from` takes the place of the engine's own sources, but for an uninstall, which has no outputs."""
    source = {"manifest": {"path": "m.json"}}
    spec = {"commands": COMMANDS, "outputs": {"from": [source]}}
    assert [one.to_json() for one in plan(spec).outputs] == [source]
    assert plan(spec, UNINSTALL).outputs == []
    assert plan({"engine": "terraform", "source": FILES}, UNINSTALL).outputs == []


# -- exec


@pytest.mark.parametrize(
    ("action", "commands", "expected"),
    [
        (INSTALL, COMMANDS, ["in"]),
        (UPGRADE, COMMANDS, ["up"]),
        (UNINSTALL, COMMANDS, ["out"]),
        (UPGRADE, {"install": COMMANDS["install"]}, ["in"]),
        (UPGRADE, {"install": COMMANDS["install"], "upgrade": []}, []),
    ],
)
def test_exec_runs_the_commands_of_the_action(action: Action, commands: dict[str, Any], expected: list[str]) -> None:
    """Each action has its commands; an upgrade without any of its own installs again."""
    assert steps(plan({"commands": commands}, action)) == expected


def test_exec_without_uninstall_has_nothing_to_do() -> None:
    """Where nothing uninstalls there is no run."""
    assert engines.plan(installation({"commands": {"install": COMMANDS["install"]}}), UNINSTALL, None) is None


@pytest.mark.parametrize("spec", [{}, {"commands": {}}, {"commands": {"uninstall": COMMANDS["uninstall"]}}])
@pytest.mark.parametrize("action", [INSTALL, UPGRADE, UNINSTALL])
def test_exec_needs_commands(spec: dict[str, Any], action: Action) -> None:
    """An Installation of nothing at all is told what it needs."""
    assert "spec.commands.install" in refused(spec, action).message


def test_exec_collects_the_directory_of_outputs() -> None:
    """Files that the commands leave in `$OUTHAUL_OUTPUTS` are the outputs."""
    (source,) = plan({"commands": COMMANDS}).outputs
    assert source.to_json() == {"directory": {"path": "/outhaul/outputs", "required": []}}


def test_exec_cannot_collect_files_again() -> None:
    """Files are gone with their pod: the message says how to get them."""
    error = refused({"commands": COMMANDS}, RECOLLECT)
    assert error.reason is Reason.CANNOT_RECOLLECT
    assert "outhaul.dev/retry" in error.message


def test_exec_collects_again_what_a_command_prints() -> None:
    """Output commands can run again without the commands."""
    source = {"command": {"command": ["cat", "x"], "format": "json"}}
    made = plan({"commands": COMMANDS, "outputs": {"from": [source]}}, RECOLLECT)
    assert made.commands == []
    assert len(made.outputs) == 1


def test_parameters_are_a_file_and_variables() -> None:
    """Every parameter is in the file as JSON; one that can be a variable's name is a variable, text as it is."""
    parameters = {"size": 3, "name": 'a "b" ü', "list": [1, None], "not-a-name": True, "price": "$(HOME)"}
    made = plan({"commands": COMMANDS, "parameters": parameters})
    assert json.loads(text(made, "parameters.json")) == parameters
    assert {one.name: one.value for one in made.env} == {
        "OUTHAUL_PARAMETER_size": "3",
        "OUTHAUL_PARAMETER_name": 'a "b" ü',
        "OUTHAUL_PARAMETER_list": "[1,null]",
        "OUTHAUL_PARAMETER_price": "$$(HOME)",
    }


def as_kubernetes_expands(value: str) -> str:
    """Returns a value as a kubelet makes it of a variable (third_party/forked/golang/expansion), beside no other."""
    result, index = "", 0
    while index < len(value):
        pair = value[index : index + 2]
        end = value.find(")", index)
        if pair == "$$":
            result, index = f"{result}$", index + 2
        elif pair == "$(" and end >= 0:
            result, index = f"{result}<{value[index + 2 : end]}>", end + 1
        else:
            result, index = result + value[index], index + 1
    return result


@given(st.text("$()aA ", max_size=12))
def test_a_parameter_arrives_as_it_was_written(value: str) -> None:
    """Kubernetes replaces nothing in a parameter's text."""
    (variable,) = plan({"commands": COMMANDS, "parameters": {"p": value}}).env
    assert as_kubernetes_expands(variable.value) == value


# -- porter


def test_porter_writes_its_own_document() -> None:
    """The document is Porter's: what the spec says, under the object's name and namespace by default."""
    made = plan({"bundle": BUNDLE, "parameters": {"a": 1, "b": None}, "labels": {"x": "y"}})
    assert json.loads(text(made, "installation.yaml")) == {
        "schemaType": "Installation",
        "schemaVersion": "1.0.2",
        "name": "shop",
        "namespace": "tenant",
        "uninstalled": False,
        "bundle": BUNDLE,
        "labels": {"x": "y"},
        "parameters": {"a": 1, "b": None},
    }
    (apply,) = made.commands
    assert apply.command == ["porter", "installation", "apply", "installation.yaml", "--force"]


def test_porters_own_names_are_kept() -> None:
    """`spec.name`, `spec.namespace` and `spec.schemaVersion` are for Porter alone."""
    made = plan({"bundle": BUNDLE, "name": "mine", "namespace": "dev", "schemaVersion": "1.0.1"})
    document = json.loads(text(made, "installation.yaml"))
    assert (document["name"], document["namespace"], document["schemaVersion"]) == ("mine", "dev", "1.0.1")
    (source,) = made.outputs
    assert source.command is not None
    assert source.command.command == [
        *("porter", "installation", "outputs", "list"),
        *("--installation", "mine", "--namespace", "dev", "--output", "json"),
    ]
    assert source.command.format == "porter"


def test_porter_is_told_of_an_uninstall_by_its_document() -> None:
    """Porter reads what is wanted; it is not forced, which would install what is not there, and then told to forget."""
    made = plan({"bundle": BUNDLE}, UNINSTALL)
    assert json.loads(text(made, "installation.yaml"))["uninstalled"] is True
    assert [one.command for one in made.commands] == [
        ["porter", "installation", "apply", "installation.yaml"],
        ["porter", "installation", "delete", "shop", "--namespace", "tenant"],
    ]
    assert made.outputs == []


def test_porter_collects_again_without_applying() -> None:
    """Outputs are listed from what Porter has stored."""
    made = plan({"bundle": BUNDLE}, RECOLLECT)
    assert made.commands == []
    assert len(made.outputs) == 1


def test_porter_needs_a_bundle() -> None:
    """Without a bundle Porter has nothing to apply, and it does not guess a version."""
    assert "spec.bundle" in refused({"engine": "porter"}).message
    assert "version, digest and tag" in refused({"bundle": {"repository": "r"}}).message


def test_porter_gets_inputs_as_a_parameter_set() -> None:
    """Values from elsewhere are Porter's own parameters, read from variables and files in the pod."""
    inputs = [
        {"name": "host", "output": {"installation": "db", "name": "host"}},
        {"name": "key", "secretKeyRef": {"name": "s", "key": "k"}, "file": "key.pem"},
    ]
    made = plan({"bundle": BUNDLE, "inputs": inputs})
    assert steps(made) == ["inputs", "apply"]
    assert json.loads(text(made, "installation.yaml"))["parameterSets"] == ["shop-inputs"]
    document = json.loads(text(made, "inputs.json"))
    assert (document["schemaType"], document["name"], document["namespace"]) == (
        "ParameterSet",
        "shop-inputs",
        "tenant",
    )
    assert document["parameters"] == [
        {"name": "host", "source": {"env": "OUTHAUL_INPUT_host"}},
        {"name": "key", "source": {"path": "key.pem"}},
    ]


# -- terraform

MODULE: dict[str, Any] = {"engine": "terraform", "source": FILES, "parameters": {"size": 3, "big": 2**60}}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (INSTALL, ["backend", "init", "state", "apply"]),
        (UPGRADE, ["backend", "init", "state", "apply"]),
        (UNINSTALL, ["backend", "init", "state", "destroy", "forget-state"]),
        (RECOLLECT, ["backend", "init", "state"]),
    ],
)
def test_terraform_has_its_steps(action: Action, expected: list[str]) -> None:
    """Each action is init and one change, and nothing asks a question."""
    made = plan(MODULE, action)
    assert steps(made) == expected
    for one in made.commands:
        if one.command[0] == "terraform":
            assert "-input=false" in one.command
            assert ("-auto-approve" in one.command) == (one.command[1] in {"apply", "destroy"})


def test_terraform_gets_parameters_as_variables() -> None:
    """Parameters are Terraform's own file of variables, exact; the module's files are as they are."""
    made = plan(MODULE)
    assert text(made, PARAMETERS_FILE) == f'{{"size":3,"big":{2**60}}}'
    assert text(made, "main.tf") == "# code\n"


def test_terraform_collects_its_outputs() -> None:
    """Outputs are Terraform's own, with its own word on what is a secret."""
    (source,) = plan(MODULE).outputs
    assert source.command is not None
    assert (source.command.command[:3], source.command.format) == (["terraform", "output", "-json"], "terraform")


def test_terraform_needs_a_source() -> None:
    """Without code there is nothing to apply."""
    assert "engine terraform needs spec.source" in refused({"engine": "terraform"}).message


def test_terraform_forgets_its_state_after_a_destroy() -> None:
    """The last step of an uninstall is told whose state it is, and brings its program along."""
    made = plan(MODULE, UNINSTALL)
    assert made.commands[-1].command == ["python3", ".outhaul/forget_state.py", BACKEND_FILE, "tenant", "shop"]
    compile(text(made, ".outhaul/forget_state.py"), "forget_state.py", "exec")
    assert ".outhaul/forget_state.py" not in plan(MODULE).files


def test_terraforms_state_is_named_after_the_installation() -> None:
    """The state is in the pod's namespace, under a name that is short enough for a label and found again."""
    backend = text(plan(MODULE), ".outhaul/backend.tf")
    assert 'secret_suffix     = "shop"' in backend
    assert 'namespace         = "tenant"' in backend
    made = engines.plan(installation(MODULE, name="n" * 200), UNINSTALL, None)
    assert made is not None
    suffix = made.commands[-1].command[-1]
    assert len(suffix) == 63
    assert f'"{suffix}"' in text(made, ".outhaul/backend.tf")


# -- terraform's first steps, for real

OURS = 'terraform {\n  backend "local" {\n    path = "ours.tfstate"\n  }\n}\n'
"""Stands in for the backend that the operator writes, which needs a cluster."""
TERRAFORM = Path(__file__).parents[3] / "samples" / "terraform" / "terraform"


@pytest.fixture
def first_steps() -> list[Command]:
    """The steps before Terraform changes anything."""
    return plan(MODULE).commands[:3]


def prepared(folder: Path, files: dict[str, str], first_steps: list[Command]) -> dict[str, Any] | None:
    """Runs the first steps on a module; returns the configuration of the backend that Terraform will use."""
    (folder / "bin").mkdir()
    (folder / "bin" / "terraform").symlink_to(TERRAFORM)
    module = folder / "module"
    for path, content in {**files, ".outhaul/backend.tf": OURS}.items():
        (module / path).parent.mkdir(parents=True, exist_ok=True)
        (module / path).write_text(content)
    places = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {"PATH": os.pathsep.join(places), "HOME": str(folder), "CHECKPOINT_DISABLE": "1"}
    for step in first_steps:
        done = subprocess.run(
            step.command, cwd=module, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{step.name}: {done.stdout}{done.stderr}"
    noted = module / ".terraform" / "terraform.tfstate"
    return dict(json.loads(noted.read_text())["backend"]["config"]) if noted.exists() else None


OWN_BACKENDS = {
    "in a block": {"main.tf": 'terraform {\n  backend "local" {\n    path = "own.tfstate"\n  }\n}\n'},
    "on one line": {"main.tf": 'terraform {\n  backend "local" { path = "own.tfstate" }\n}\n'},
    "without quotes": {"main.tf": 'terraform {\n  backend local {\n    path = "own.tfstate"\n  }\n}\n'},
    "after a comment": {"main.tf": 'terraform { # ours\n  /* x */ backend "local" {\n path = "own.tfstate"\n }\n}\n'},
    "in another file": {
        "main.tf": "",
        "b.tf": 'terraform {\r\n\tbackend "local" {\r\n\t\tpath = "own.tfstate"\r\n\t}\r\n}\r\n',
    },
    "in JSON": {"main.tf.json": '{"terraform": {"backend": {"local": {"path": "own.tfstate"}}}}'},
    "in JSON, spread": {"main.tf.json": '{"terraform":\n[{"backend"\n:\n{"local":{"path":"own.tfstate"}}}]}'},
}


@pytest.mark.parametrize("files", OWN_BACKENDS.values(), ids=OWN_BACKENDS.keys())
def test_a_modules_own_backend_is_used(tmp_path: Path, files: dict[str, str], first_steps: list[Command]) -> None:
    """A backend that the module declares, in whatever way, is the one that is used, and ours is not added."""
    config = prepared(tmp_path, files, first_steps)
    assert config is not None
    assert config["path"] == "own.tfstate"
    assert not (tmp_path / "module" / BACKEND_FILE).exists()


NO_BACKENDS = {
    "no word of it": {"main.tf": 'output "a" {\n  value = 1\n}\n'},
    "nothing at all": {},
    "a line of comment": {"main.tf": 'terraform {\n  # backend "s3" {}\n  // backend "s3" {}\n}\n'},
    "a block of comment": {"main.tf": 'terraform {\n/*\n  backend "s3" {\n  }\n  cloud {\n  }\n*/\n}\n'},
    "a text": {"main.tf": 'locals {\n  text = <<-END\n    backend "s3" {\n    cloud {\n  END\n}\n'},
    "a variable": {"main.tf": 'variable "backend" {\n  default = 1\n}\nvariable "cloud" {\n  default = 1\n}\n'},
    "a variable in JSON": {"main.tf.json": '{"variable": {"backend": {"default": 1}, "cloud": {"default": 2}}}'},
    "a file of another kind": {
        "main.tf": "",
        "notes.md": 'backend "s3" {',
        "sub/x.tf": 'terraform {\n backend "s3" {}\n}',
    },
}


@pytest.mark.parametrize("files", NO_BACKENDS.values(), ids=NO_BACKENDS.keys())
def test_a_module_without_a_backend_gets_ours(
    tmp_path: Path, files: dict[str, str], first_steps: list[Command]
) -> None:
    """Where Terraform would keep the state in the pod, which dies, ours is added, whatever the files look like."""
    config = prepared(tmp_path, files, first_steps)
    assert config is not None
    assert config["path"] == "ours.tfstate"


def test_a_cloud_block_is_left_alone(tmp_path: Path, first_steps: list[Command]) -> None:
    """State that is kept by HCP Terraform is the module's own; no backend is added beside it."""
    module = tmp_path / "module"
    (module / ".outhaul").mkdir(parents=True)
    (module / ".outhaul" / "backend.tf").write_text(OURS)
    (module / "main.tf").write_text('terraform {\n  cloud {\n    organization = "x"\n  }\n}\n')
    subprocess.run(first_steps[0].command, cwd=module, check=True, timeout=60)
    assert not (module / BACKEND_FILE).exists()
