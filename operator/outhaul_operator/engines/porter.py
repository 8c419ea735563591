"""Engine `porter`: writes the Installation as Porter's own document and lets `porter installation apply` do the rest.

Checked against Porter's documented command line and formats only; see docs/engines.md.
"""

import json
from typing import Any

from outhaul_api.agentaction import Command, CommandSource, OutputSource
from outhaul_api.installation import Installation
from outhaul_api.vocabulary import Action, OutputFormat, Reason

from outhaul_operator.engines.plan import Plan
from outhaul_operator.verdicts import StalledError

_FILE = "installation.yaml"
_SCHEMA_VERSION = "1.0.2"


def plan(installation: Installation, action: Action) -> Plan:
    """Returns one `porter installation apply`; whether it installs, upgrades or uninstalls is Porter's decision.

    Raises:
        StalledError: `spec.bundle` is missing.
    """
    spec = installation.spec
    if spec.bundle is None:
        raise StalledError(Reason.INVALID_SPEC, "engine porter needs spec.bundle with a repository")
    name = spec.name or installation.metadata.name
    namespace = spec.namespace or installation.metadata.namespace
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
    result = Plan(commands=[Command(name="apply", command=["porter", "installation", "apply", _FILE])])
    # JSON is YAML.
    result.add_file(_FILE, json.dumps(document, indent=2))
    listing = ["porter", "installation", "outputs", "list", "--installation", name, "--namespace", namespace]
    result.outputs = [
        OutputSource(command=CommandSource(command=[*listing, "--output", "json"], format=OutputFormat.PORTER))
    ]
    return result
