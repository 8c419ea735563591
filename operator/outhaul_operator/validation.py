"""What an AgentAction's schema cannot say: checked once, before anything is made of it. Pure."""

import base64
import binascii
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from outhaul_api.agentaction import AgentAction, OutputSource
from outhaul_api.common import seconds
from outhaul_api.vocabulary import Action, OutputFormat, Reason
from pydantic import ValidationError

from outhaul_operator.cluster import Object
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
    if seconds(spec.timeout) <= 0:
        faults.append("spec.timeout must be more than 0")
    if spec.args and not spec.command:
        faults.append("spec.args needs spec.command")
    faults += [
        f"spec.commands: the name {name!r} is used twice"
        for name, count in Counter(one.name for one in commands_of(spec)).items()
        if count > 1
    ]
    faults += [f"{where} has a NUL character" for where in _with_nul(spec.to_json(), "spec")]
    for index, source in enumerate(spec.outputs):
        faults += source_faults(f"spec.outputs[{index}]", source)
    for path, content in spec.files.items():
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
            faults.append(f"spec.files: {path!r} must be a relative path without '..'")
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            faults.append(f"spec.files: the content of {path!r} is not base64")
    return faults


def _with_nul(value: object, where: str) -> Iterator[str]:
    """Yields where texts have a character that no argument, variable or path can have."""
    if isinstance(value, str) and "\0" in value:
        yield where
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _with_nul(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _with_nul(inner, f"{where}[{index}]")


def source_faults(where: str, source: OutputSource) -> list[str]:
    """Returns what is wrong with an output source; `where` is its place in the object."""
    given = [name for name in ("directory", "command", "manifest") if getattr(source, name) is not None]
    if len(given) != 1:
        return [
            f"{where} must have exactly one of directory, command and manifest; it has {' and '.join(given) or 'none'}"
        ]
    if source.command is not None and (source.command.format is OutputFormat.TEXT) != bool(source.command.name):
        return [f"{where}.command.name is needed with format text, and only there"]
    return []
