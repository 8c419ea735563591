"""What an AgentAction's schema cannot say: checked once, before anything is made of it. Pure."""

import base64
import binascii
from collections import Counter
from collections.abc import Iterator

from outhaul_api.agentaction import AgentAction, Command, OutputSource
from outhaul_api.common import seconds
from outhaul_api.vocabulary import Action, OutputFormat, Reason
from outhaul_grpc.layout import AGENT_VARIABLES
from outhaul_grpc.paths import has_control
from pydantic import ValidationError

from outhaul_operator import ownership, paths
from outhaul_operator.kinds import Object
from outhaul_operator.pods import commands_of
from outhaul_operator.verdicts import RunFailedError

_REMEDY = "the spec of a run is final, so create a corrected AgentAction under another name"


def explain(error: ValidationError) -> str:
    """Returns what is wrong with an object, by field; never the refused value, which may be a misplaced secret."""
    return "; ".join(
        f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors(include_input=False)[:5]
    )


def parse_action(obj: Object) -> AgentAction:
    """Returns the AgentAction of a JSON object, checked.

    Raises:
        RunFailedError: Something is wrong with its spec; the message names each fault and the remedy.
    """
    try:
        action = AgentAction.model_validate(obj)
    except ValidationError as error:
        raise RunFailedError(Reason.INVALID_SPEC, f"{explain(error)}; {_REMEDY}") from None
    faults = list(_faults(action))
    if faults:
        raise RunFailedError(Reason.INVALID_SPEC, f"{'; '.join(faults[:5])}; {_REMEDY}")
    return action


def _faults(action: AgentAction) -> list[str]:
    spec = action.spec
    faults = []
    needs_commands = spec.action is not Action.RECOLLECT or not spec.outputs
    if (spec.command and spec.commands) or (needs_commands and not commands_of(spec)):
        faults.append("spec must give either commands, or command with args")
    if spec.installation is not None and ownership.installation_of(action) is None:
        faults.append("spec.installation is for the operator's own runs; leave it out, and the owner with it")
    if seconds(spec.timeout) <= 0:
        faults.append("spec.timeout must be more than 0")
    if spec.args and not spec.command:
        faults.append("spec.args needs spec.command")
    faults += [
        f"spec.commands: the name {name!r} is used twice"
        for name, count in Counter(one.name for one in commands_of(spec)).items()
        if count > 1
    ]
    faults += nul_faults(spec.to_json(), "spec")
    for index, command in enumerate(spec.commands):
        faults += command_faults(f"spec.commands[{index}]", command)
    faults += [
        f"spec.env: {variable.name} is a variable that the agent needs; use another name"
        for variable in spec.env
        if variable.name in AGENT_VARIABLES
    ]
    for index, source in enumerate(spec.outputs):
        faults += source_faults(f"spec.outputs[{index}]", source)
    if spec.archive is not None and (fault := paths.directory_fault(spec.archive.path)):
        faults.append(f"spec.archive.path: {fault}")
    return faults + _file_faults(spec.files)


def _file_faults(files: dict[str, str]) -> list[str]:
    faults = [f"spec.files: {fault}" for path in files if (fault := paths.file_fault(path))]
    if not faults and (both := paths.clash(files)):
        faults.append(f"spec.files: {both[0]!r} and {both[1]!r} cannot both be files; rename one")
    for path, content in files.items():
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            faults.append(f"spec.files: the content of {path!r} is not base64")
    return faults


def nul_faults(value: object, where: str) -> list[str]:
    """Returns where texts have a character that no argument, variable or path can have."""
    return [f"{place} has a NUL character" for place in _with_nul(value, where)]


def _with_nul(value: object, where: str) -> Iterator[str]:
    if isinstance(value, str) and "\0" in value:
        yield where
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _with_nul(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _with_nul(inner, f"{where}[{index}]")


def command_faults(where: str, command: Command) -> list[str]:
    """Returns what is wrong with a command; `where` is its place in the object.

    Arguments and values of variables may have several lines (a script, a certificate); names may not.
    """
    faults = _program_faults(f"{where}.command[0]", command.command[0])
    directory = command.working_dir or ""
    if directory.startswith("/"):
        fault = f"{directory!r} has a control character" if _has_line(directory) else None
    else:
        fault = paths.directory_fault(directory.replace("\0", ""))
    return [*faults, f"{where}.workingDir: {fault}"] if fault else faults


def _program_faults(where: str, program: str) -> list[str]:
    if program and not _has_line(program):
        return []
    return [f"{where} must name a program: it is empty, or has a line break or another control character"]


def _has_line(text: str) -> bool:
    # A NUL is told by itself.
    return has_control(text.replace("\0", ""))


def source_faults(where: str, source: OutputSource) -> list[str]:
    """Returns what is wrong with an output source; `where` is its place in the object."""
    given = [name for name in ("directory", "command", "manifest") if getattr(source, name) is not None]
    if len(given) != 1:
        return [
            f"{where} must have exactly one of directory, command and manifest; it has {' and '.join(given) or 'none'}"
        ]
    if source.command is None:
        return []
    faults = _program_faults(f"{where}.command.command[0]", source.command.command[0])
    if (source.command.format is OutputFormat.TEXT) != bool(source.command.name):
        faults.append(f"{where}.command.name is needed with format text, and only there")
    return faults
