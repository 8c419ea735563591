"""What is expected of outputs: their types, whether they are secrets, which must be there, what stands in for them.

`sources` has read every output before, `spec` has checked the declarations; `runs` calls `apply` once. An output
that is not what was declared is dropped and becomes a problem, the others are kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent import formats, values
from outhaul_agent.outputs import Collection, Output
from outhaul_agent.reasons import quoted
from outhaul_agent.values import BadValue, OutputType

_NOTHING = pb.OutputDeclaration()
_MAX_ORIGINS = 4
"""Sources that the message about a missing output names; the others are counted."""


def apply(spec: pb.RunSpec, found: Collection, origins: Sequence[str], *, complete: bool) -> None:
    """Checks the outputs that were found, and looks for those that were not.

    Args:
        spec: the run, with its declarations.
        found: the outputs of all sources.
        origins: what the sources are called in messages.
        complete: whether the run's commands have succeeded. Of a run that failed anyway nothing is missed, and
            nothing is added that it has not left behind.
    """
    declared = {declaration.name: declaration for declaration in spec.declare}
    for output in found.sorted():
        declaration = declared.get(output.name, _NOTHING)
        try:
            kind, data = _typed(output, declaration.type)
        except BadValue as error:
            found.refuse(output.name, f"is declared as {declaration.type}, but {error}")
        else:
            sensitive = _is_sensitive(output, declaration, spec.non_sensitive)
            found.replace(replace(output, type=kind, data=data, sensitive=sensitive))
    if complete:
        for declaration in spec.declare:
            if not found.claimed(declaration.name):
                _fill_in(declaration, found, origins)


def default_of(declaration: pb.OutputDeclaration) -> Output | None:
    """Returns what stands in for a missing output; None where nothing was given.

    Raises:
        BadValue: it is no JSON, or not of the declared type.
    """
    if not declaration.HasField("default_json"):
        return None
    value = values.parse(declaration.default_json.encode())
    kind, data = formats.encode_as(value, declaration.type or None)
    # It is written in the AgentAction for all to see: no secret, unless somebody wants it treated as one.
    return Output(declaration.name, kind, sensitive=declaration.sensitive, data=data)


def _typed(output: Output, declared: str) -> tuple[OutputType, bytes]:
    if declared in {"", output.type}:
        return output.type, output.data
    if output.typed:
        raise BadValue(f"it is of type {output.type}")
    match declared:
        case OutputType.BYTES:
            return OutputType.BYTES, output.data
        case OutputType.STRING:
            return OutputType.STRING, _text(output)
        case _:
            kind, data = _read(output)
    if kind != declared:
        raise BadValue(f"it is of type {kind}")
    return kind, data


def _text(output: Output) -> bytes:
    try:
        output.data.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"it is of type bytes: it is not UTF-8 text (byte {error.start})") from None
    return output.data


def _read(output: Output) -> tuple[OutputType, bytes]:
    try:
        return values.encode(values.parse(output.data))
    except BadValue as error:
        raise BadValue(f"it is of type {output.type}: {error}") from None


def _is_sensitive(output: Output, declaration: pb.OutputDeclaration, patterns: Iterable[str]) -> bool:
    if declaration.sensitive:
        return True
    if output.flagged:
        return output.sensitive
    if declaration.HasField("sensitive"):
        return False
    return not any(fnmatchcase(output.name, pattern) for pattern in patterns)


def _fill_in(declaration: pb.OutputDeclaration, found: Collection, origins: Sequence[str]) -> None:
    default = default_of(declaration)
    if default is not None:
        found.add(default, "its default")
    elif declaration.required:
        named = ", ".join(origins[:_MAX_ORIGINS]) or "no source, since the run has none"
        more = f" (and {len(origins) - _MAX_ORIGINS} more)" if len(origins) > _MAX_ORIGINS else ""
        found.add_bad(f"required output {quoted(declaration.name)} is missing; it was looked for in {named}{more}")
