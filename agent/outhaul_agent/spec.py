"""What the operator has left for this run: instructions and TLS material, read from the run's mounted Secret.

The operator has checked an AgentAction before; what is checked here again is what would otherwise fail in the
middle of a run, or do harm.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from outhaul_grpc.layout import CERTIFICATE_FILE, KEY_FILE, PROTOCOL_VERSIONS, ROOTS_FILE, RUN_FILE
from outhaul_grpc.paths import BadPath, Parts, has_control, parts_of
from outhaul_grpc.protocol import MAX_NAME_BYTES, MAX_STEPS, common_versions
from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent import __version__, declarations, downloads
from outhaul_agent.reasons import Reason, RunError, quoted
from outhaul_agent.values import BadValue, OutputType

_SHA256 = re.compile("[0-9A-Fa-f]{64}")


@dataclass(frozen=True)
class Material:
    """The agent's TLS files (PEM)."""

    certificate: bytes
    key: bytes = field(repr=False)
    roots: bytes


def read_spec(run_dir: Path) -> pb.RunSpec:
    """Returns the run's instructions.

    Raises:
        RunError: they cannot be read, mean nothing to this agent, or are of another protocol version.
    """
    try:
        document = json.loads(_read(run_dir / RUN_FILE))
    except (ValueError, RecursionError):
        raise RunError(Reason.INVALID_SPEC, f"{RUN_FILE} in the run's Secret is no JSON") from None
    if not isinstance(document, dict):
        raise RunError(Reason.INVALID_SPEC, f"{RUN_FILE} in the run's Secret is no JSON object")
    # Before anything else: what follows may mean something else in another version.
    _check_versions(document)
    spec = pb.RunSpec()
    try:
        json_format.ParseDict(document, spec, ignore_unknown_fields=True)
    except json_format.ParseError:
        # The error's own text quotes what it could not read, which may be a file's content.
        message = f"{RUN_FILE} in the run's Secret does not have the form that agent {__version__} knows"
        raise RunError(Reason.INVALID_SPEC, message) from None
    check_spec(spec)
    return spec


def read_material(run_dir: Path) -> Material:
    """Returns the TLS files.

    Raises:
        RunError: one of them cannot be read.
    """
    return Material(
        certificate=_read(run_dir / CERTIFICATE_FILE),
        key=_read(run_dir / KEY_FILE),
        roots=_read(run_dir / ROOTS_FILE),
    )


def check_spec(spec: pb.RunSpec) -> None:
    """Refuses instructions that could not be carried out to the end.

    Raises:
        RunError: naming the first thing that is wrong.
    """
    if not spec.run_uid:
        raise _invalid("the run has no uid")
    if not spec.commands and not spec.outputs:
        raise _invalid("the run has neither commands nor outputs, so there is nothing to do")
    if len(spec.commands) > MAX_STEPS:
        raise _invalid(f"the run has {len(spec.commands)} commands, more than {MAX_STEPS}")
    _check_timeouts(spec)
    names = set()
    for command in spec.commands:
        if not command.name or command.name in names:
            raise _invalid(f"two commands are called {quoted(command.name)}, or one has no name")
        names.add(command.name)
        _check_command(command)
    _check_files(spec)
    for source in spec.outputs:
        _check_source(source)
    _check_declarations(spec)


def _check_files(spec: pb.RunSpec) -> None:
    if spec.HasField("archive"):
        if not downloads.is_url(spec.archive.url):
            raise _invalid("the archive's URL is not one of http or https, or has credentials")
        if not _SHA256.fullmatch(spec.archive.sha256):
            raise _invalid("the archive's SHA-256 is not 64 hex digits")
        _parts(spec.archive.path, "the archive's directory")
    seen: set[Parts] = set()
    for path in sorted(spec.files):
        parts = _parts(path, "the file")
        if not parts:
            raise _invalid(f"the file {quoted(path)} has no name")
        if parts in seen:
            raise _invalid(f"the file {quoted(path)} is there twice")
        seen.add(parts)


def _parts(path: str, what: str) -> Parts:
    try:
        return parts_of(path)
    except BadPath as error:
        raise _invalid(f"{what} {error}") from None


def _check_timeouts(spec: pb.RunSpec) -> None:
    graces = (spec.kill_grace_seconds, spec.stop_grace_seconds)
    for seconds in (spec.timeout_seconds, spec.linger_seconds, *graces):
        if not math.isfinite(seconds) or seconds < 0:
            raise _invalid("a timeout of the run is negative or no number")
    if spec.timeout_seconds == 0:
        raise _invalid("the run has no timeout")


def _check_command(command: pb.Command) -> None:
    where = f"command {quoted(command.name)}"
    _check_argv(list(command.argv), where)
    if not math.isfinite(command.timeout_seconds) or command.timeout_seconds < 0:
        raise _invalid(f"the timeout of {where} is negative or no number")
    for name, value in command.env.items():
        if not name or "=" in name or has_control(name) or "\0" in value:
            raise _invalid(f"variable {quoted(name)} of {where} cannot be set")
    _check_directory(command.working_dir, where)


def _check_source(source: pb.OutputSource) -> None:
    match source.WhichOneof("source"):
        case "directory" | "manifest" as kind:
            path = source.directory.path if kind == "directory" else source.manifest.path
            if not path or "\0" in path:
                raise _invalid(f"an output source of kind {kind} has no usable path")
        case "command":
            _check_argv(list(source.command.argv), "an output command")
            _check_directory(source.command.working_dir, "an output command")
            if source.command.format == pb.OUTPUT_FORMAT_UNSPECIFIED:
                raise _invalid("an output command has no format that this agent knows")
            if source.command.format == pb.OUTPUT_FORMAT_TEXT and not source.command.name:
                raise _invalid("an output command of format text does not name its output")
        case _:
            raise _invalid("an output source is of a kind that this agent does not know")


def _check_declarations(spec: pb.RunSpec) -> None:
    names = set()
    for declaration in spec.declare:
        where = f"output {quoted(declaration.name)}"
        if declaration.name in names:
            raise _invalid(f"{where} is declared twice")
        names.add(declaration.name)
        if len(declaration.name.encode()) > MAX_NAME_BYTES:
            raise _invalid(f"the name of the declared {where} has more than {MAX_NAME_BYTES} bytes")
        if declaration.type and declaration.type not in set(OutputType):
            message = f"{where} is declared as {quoted(declaration.type)}, which this agent does not know; types are "
            raise _invalid(message + ", ".join(OutputType))
        try:
            declarations.default_of(declaration)
        except BadValue as error:
            raise _invalid(f"the default of {where} cannot be used: {error}") from None


def _check_argv(argv: list[str], where: str) -> None:
    if not argv or not argv[0]:
        raise _invalid(f"{where} names no program")
    if has_control(argv[0]):
        raise _invalid(f"the program of {where} has a control character in its name")
    if any("\0" in argument for argument in argv):
        raise _invalid(f"an argument of {where} contains a NUL")


def _check_directory(path: str, where: str) -> None:
    if path.startswith("/"):
        if has_control(path):
            raise _invalid(f"the working directory of {where} has a control character")
    else:
        _parts(path, f"the working directory of {where},")


def _check_versions(document: dict[str, Any]) -> None:
    theirs = document.get("protocolVersions", [])
    if not isinstance(theirs, list) or not all(isinstance(one, int) for one in theirs):
        theirs = []
    if common_versions(theirs):
        return
    operator = document.get("operatorVersion")
    named = quoted(operator, 64) if isinstance(operator, str) else "unknown"
    raise RunError(
        Reason.PROTOCOL_MISMATCH,
        f"the operator (version {named}) speaks protocol {', '.join(map(str, theirs[:64])) or 'none'}, "
        f"this agent (version {__version__}) speaks {', '.join(map(str, PROTOCOL_VERSIONS))}: "
        "use an agent image of the operator's version",
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path.name} of the run's Secret cannot be read: {error.strerror}"
        raise RunError(Reason.INVALID_SPEC, message) from None


def _invalid(message: str) -> RunError:
    return RunError(Reason.INVALID_SPEC, message)
