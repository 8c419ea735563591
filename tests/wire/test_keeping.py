"""A run hands back what it was made from, and an uninstall that finds it gone takes that."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from archives import member, packed, serving, sha256, tar, tar_gz
from outhaul_api.vocabulary import ActionPhase, Reason
from outhaul_grpc import layout, protocol
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agents
from outhaul_operator.agentoutputs import Source
from wire.harness import AgentProcess, directory, run_spec, shell

StartAgent = Callable[..., AgentProcess]
KEEP = pb.Keep(variables=["TF_VAR_user", "TF_VAR_absent"], max_bytes=protocol.MAX_SOURCE_BYTES)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """What is mounted as the source."""
    volume = tmp_path / "volume"
    volume.mkdir()
    return volume


def made_from(volume: Path, *commands: pb.Command, **fields: Any) -> pb.RunSpec:
    """Returns a run whose working directory is filled from a volume."""
    return run_spec(*commands, copy_from=[str(volume)], **fields)


async def handed_back(start_agent: StartAgent, spec: pb.RunSpec, **environment: str) -> Source:
    """Carries out a run, and returns what it hands back of its source."""
    running = start_agent(spec, environment=environment)
    async with running.connect() as agent:
        await running.final(agent)
        source = await agent.source()
        await agent.acknowledge(agents.outputs_digest(await agent.outputs()))
    await running.wait()
    assert source is not None
    return source


async def uninstall(start_agent: StartAgent, spec: pb.RunSpec, copy: bytes | None, folder: Path, **changes: Any) -> Any:
    """Carries out a run that has a copy; returns its state, and what it wrote to `out`."""
    kept = folder / "kept"
    kept.mkdir()
    if copy is not None:
        (kept / layout.KEPT_FILE).write_bytes(copy)
    spec.kept.CopyFrom(pb.Kept(variables=["TF_VAR_user"], required=spec.copy_from))
    environment = {layout.KEPT_DIR_VARIABLE: str(kept), **changes}
    running = start_agent(spec, environment=environment)
    async with running.connect() as agent:
        state = await running.final(agent)
    out = running.work_dir / "out"
    return state, out.read_text() if out.exists() else None, running


async def test_a_source_outlives_what_it_came_from(start_agent: StartAgent, volume: Path, tmp_path: Path) -> None:
    """What one run hands back is what another runs, when volume and variable are gone."""
    (volume / "bye").write_text('#!/bin/sh\nprintf %s "bye $TF_VAR_user" > out\n')
    source = await handed_back(start_agent, made_from(volume, shell("rm bye"), keep=KEEP), TF_VAR_user="s3cret")
    assert not source.too_large
    (volume / "bye").unlink()
    spec = made_from(volume, shell("./bye"))
    state, out, running = await uninstall(start_agent, spec, source.data, tmp_path)
    assert state.phase is ActionPhase.SUCCEEDED, running.log
    assert out == "bye s3cret"
    assert "s3cret" not in running.log


async def test_what_is_there_now_counts(start_agent: StartAgent, volume: Path, tmp_path: Path) -> None:
    """A copy stands in for what is gone alone: a mended script, or a new name, is the one that is used."""
    (volume / "bye").write_text("#!/bin/sh\necho old > out\n")
    source = await handed_back(start_agent, made_from(volume, shell("true"), keep=KEEP), TF_VAR_user="old")
    (volume / "bye").write_text('#!/bin/sh\nprintf %s "mended $TF_VAR_user" > out\n')
    spec = made_from(volume, shell("./bye"))
    _, out, _ = await uninstall(start_agent, spec, source.data, tmp_path, TF_VAR_user="new")
    assert out == "mended new"


async def test_nothing_is_run_without_a_source(start_agent: StartAgent, volume: Path, tmp_path: Path) -> None:
    """Where the source is gone and no copy is there, no command starts: it would uninstall nothing, and say it had."""
    state, out, _ = await uninstall(start_agent, made_from(volume, shell("touch out")), None, tmp_path)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.SOURCE_MISSING)
    assert "bring back what spec.source names" in state.message
    assert out is None


async def test_a_failed_run_hands_back_its_source(start_agent: StartAgent, volume: Path) -> None:
    """What failed half way has to be uninstalled too."""
    (volume / "main.tf").touch()
    source = await handed_back(start_agent, made_from(volume, shell("exit 3"), keep=KEEP))
    assert source.data


async def test_it_can_be_read_before_the_end(start_agent: StartAgent, volume: Path) -> None:
    """While commands run, since the pod may not live to see the end; what they change does not matter."""
    (volume / "main.tf").touch()
    script = "echo changed > main.tf; touch ../changed; while [ ! -e ../go ]; do sleep 0.02; done"
    running = start_agent(made_from(volume, shell(script), keep=KEEP))
    async with running.connect() as agent:
        await running.up(agent)
        async for state in agent.watch(running.steps):
            if state.steps[0].started_at:
                break
        before = await agent.source()
        (running.root / "go").touch()
        await running.final(agent)
        assert await agent.source() == before
    assert before is not None
    assert before.data


async def test_too_much_is_told(start_agent: StartAgent, volume: Path) -> None:
    """A source beyond the limit is not handed back, and that is said; the run is as good as any other."""
    (volume / "provider").write_bytes(os.urandom(protocol.MAX_SOURCE_BYTES + 1))
    spec = made_from(volume, shell("mkdir o; cp provider o"), keep=KEEP, outputs=[directory("o")])
    assert await handed_back(start_agent, spec) == Source(b"", too_large=True)


@pytest.mark.parametrize("asked", [True, False])
async def test_nothing_is_held_that_nobody_needs(start_agent: StartAgent, volume: Path, *, asked: bool) -> None:
    """There is no copy where none was asked for, or where everything is in the run's own spec."""
    (volume / "main.tf").touch()
    spec = run_spec(shell("true"), files={"own": b"x"}, keep=KEEP) if asked else made_from(volume, shell("true"))
    assert await handed_back(start_agent, spec) == Source(b"", too_large=False)


async def test_it_is_not_there_while_the_run_is_prepared(start_agent: StartAgent, tmp_path: Path) -> None:
    """Before the working directory is filled there is nothing to say about it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Opening the copy, which is a pipe, takes until somebody writes.
    (tmp_path / "kept").mkdir()
    pipe.rename(tmp_path / "kept" / layout.KEPT_FILE)
    running = start_agent(
        run_spec(shell("true"), kept=pb.Kept()), environment={layout.KEPT_DIR_VARIABLE: str(tmp_path / "kept")}
    )
    async with running.connect() as agent:
        await running.up(agent)
        with pytest.raises(agents.AgentMisbehaved, match=grpc.StatusCode.FAILED_PRECONDITION.name):
            await agent.source()


async def test_an_archive_outlives_its_server(start_agent: StartAgent, tmp_path: Path) -> None:
    """The archive is kept as it came; an uninstall by the same digest asks no server for it."""
    data = tar_gz({"code/bye": "echo bye > out"})
    with serving() as server:
        server.at["/code.tar.gz"] = data
        archive = pb.Archive(url=f"{server.url}/code.tar.gz", sha256=sha256(data), path="code")
        source = await handed_back(start_agent, run_spec(shell("rm bye"), archive=archive, keep=KEEP))
    spec = run_spec(shell("sh bye"), archive=archive)
    state, _, running = await uninstall(start_agent, spec, source.data, tmp_path)
    assert state.phase is ActionPhase.SUCCEEDED, running.log
    assert (running.work_dir / "code" / "out").read_text() == "bye\n"


async def test_another_archive_is_asked_for(start_agent: StartAgent, tmp_path: Path) -> None:
    """A copy stands in for no archive of another digest."""
    data, other = tar_gz({"main.tf": "1"}), tar_gz({"main.tf": "2"})
    with serving() as server:
        server.at["/one.tar.gz"] = data
        archive = pb.Archive(url=f"{server.url}/one.tar.gz", sha256=sha256(data))
        source = await handed_back(start_agent, run_spec(shell("true"), archive=archive, keep=KEEP))
        archive = pb.Archive(url=f"{server.url}/two.tar.gz", sha256=sha256(other))
        state, out, _ = await uninstall(
            start_agent, run_spec(shell("touch out"), archive=archive), source.data, tmp_path
        )
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.SOURCE_UNAVAILABLE)
    assert out is None


async def test_a_large_archive_is_told(start_agent: StartAgent) -> None:
    """An archive beyond the limit is used, and not handed back."""
    data = packed(tar((member("provider"), os.urandom(protocol.MAX_SOURCE_BYTES))))
    with serving() as server:
        server.at["/code.tar.gz"] = data
        archive = pb.Archive(url=f"{server.url}/code.tar.gz", sha256=sha256(data))
        spec = run_spec(shell("test -e provider"), archive=archive, keep=KEEP)
        assert await handed_back(start_agent, spec) == Source(b"", too_large=True)
