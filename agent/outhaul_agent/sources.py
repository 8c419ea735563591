"""Where outputs come from: directories, output commands, manifests. `runs` calls `collect` once.

Files and data are the commands' work and may be anything: devices, links to elsewhere, endless streams.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

from outhaul_grpc.protocol import COLLECT_TIMEOUT
from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent import formats, workspace
from outhaul_agent.commands import StartError, Surroundings, start
from outhaul_agent.outputs import Collection
from outhaul_agent.processes import Process
from outhaul_agent.reasons import RunError, quoted
from outhaul_agent.values import BadValue

_READ_BYTES = 64 * 1024
_DRAIN = 1.0
"""Seconds for what an output command has printed and nobody has read when it ends."""

_log = logging.getLogger(__name__)


class TooLarge(Exception):  # noqa: N818 - a file is, or what a command prints
    """There is no room for something; the text says how many bytes it has."""


async def collect(spec: pb.RunSpec, around: Surroundings, *, failed: bool) -> Collection:
    """Returns the outputs of all sources, and the problems with them.

    Args:
        spec: the run.
        around: what output commands are started with.
        failed: whether the run has failed before. Then output commands may well fail, and their errors would only
            hide the real one in the pod's log.

    Raises:
        RunError: the run is cancelled, and an output command had to be killed.
    """
    if failed:
        around = dataclasses.replace(around, stderr=subprocess.DEVNULL)
    found = Collection()
    deadline = time.monotonic() + COLLECT_TIMEOUT
    for source in spec.outputs:
        if around.stop.is_set():
            break
        origin = origin_of(source)
        match source.WhichOneof("source"):
            case "directory":
                await asyncio.to_thread(_read_directory, source.directory, around.work_dir, origin, found)
            case "manifest":
                await asyncio.to_thread(_read_manifest, source.manifest, around.work_dir, origin, found)
            case _:
                await _read_command(source.command, around, origin, found, deadline)
    return found


def origin_of(source: pb.OutputSource) -> str:
    """Returns what a source is called in messages."""
    match source.WhichOneof("source"):
        case "directory":
            return f"directory {quoted(source.directory.path)}"
        case "manifest":
            return f"manifest {quoted(source.manifest.path)}"
        case _:
            return f"output command {quoted(source.command.argv[0])}"


def _read_directory(source: pb.DirectorySource, work_dir: Path, origin: str, found: Collection) -> None:
    root = workspace.resolve(work_dir, source.path)
    names: set[str] = set()
    if root.is_dir():
        for path in sorted(_walk(root, origin, found)):
            name = path.relative_to(root).as_posix()
            names.add(name)
            _read_entry(path, name, root, origin, found)
    elif root.exists() or root.is_symlink():
        found.add_bad(f"{origin} is no directory")
    for name in sorted(set(source.required) - names):
        found.add_bad(f"required output {quoted(name)} is missing: no file of that name is in {origin}")


def _walk(root: Path, origin: str, found: Collection) -> list[Path]:
    def fail(error: OSError) -> None:
        found.add_bad(f"{origin} cannot be read: {quoted(os.fsdecode(error.filename))}: {error.strerror}")

    paths = []
    for directory, directories, files in os.walk(root, onerror=fail):
        here = Path(directory)
        # `walk` does not enter links to directories; whoever made one expects to find what is behind it.
        paths += [here / name for name in directories if (here / name).is_symlink()]
        paths += [here / name for name in files]
    return paths


def _read_entry(path: Path, name: str, root: Path, origin: str, found: Collection) -> None:
    try:
        data = _read_file(path, found.room, within=root)
    except BadValue as error:
        if found.claim(name, origin):
            found.add_bad(f"output {quoted(name)} of {origin}: {error}")
    except TooLarge as error:
        if found.claim(name, origin):
            found.add_too_large(name, str(error))
    else:
        found.add(formats.plain(name, data), origin)


def _read_manifest(source: pb.ManifestSource, work_dir: Path, origin: str, found: Collection) -> None:
    path = workspace.resolve(work_dir, source.path)

    def read(named: Path) -> bytes:
        try:
            return _read_file(path.parent / named, found.room)
        except TooLarge as error:
            raise BadValue(f"its file has {error}, and there is room for {found.room}") from None

    try:
        formats.read_manifest(_read_file(path, found.room), origin, found, read)
    except BadValue as error:
        found.add_bad(f"{origin} cannot be read: {error}")
    except TooLarge as error:
        found.add_bad(f"{origin} has {error}, more than all outputs may have")


def _read_file(path: Path, limit: int, *, within: Path | None = None) -> bytes:
    """Returns a regular file's bytes.

    Args:
        path: the file.
        limit: how many bytes may be read.
        within: a directory that the file must be in once links are followed.
    """
    try:
        real = path.resolve(strict=True)
        if within is not None and not real.is_relative_to(within.resolve()):
            raise BadValue("it is a link that leads out of the directory")
        status = real.stat()
        # Before it is opened: a pipe would wait for a writer, a device may do anything.
        if not stat.S_ISREG(status.st_mode):
            raise BadValue("it is no regular file")
        if status.st_size > limit:
            raise TooLarge(f"{status.st_size} bytes")
        with real.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise BadValue("it is a link to nowhere" if path.is_symlink() else "the file is missing") from None
    except RuntimeError:  # a loop of links, before Python 3.13
        raise BadValue("it is a link to itself") from None
    except OSError as error:
        raise BadValue(f"it cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise TooLarge(f"more than {limit} bytes")
    return data


async def _read_command(
    source: pb.CommandSource, around: Surroundings, origin: str, found: Collection, deadline: float
) -> None:
    _log.info("output command %s started", quoted(source.argv[0]))
    started = time.monotonic()
    try:
        data = await _capture(source, around, found.room, deadline - started)
        await asyncio.to_thread(_read_format, source, data, origin, found)
    except (BadValue, StartError) as error:
        found.add_bad(f"{origin}: {error}")
    except TooLarge as error:
        if source.format == pb.OUTPUT_FORMAT_TEXT:
            found.add_too_large(source.name, str(error))
        else:
            found.add_bad(f"{origin} printed {error}, and a run may hold no more")
    _log.info("output command %s ended after %.1f s", quoted(source.argv[0]), time.monotonic() - started)


def _read_format(source: pb.CommandSource, data: bytes, origin: str, found: Collection) -> None:
    try:
        match source.format:
            case pb.OUTPUT_FORMAT_TERRAFORM:
                formats.read_terraform(data, origin, found)
            case pb.OUTPUT_FORMAT_PORTER:
                formats.read_porter(data, origin, found)
            case pb.OUTPUT_FORMAT_JSON:
                formats.read_json(data, origin, found)
            case _:
                formats.read_text(data, source.name, origin, found)
    except BadValue as error:
        expected = formats.NAMES[source.format]
        raise BadValue(f"what it printed cannot be read as format {expected}: {error}") from None


async def _capture(source: pb.CommandSource, around: Surroundings, limit: int, seconds: float) -> bytes:
    reading, writing = os.pipe()
    try:
        process = start(list(source.argv), source.working_dir, {}, around, stdout=writing)
    except StartError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    printed = asyncio.ensure_future(_read_pipe(reading, limit, process))
    ending = await around.finish(process, max(seconds, 0.0))
    # Its end is the pipe's end, unless a daemon that it started holds the pipe.
    await asyncio.wait({printed}, timeout=_DRAIN)
    if not printed.done():
        printed.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await printed
    if around.stop.is_set() and ending.killed:
        problem = around.cancelled(f"output command {quoted(source.argv[0])}", ending)
        raise RunError(problem.reason, problem.message)
    if printed.cancelled():
        raise BadValue("it left a process behind that holds its standard output")
    if printed.exception() is None:
        if ending.timed_out:
            raise BadValue(f"it was stopped, since outputs may take {COLLECT_TIMEOUT:g} s to read in all")
        if ending.exit_code != 0:
            raise BadValue(f"it failed with exit code {ending.exit_code}: the pod's log says more")
    return printed.result()


async def _read_pipe(descriptor: int, limit: int, process: Process) -> bytes:
    """Reads a pipe to its end; a process that prints more than `limit` bytes is killed."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_READ_BYTES)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    data = bytearray()
    try:
        while chunk := await reader.read(_READ_BYTES):
            data += chunk
            if len(data) > limit:
                process.signal_group(signal.SIGKILL)
                raise TooLarge(f"more than {limit} bytes")
    finally:
        transport.close()
    return bytes(data)
