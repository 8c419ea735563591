"""Engines turn an Installation into the commands, files and output sources of a run. Pure, one file an engine."""

from collections.abc import Callable

from outhaul_api.common import seconds
from outhaul_api.installation import Installation
from outhaul_api.vocabulary import RETRY_ANNOTATION, Action, Reason

from outhaul_operator import paths
from outhaul_operator.engines import exec as exec_engine
from outhaul_operator.engines import porter, terraform
from outhaul_operator.engines.plan import Plan
from outhaul_operator.validation import command_faults, nul_faults, source_faults
from outhaul_operator.verdicts import StalledError

_ENGINES: dict[str, Callable[[Installation, Action], Plan | None]] = {
    "exec": exec_engine.plan,
    "porter": porter.plan,
    "terraform": terraform.plan,
}


NAMES = frozenset(_ENGINES)


def engine_name(installation: Installation, configured: str | None) -> str:
    """Returns the engine's name: the Installation's, the AgentConfig's, `porter` for a bundle, else `exec`."""
    spec = installation.spec
    return spec.engine or configured or ("porter" if spec.bundle is not None else "exec")


def plan(installation: Installation, action: Action, configured: str | None) -> Plan | None:
    """Returns what a run has to do; None where this engine has nothing to do for the action.

    Args:
        installation: What a person wrote.
        action: What is due.
        configured: The engine that the AgentConfig names.

    Raises:
        StalledError: The engine is unknown, or the spec is not what the engine needs.
    """
    name = engine_name(installation, configured)
    engine = _ENGINES.get(name)
    if engine is None:
        known = ", ".join(sorted(_ENGINES))
        raise StalledError(
            Reason.UNKNOWN_ENGINE,
            f"spec.engine {name!r} is not known; use one of {known}, or correct the AgentConfig",
        )
    if action is not Action.UNINSTALL:
        _check(installation, name)
    result = engine(installation, action)
    if result is None:
        return None
    result.engine = name
    _check_files(installation, result)
    if action is Action.UNINSTALL:
        result.outputs = []
    elif installation.spec.outputs.from_ is not None:
        result.outputs = installation.spec.outputs.from_
    if action is Action.RECOLLECT and any(source.command is None for source in result.outputs):
        raise StalledError(
            Reason.CANNOT_RECOLLECT,
            f"outputs that engine {name} reads from files are gone with the pod of the run that wrote them; "
            f"set the annotation {RETRY_ANNOTATION} to a new value for another run",
        )
    return result


def state(installation: Installation, configured: str | None) -> str | None:
    """Returns where an engine keeps what it knows of an installation, for people; None where it keeps nothing."""
    name = engine_name(installation, configured)
    return _STATES[name](installation) if name in _STATES else None


_STATES: dict[str, Callable[[Installation], str]] = {"porter": porter.state, "terraform": terraform.state}


_FIELDS = {"commands": {"exec"}, "bundle": {"porter"}, "source": {"exec", "terraform"}}
"""Fields that only some engines read; elsewhere they would be ignored."""


def _check(installation: Installation, engine: str) -> None:
    """Refuses what no engine, or not this one, could do anything with.

    Raises:
        StalledError: The message names the field.
    """
    spec = installation.spec
    for field, engines in _FIELDS.items():
        if getattr(spec, field) is not None and engine not in engines:
            where = "spec.engine" if spec.engine else "the AgentConfig, or the default"
            raise StalledError(
                Reason.INVALID_SPEC,
                f"spec.{field} is for engine {' or '.join(sorted(engines))}, and the engine is {engine} (by {where}); "
                f"set spec.engine, or remove spec.{field}",
            )
    if spec.timeout is not None and seconds(spec.timeout) <= 0:
        raise StalledError(Reason.INVALID_SPEC, "spec.timeout must be more than 0")
    faults = _faults(installation)
    if faults:
        raise StalledError(Reason.INVALID_SPEC, "; ".join(faults[:5]))


def _faults(installation: Installation) -> list[str]:
    spec = installation.spec
    # A file may have any character, and what can take a parameter depends on the engine.
    faults = nul_faults(spec.model_dump(mode="json", by_alias=True, exclude={"source", "parameters"}), "spec")
    for name, commands in spec.commands or ():
        for index, command in enumerate(commands or []):
            faults += command_faults(f"spec.commands.{name}[{index}]", command)
    for index, source in enumerate(spec.outputs.from_ or []):
        faults += source_faults(f"spec.outputs.from[{index}]", source)
    return faults


def _check_files(installation: Installation, plan: Plan) -> None:
    """Refuses files of which one would take another's place.

    Raises:
        StalledError: The message names both.
    """
    both = paths.clash([*plan.files, *(one.file for one in installation.spec.inputs if one.file is not None)])
    if both is not None:
        raise StalledError(
            Reason.INVALID_SPEC,
            f"{both[0]!r} and {both[1]!r} cannot both be files of the working directory "
            "(spec.source.files, the `file` of spec.inputs, files of the engine); rename one",
        )
