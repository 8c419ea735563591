"""A run's agent as a real process with a directory of its own, and what a test needs to talk to it."""

import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.kubelet.addresses import Addresses
from google.protobuf import json_format
from outhaul_grpc import layout
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents, trust
from outhaul_operator.agentstates import RunState

DEADLINE = 30.0
"""Seconds in which anything has to happen that a test waits for."""

AGENT_PYTHON = os.environ.get("OUTHAUL_AGENT_PYTHON", sys.executable)
"""Runs the agent: another environment shows whether it works with the oldest libraries that it allows."""

_addresses = Addresses()


def fresh_address() -> str:
    """Returns a loopback address that nobody else on this machine has."""
    return _addresses.take()


def now() -> dt.datetime:
    """Returns the time."""
    return dt.datetime.now(dt.UTC)


def shell(script: str, name: str = "main", **fields: Any) -> pb.Command:
    """Returns a command that runs a shell script."""
    return pb.Command(name=name, argv=["/bin/sh", "-c", script], **fields)


def directory(path: str, *required: str) -> pb.OutputSource:
    """Returns a directory source."""
    return pb.OutputSource(directory=pb.DirectorySource(path=path, required=required))


def output_command(script: str, output_format: pb.OutputFormat.ValueType, name: str = "") -> pb.OutputSource:
    """Returns an output command that runs a shell script."""
    return pb.OutputSource(command=pb.CommandSource(argv=["/bin/sh", "-c", script], format=output_format, name=name))


def alive(pid: int) -> bool:
    """Tells whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """Returns the children of a process, zombies among them."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def blocks(pid: int, number: signal.Signals) -> bool:
    """Tells whether a process holds a signal back."""
    mask = Path(f"/proc/{pid}/status").read_text().partition("SigBlk:\t")[2].split("\n")[0]
    return bool(int(mask, 16) & 1 << (number - 1))


def run_spec(*commands: pb.Command, **fields: Any) -> pb.RunSpec:
    """Returns a run of these commands with sensible defaults for everything else."""
    values: dict[str, Any] = {
        "protocol_versions": [1],
        "operator_version": "test",
        "run_uid": str(uuid.uuid4()),
        "run_namespace": "tenant",
        "run_name": "run",
        "timeout_seconds": 60,
        "linger_seconds": 60,
        "kill_grace_seconds": 5,
        **fields,
    }
    return pb.RunSpec(commands=commands, **values)


@dataclass
class AgentProcess:
    """An agent and its directory."""

    root: Path
    spec: pb.RunSpec
    authority: trust.Authority
    ip: str = field(default_factory=fresh_address)
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """What starts the agent: a program with its arguments."""
    document: str | None = None
    """Instead of the spec: what is in run.json."""
    files: dict[str, bytes] | None = None
    """Instead of all that: the run's Secret."""
    popen: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> "AgentProcess":
        """Writes the run's Secret and starts the agent."""
        self.run_dir.mkdir(parents=True)
        for name, content in (self.files or self._own_files()).items():
            (self.run_dir / name).write_bytes(content)
        self.work_dir.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            layout.RUN_DIR_VARIABLE: str(self.run_dir),
            layout.WORK_DIR_VARIABLE: str(self.work_dir),
            layout.OUTPUTS_VARIABLE: str(self.outputs_dir),
            layout.POD_IP_VARIABLE: self.ip,
            layout.TERMINATION_LOG_VARIABLE: str(self.root / "termination-log"),
            **self.environment,
        }
        with self.log_file.open("wb") as log:
            self.popen = subprocess.Popen(
                [*self.prefix, AGENT_PYTHON, "-m", "outhaul_agent"],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def _own_files(self) -> dict[str, bytes]:
        leaf = trust.issue_server(
            self.authority,
            namespace=self.spec.run_namespace,
            name=self.spec.run_name,
            run_uid=self.spec.run_uid,
            timeout=dt.timedelta(hours=1),
            linger=dt.timedelta(hours=1),
            now=now(),
        )
        files = leaf.to_files(self.authority.roots)
        document = self.document if self.document is not None else json_format.MessageToJson(self.spec)
        files[layout.RUN_FILE] = document.encode()
        return files

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def work_dir(self) -> Path:
        return self.root / "work"

    @property
    def outputs_dir(self) -> Path:
        return self.root / "outputs"

    @property
    def steps(self) -> list[str]:
        """The names of its commands."""
        return [command.name for command in self.spec.commands]

    @property
    def log_file(self) -> Path:
        return self.root / "log"

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def termination(self) -> dict[str, Any]:
        """The termination message."""
        message: dict[str, Any] = json.loads((self.root / "termination-log").read_bytes())
        return message

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the agent alone."""
        self.popen.send_signal(number)

    async def wait(self) -> int:
        """Waits for the agent's end and returns its exit code."""
        return await asyncio.to_thread(self.popen.wait, DEADLINE)

    @asynccontextmanager
    async def connect(self, **changes: Any) -> AsyncIterator[agents.Agent]:
        """Connects as the operator, or as somebody else by `changes`, once the agent is up."""
        arguments: dict[str, Any] = {
            "run_uid": self.spec.run_uid,
            "identity": trust.issue_operator(self.authority, now()),
            "roots": self.authority.roots,
            **changes,
        }
        async with agents.connect(self.ip, **arguments) as agent:
            yield agent

    async def up(self, agent: agents.Agent) -> agents.AgentInfo:
        """Waits until the agent answers."""
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    return await agent.info()
                except agents.AgentUnreachable:
                    assert self.popen.poll() is None, self.log
                    await asyncio.sleep(0.05)

    async def final(self, agent: agents.Agent) -> RunState:
        """Waits until the run has ended and returns its state."""
        await self.up(agent)
        async with asyncio.timeout(DEADLINE):
            async for state in agent.watch(self.steps):
                last = state
        return last

    async def until(self, path: Path) -> str:
        """Waits until a command has written something to a file, and returns it."""

        def read() -> str:
            return path.read_text() if path.exists() else ""

        deadline = time.monotonic() + DEADLINE
        while not (text := await asyncio.to_thread(read)):
            assert time.monotonic() < deadline, self.log
            await asyncio.sleep(0.02)
        return text

    def kill(self) -> None:
        """Ends the agent if it is still there."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(DEADLINE)
