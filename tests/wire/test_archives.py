"""An archive as a run's source: fetched by the real agent from a server on loopback, or refused in words."""

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archives import Answer, FileServer, member, packed, promise, serving, sha256, tar, tar_gz
from outhaul_api.vocabulary import ActionPhase, Reason
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator.agentstates import RunState
from wire.harness import AgentProcess, run_spec, shell

StartAgent = Callable[..., AgentProcess]
GOOD = tar_gz({"network-1.2/modules/vpc/main.tf": "# vpc", "network-1.2/shared/tags": "team=a"})
VPC = "network-1.2/modules/vpc"


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A file server on loopback."""
    with serving() as files:
        files.at["/good.tar.gz"] = GOOD
        yield files


def archive_of(server: FileServer, path: str, data: bytes = GOOD, directory: str = "") -> pb.Archive:
    """Returns what is at a path of the server, with the digest of this data."""
    return pb.Archive(url=server.url + path, sha256=sha256(data), path=directory)


def endless(over: threading.Event, asked: threading.Event | None = None) -> Answer:
    """Returns what promises more than it sends, and keeps the connection until it is over."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        promise(1000, b"x")(request)
        if asked is not None:
            asked.set()
        over.wait(60)

    return answer


async def run(start_agent: StartAgent, archive: pb.Archive) -> tuple[RunState, AgentProcess]:
    """Runs a command in an archive's directory, and returns the final state."""
    running = start_agent(run_spec(shell("echo ran > ran"), archive=archive))
    async with running.connect() as agent:
        return await running.final(agent), running


async def test_commands_run_in_the_archive(start_agent: StartAgent, server: FileServer) -> None:
    """The archive's files are in the working directory, with the run's own files among them."""
    archive = archive_of(server, "/good.tar.gz")
    running = start_agent(
        run_spec(
            shell(f"cat {VPC}/main.tf own > all", working_dir=""), archive=archive, files={"own": b"!", f"{VPC}/x": b""}
        )
    )
    async with running.connect() as agent:
        state = await running.final(agent)
    assert state.phase is ActionPhase.SUCCEEDED, state.message
    assert (running.work_dir / "all").read_text() == "# vpc!"
    assert (running.work_dir / VPC / "x").exists()


async def test_a_directory_of_it_is_the_working_directory(start_agent: StartAgent, server: FileServer) -> None:
    """With `path`, commands run there, files go there, outputs are found there, and the rest is beside it."""
    archive = archive_of(server, "/good.tar.gz?token=hunter2", directory=VPC)
    server.at["/good.tar.gz?token=hunter2"] = GOOD
    script = 'mkdir out; cat main.tf ../../shared/tags own > out/all; printf "$OUTHAUL_WORK_DIR" > out/where'
    source = pb.OutputSource(directory=pb.DirectorySource(path="out"))
    running = start_agent(run_spec(shell(script), archive=archive, files={"own": b"!"}, outputs=[source]))
    async with running.connect() as agent:
        state = await running.final(agent)
        outputs = {info.name: (await agent.read(info)).data for info in await agent.outputs()}
    assert state.phase is ActionPhase.SUCCEEDED, state.message
    assert outputs == {"all": b"# vpcteam=a!", "where": str(running.work_dir / VPC).encode()}
    assert "hunter2" not in running.log


async def test_what_cannot_be_downloaded(start_agent: StartAgent, server: FileServer) -> None:
    """The address is named, and the server's answer; no command runs."""
    state, running = await run(start_agent, archive_of(server, "/missing.tar.gz"))
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.SOURCE_UNAVAILABLE)
    assert state.message == f"the archive '{server.url}/missing.tar.gz': the server answers 404 Not Found"
    assert not (running.work_dir / "ran").exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (packed(tar(member("../outside"))), "its member '../outside' has '..'"),
        (tar_gz({"other/main.tf": ""}), f"it has no directory '{VPC}': correct source.archive.path"),
        (packed(tar(member("network-1.2", b"2", target="."))), f"it has no directory '{VPC}'"),
    ],
)
async def test_what_cannot_be_unpacked(start_agent: StartAgent, server: FileServer, data: bytes, words: str) -> None:
    """An archive that is the one that was meant, and is none that may be unpacked, is refused by what is wrong."""
    server.at["/bad.tar.gz"] = data
    state, running = await run(start_agent, archive_of(server, "/bad.tar.gz", data, directory=VPC))
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.BAD_SOURCE)
    assert f"the archive '{server.url}/bad.tar.gz': {words}" in state.message
    assert sorted(path.name for path in running.root.iterdir()) == ["log", "run", "termination-log", "work"]


async def test_another_digest(start_agent: StartAgent, server: FileServer) -> None:
    """An archive with another digest is not unpacked; both digests are told."""
    archive = archive_of(server, "/good.tar.gz", b"other")
    state, running = await run(start_agent, archive)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.BAD_SOURCE)
    assert f"its SHA-256 is {sha256(GOOD)} ({len(GOOD)} bytes) and not {archive.sha256}" in state.message
    assert list(running.work_dir.iterdir()) == []


async def test_a_run_is_stopped_while_it_fetches(start_agent: StartAgent, server: FileServer) -> None:
    """A server that never ends does not keep the agent from its last word."""
    asked, over = threading.Event(), threading.Event()
    server.at["/endless"] = endless(over, asked)
    running = start_agent(run_spec(shell("true"), archive=archive_of(server, "/endless")))
    try:
        async with running.connect() as agent:
            await running.up(agent)
            assert asked.wait(30)
            running.popen.terminate()
            assert await running.wait() == 143
    finally:
        over.set()
    assert (running.termination["phase"], running.termination["reason"]) == ("PHASE_CANCELLED", "Cancelled")


async def unfetched(start_agent: StartAgent, server: FileServer, folder: Path, fault: str) -> RunState:
    """Fetches from a server that never ends, with a fault put into Python itself; returns the final state."""
    over = threading.Event()
    server.at["/endless"] = endless(over)
    (folder / "sitecustomize.py").write_text(fault)
    spec = run_spec(shell("true"), archive=archive_of(server, "/endless"))
    running = start_agent(spec, environment={"PYTHONPATH": str(folder)})
    async with running.connect() as agent:
        state = await running.final(agent)
    over.set()
    return state


async def test_a_fetch_that_takes_too_long(start_agent: StartAgent, server: FileServer, tmp_path: Path) -> None:
    """What fetches an archive is stopped when its time is over, whatever the server does."""
    fault = "import outhaul_agent.archives\nouthaul_agent.archives.TIMEOUT = 0.1"
    state = await unfetched(start_agent, server, tmp_path, fault)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.SOURCE_UNAVAILABLE)
    assert "the archive was not there and unpacked within 0.1 s" in state.message


async def test_a_fetch_that_is_killed(start_agent: StartAgent, server: FileServer, tmp_path: Path) -> None:
    """An archive that takes more memory than there is ends what unpacks it, and not the agent, who says so."""
    fault = "import os, sys\nif 'outhaul_agent.fetch' in sys.orig_argv: os.kill(os.getpid(), 9)"
    state = await unfetched(start_agent, server, tmp_path, fault)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.RUN_FAILED)
    assert "ended with code 137 (it may have run out of memory)" in state.message
