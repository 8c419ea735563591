"""Engine `porter`: writes the Installation as Porter's own document and lets `porter installation apply` do the rest.

Checked against Porter's documented command line and formats only; see docs/engines.md.
"""

import json
from typing import Any

from outhaul_api.agentaction import Command, CommandSource, OutputSource
from outhaul_api.installation import Input, Installation
from outhaul_api.vocabulary import Action, OutputFormat, Reason

from outhaul_operator.engines.plan import Plan
from outhaul_operator.verdicts import StalledError

_FILE = "installation.yaml"
_INPUTS_FILE = "inputs.json"
_SCHEMA_VERSION = "1.0.2"
_PARAMETERS_VERSION = "1.0.1"


def plan(installation: Installation, action: Action) -> Plan:
    """Returns one `porter installation apply`; whether it installs, upgrades or uninstalls is Porter's decision.

    That a run is due has been decided already, so Porter is told to run the bundle even where it sees no change: it
    does not look whether its last run has failed. Where it is to uninstall, that would install what is not there.

    Raises:
        StalledError: `spec.bundle` is missing, or does not say which one.
    """
    spec = installation.spec
    if spec.bundle is None:
        raise StalledError(Reason.INVALID_SPEC, "engine porter needs spec.bundle with a repository")
    if not (spec.bundle.version or spec.bundle.digest or spec.bundle.tag):
        raise StalledError(Reason.INVALID_SPEC, "spec.bundle needs one of version, digest and tag; Porter guesses none")
    name, namespace = _identity(installation)
    document: dict[str, Any] = {
        "schemaType": "Installation",
        "schemaVersion": spec.schema_version or _SCHEMA_VERSION,
        "name": name,
        "namespace": namespace,
        "uninstalled": action is Action.UNINSTALL,
        "bundle": spec.bundle.to_json(),
    }
    if spec.labels:
        document["labels"] = spec.labels
    if spec.parameters:
        document["parameters"] = spec.parameters
    force = [] if action is Action.UNINSTALL else ["--force"]
    apply = Command(name="apply", command=["porter", "installation", "apply", _FILE, *force])
    result = Plan(commands=[] if action is Action.RECOLLECT else [apply])
    if action is Action.UNINSTALL:
        # Porter never again runs anything for what it remembers as uninstalled, and says that all is well.
        forget = ["porter", "installation", "delete", name, "--namespace", namespace]
        result.commands.append(Command(name="forget", command=forget))
    if spec.inputs and result.commands:
        parameters = f"{name}-inputs"
        document["parameterSets"] = [parameters]
        result.commands.insert(0, Command(name="inputs", command=["porter", "parameters", "apply", _INPUTS_FILE]))
        result.add_file(_INPUTS_FILE, json.dumps(_parameter_set(parameters, namespace, spec.inputs, result), indent=2))
    # JSON is YAML.
    result.add_file(_FILE, json.dumps(document, indent=2))
    listing = ["porter", "installation", "outputs", "list", "--installation", name, "--namespace", namespace]
    result.outputs = [
        OutputSource(command=CommandSource(command=[*listing, "--output", "json"], format=OutputFormat.PORTER))
    ]
    return result


def _identity(installation: Installation) -> tuple[str, str]:
    spec, metadata = installation.spec, installation.metadata
    return spec.name or metadata.name, spec.namespace or metadata.namespace


def state(installation: Installation) -> str:
    """Returns where Porter knows of the installation, for people."""
    name, namespace = _identity(installation)
    return f"Porter knows it as {name} in its namespace {namespace}"


def _parameter_set(name: str, namespace: str, inputs: list[Input], plan: Plan) -> dict[str, Any]:
    """Returns Porter's own document that says where parameters come from: the inputs' variables and files."""
    return {
        "schemaType": "ParameterSet",
        "schemaVersion": _PARAMETERS_VERSION,
        "name": name,
        "namespace": namespace,
        "parameters": [
            {"name": one.name, "source": {"path": one.file} if one.file else {"env": plan.input_prefix + one.name}}
            for one in inputs
        ],
    }
