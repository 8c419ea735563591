"""One run from its start to the agent's end: prepare, run, collect, hold, leave. `__main__` calls `run` once.

Nothing here waits for the operator before the work is done, so a run needs no operator to come to its end.
"""

import asyncio
import logging
import signal

from outhaul_grpc.layout import KEPT_FILE
from outhaul_grpc.protocol import KILL_GRACE, MAX_SOURCE_BYTES, STOP_GRACE
from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_agent import archives, declarations, keeping, sources, workspace
from outhaul_agent.commands import Surroundings, run_commands
from outhaul_agent.outputs import Collection
from outhaul_agent.processes import Processes
from outhaul_agent.reasons import Problem, Reason, RunError
from outhaul_agent.server import AgentService, Server
from outhaul_agent.settings import Settings
from outhaul_agent.spec import read_material, read_spec
from outhaul_agent.state import Progress, write_termination_message

EXIT_CODES = {pb.PHASE_SUCCEEDED: 0, pb.PHASE_FAILED: 1, pb.PHASE_CANCELLED: 128 + signal.SIGTERM}
"""How the agent ends; whether the outputs were stored is in the termination message."""

_log = logging.getLogger(__name__)


async def run(settings: Settings) -> int:
    """Does everything; returns the agent's exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # `__main__` has held them back until somebody listens.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    steps: list[str] = []
    try:
        spec = read_spec(settings.run_dir)
        steps = [command.name for command in spec.commands]
        progress = _progress(settings, steps)
        service = AgentService(spec.run_uid, progress)
        server = Server(service)
        await server.start(settings.ip, settings.port, read_material(settings.run_dir))
    except RunError as error:
        _log.error("%s: %s", error.problem.reason, error.problem.message)
        _progress(settings, steps).finish(pb.PHASE_FAILED, error.problem)
        return EXIT_CODES[pb.PHASE_FAILED]
    try:
        await _work(spec, settings, progress, service, stop)
        await _hold(spec.linger_seconds, spec.stop_grace_seconds or STOP_GRACE, service, stop)
    finally:
        await server.stop()
    return EXIT_CODES[progress.phase]


async def _work(
    spec: pb.RunSpec, settings: Settings, progress: Progress, service: AgentService, stop: asyncio.Event
) -> None:
    """Runs the commands and collects the outputs; in the end the state is final."""
    processes = Processes()
    processes.open()
    work_dir = settings.work_dir / spec.archive.path
    around = Surroundings(
        processes=processes,
        work_dir=work_dir,
        environment=settings.command_environment(work_dir),
        stop=stop,
        grace=spec.kill_grace_seconds or KILL_GRACE,
        stop_grace=spec.stop_grace_seconds or STOP_GRACE,
    )
    found = Collection()
    try:
        archive = await archives.fetch(around) if spec.HasField("archive") else b""
        service.hold_source(await asyncio.to_thread(_prepare, spec, settings, around.environment, archive))
        progress.enter(pb.PHASE_RUNNING)
        problem = await run_commands(spec, progress, around)
        if not stop.is_set():
            progress.enter(pb.PHASE_COLLECTING)
            found = await sources.collect(spec, around, failed=problem is not None)
            origins = [sources.origin_of(source) for source in spec.outputs]
            await asyncio.to_thread(declarations.apply, spec, found, origins, complete=problem is None)
            # What a failed command has left behind is welcome as far as it can be read.
            problem = problem or found.problem
    except RunError as error:
        problem = error.problem
    except OSError as error:
        problem = Problem(Reason.RUN_FAILED, f"the pod's volumes cannot be used: {error.strerror}")
    if stop.is_set():
        found = Collection()
        if problem is None or problem.reason is not Reason.CANCELLED:
            problem = around.cancelled()
    await processes.kill_rest()
    outputs = found.sorted()
    service.hold(outputs)
    progress.finish(_phase(problem), problem, [len(output.data) for output in outputs])
    _log.info("the run has ended: %s, %d outputs", pb.Phase.Name(progress.phase)[6:].lower(), len(outputs))
    if problem is not None:
        _log.error("%s: %s", problem.reason, problem.message)


def _prepare(spec: pb.RunSpec, settings: Settings, environment: dict[str, str], archive: bytes) -> bytes | None:
    """Makes everything ready for the first command, the environment too.

    Returns:
        The copy of what the run is made from, empty where there is nothing to keep; None where it is too large.
    """
    kept = (keeping.unpack(settings.kept_dir / KEPT_FILE) if spec.HasField("kept") else None) or keeping.Source()
    origins = workspace.prepare(
        settings.work_dir,
        spec.archive.path,
        files=spec.files,
        copy_from=spec.copy_from,
        kept=kept.directories,
        required=spec.kept.required,
    )
    settings.outputs_dir.mkdir(parents=True, exist_ok=True)
    for name in sorted(set(spec.kept.variables) & kept.variables.keys() - environment.keys()):
        _log.info("variable %s has no value: that of an earlier run stands in", name)
        environment[name] = kept.variables[name]
    if not spec.HasField("keep"):
        return b""
    if spec.HasField("archive") and not archive:
        return None
    variables = {name: environment[name] for name in spec.keep.variables if name in environment}
    try:
        work_dir = settings.work_dir / spec.archive.path
        return keeping.pack(work_dir, origins, variables, archive, min(spec.keep.max_bytes, MAX_SOURCE_BYTES))
    except keeping.TooLarge:
        return None


async def _hold(linger: float, grace: float, service: AgentService, stop: asyncio.Event) -> None:
    """Waits until the outputs are stored, or nobody can be expected to come for them.

    A pod that is to go keeps its outputs as long as it may: where a node is drained, the operator may have been on it.
    """
    stored, stopped = waits = [asyncio.ensure_future(event.wait()) for event in (service.acknowledged, stop)]
    await asyncio.wait(waits, timeout=linger, return_when=asyncio.FIRST_COMPLETED)
    if stopped.done() and service.holds_outputs:
        await asyncio.wait([stored], timeout=grace)
    for wait in waits:
        wait.cancel()
    _log.info("the outputs are %s", "stored" if service.acknowledged.is_set() else "given up: nobody took them")


def _phase(problem: Problem | None) -> pb.Phase.ValueType:
    if problem is None:
        return pb.PHASE_SUCCEEDED
    return pb.PHASE_CANCELLED if problem.reason is Reason.CANCELLED else pb.PHASE_FAILED


def _progress(settings: Settings, steps: list[str]) -> Progress:
    return Progress(steps, lambda state: write_termination_message(settings.termination_log, state))
