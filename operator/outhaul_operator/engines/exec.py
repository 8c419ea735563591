"""Engine `exec`: the Installation's own commands. Outputs are the files of `$OUTHAUL_OUTPUTS`."""

from outhaul_api.agentaction import DirectorySource, OutputSource
from outhaul_api.installation import Installation
from outhaul_api.vocabulary import Action, Reason
from outhaul_grpc.layout import OUTPUTS_DIR

from outhaul_operator.engines.plan import Plan
from outhaul_operator.verdicts import StalledError


def plan(installation: Installation, action: Action) -> Plan | None:
    """Returns the commands of the action; None where there is nothing to uninstall.

    Raises:
        StalledError: `spec.commands.install` is missing, or the source is bad.
    """
    commands = installation.spec.commands
    if commands is None or not commands.install:
        raise StalledError(
            Reason.INVALID_SPEC,
            "engine exec needs spec.commands.install; give at least one command, or another engine",
        )
    chosen = commands.install
    if action is Action.UPGRADE and commands.upgrade is not None:
        chosen = commands.upgrade
    if action is Action.UNINSTALL:
        chosen = commands.uninstall
        if not chosen:
            return None
    if action is Action.RECOLLECT:
        chosen = []
    result = Plan(commands=chosen)
    if installation.spec.source is not None:
        result.add_source(installation.spec.source)
    result.add_parameters(installation.spec.parameters)
    result.outputs = [OutputSource(directory=DirectorySource(path=OUTPUTS_DIR))]
    return result
