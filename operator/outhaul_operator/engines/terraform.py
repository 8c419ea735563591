"""Engine `terraform`: init, apply or destroy, and `output -json`.

Parameters become `outhaul.auto.tfvars.json`. A module that declares no backend gets Terraform's own `kubernetes`
backend in the pod's namespace, named after the Installation, so that a recreated object finds its state again.
What the module declares can be told only where its files are, so the run's first steps look. After a destroy that
state, empty by then, is deleted with the pod's own token.
"""

from importlib.resources import files

from outhaul_api.agentaction import Command, CommandSource, OutputSource, PodEnvVar
from outhaul_api.installation import Installation
from outhaul_api.vocabulary import Action, OutputFormat

from outhaul_operator import names
from outhaul_operator.engines.plan import Plan, compact, required_source

PARAMETERS_FILE = "outhaul.auto.tfvars.json"
BACKEND_FILE = "outhaul_backend.tf"
_BACKEND_SOURCE = ".outhaul/backend.tf"
_FORGET_STATE = ".outhaul/forget_state.py"
_INIT = ["terraform", "init", "-input=false", "-no-color"]
_ADD_BACKEND = f"cp {_BACKEND_SOURCE} {BACKEND_FILE}"
# A guess that may be wrong in one direction only: no word of it, no backend.
_GUESS = f"grep -Eqsw 'backend|cloud' ./*.tf ./*.tf.json || {_ADD_BACKEND}"
# Terraform's own word: init notes the backend that it has found, and notes none where state would die with the pod.
_MAKE_SURE = f'[ -e "${{TF_DATA_DIR:-.terraform}}/terraform.tfstate" ] || {{ {_ADD_BACKEND} && {" ".join(_INIT)}; }}'


def plan(installation: Installation, action: Action) -> Plan:
    """Returns the steps backend, init, state, and apply or destroy.

    Raises:
        StalledError: There is no source, or two.
    """
    suffix = names.label_value(installation.metadata.name)
    namespace = installation.metadata.namespace
    steps = [
        Command(name="backend", command=["sh", "-c", _GUESS]),
        Command(name="init", command=_INIT),
        Command(name="state", command=["sh", "-c", _MAKE_SURE]),
    ]
    change = ["-input=false", "-no-color", "-auto-approve"]
    if action is Action.UNINSTALL:
        steps += [
            Command(name="destroy", command=["terraform", "destroy", *change]),
            Command(name="forget-state", command=["python3", _FORGET_STATE, BACKEND_FILE, namespace, suffix]),
        ]
    elif action is not Action.RECOLLECT:
        steps.append(Command(name="apply", command=["terraform", "apply", *change]))
    result = Plan(commands=steps)
    result.add_source(required_source(installation, "terraform"))
    result.add_file(PARAMETERS_FILE, compact(installation.spec.parameters))
    result.add_file(_BACKEND_SOURCE, _backend(namespace, suffix))
    if action is Action.UNINSTALL:
        result.add_file(_FORGET_STATE, files("outhaul_operator.engines").joinpath("forget_state.py").read_text())
    else:
        listing = CommandSource(command=["terraform", "output", "-json", "-no-color"], format=OutputFormat.TERRAFORM)
        result.outputs = [OutputSource(command=listing)]
    result.input_prefix = "TF_VAR_"
    result.env = [PodEnvVar(name="TF_IN_AUTOMATION", value="1"), PodEnvVar(name="TF_INPUT", value="0")]
    return result


def state(installation: Installation) -> str:
    """Returns where Terraform's state is, for people."""
    suffix, namespace = names.label_value(installation.metadata.name), installation.metadata.namespace
    return (
        f"Terraform's state is in Secret tfstate-default-{suffix} of namespace {namespace}, "
        "unless the module has a backend of its own"
    )


def _backend(namespace: str, suffix: str) -> str:
    return (
        "terraform {\n"
        '  backend "kubernetes" {\n'
        f'    secret_suffix     = "{suffix}"\n'
        f'    namespace         = "{namespace}"\n'
        "    in_cluster_config = true\n"
        "  }\n"
        "}\n"
    )
