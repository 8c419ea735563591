"""One hollow agent: the agent's own reading, state and server; of its commands only `sleep` takes its time."""

import asyncio
import time
from pathlib import Path

from outhaul_agent.outputs import Output
from outhaul_agent.server import AgentService, Server
from outhaul_agent.spec import read_material, read_spec
from outhaul_agent.state import Progress, termination_message
from outhaul_agent.values import OutputType
from outhaul_grpc import layout
from outhaul_grpc.v1 import agent_pb2 as pb

OUTPUTS = [
    Output(name, OutputType.STRING, sensitive=True, data=b"x" * 200)
    for name in ("certificate", "host", "password", "port", "user")
]
"""What every hollow agent brings, sorted by name."""


class HollowAgent:
    """The agent of one pod.

    Args:
        run_dir: where the run's Secret is.
        ip: the pod's address.
    """

    def __init__(self, run_dir: Path, ip: str) -> None:
        spec = read_spec(run_dir)
        self._material = read_material(run_dir)
        self._ip = ip
        self._steps = [_seconds(one) for one in spec.commands]
        self._linger = spec.linger_seconds
        self._progress = Progress([one.name for one in spec.commands], lambda _: None)
        self._service = AgentService(spec.run_uid, self._progress)
        self._server = Server(self._service)
        self.done_at = 0.0
        """When the last command had ended, by the clock on the wall."""

    async def start(self) -> None:
        """Opens the port; the run has not begun."""
        await self._server.start(self._ip, layout.PORT, self._material)

    async def run(self) -> str:
        """Seems to work, and serves until the outputs are stored; returns the termination message."""
        self._progress.enter(pb.PHASE_RUNNING)
        for index, seconds in enumerate(self._steps):
            self._progress.start_step(index)
            await asyncio.sleep(seconds)
            self._progress.end_step(index, exit_code=0, failed=False)
        self.done_at = time.time()
        self._progress.enter(pb.PHASE_COLLECTING)
        self._service.hold(OUTPUTS)
        self._progress.finish(pb.PHASE_SUCCEEDED, None, [len(one.data) for one in OUTPUTS])
        await asyncio.wait_for(self._service.acknowledged.wait(), self._linger)
        return termination_message(self._progress.snapshot())

    async def stop(self) -> None:
        """Closes the port."""
        await self._server.stop()


def _seconds(command: pb.Command) -> float:
    return float(command.argv[1]) if command.argv[0] == "sleep" else 0.0
