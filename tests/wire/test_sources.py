"""Where outputs come from, and what is said of those that cannot be read."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from outhaul_api.vocabulary import ActionPhase, Reason
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agentoutputs
from outhaul_operator.agentstates import RunState
from wire.harness import AgentProcess, directory, output_command, run_spec, shell

StartAgent = Callable[..., AgentProcess]


async def collected(
    start_agent: StartAgent, script: str, *sources: pb.OutputSource, **fields: Any
) -> tuple[RunState, dict[str, bytes], AgentProcess]:
    """Runs a script, and returns the final state and all outputs."""
    running = start_agent(run_spec(shell(script), outputs=sources, **fields))
    async with running.connect() as agent:
        state = await running.final(agent)
        outputs = [await agent.read(info) for info in await agent.outputs()]
    return state, {output.name: output.data for output in outputs}, running


async def test_directory_names_are_paths(start_agent: StartAgent) -> None:
    """Nested files are outputs named by their path, hidden ones too; links within are followed."""
    state, outputs, _ = await collected(
        start_agent,
        "mkdir -p out/a/b; printf 1 > out/a/b/c.json; printf 2 > out/.env; ln -s a/b/c.json out/link; mkdir out/e",
        directory("out"),
    )
    assert state.phase is ActionPhase.SUCCEEDED, state.message
    assert outputs == {".env": b"2", "a/b/c.json": b"1", "link": b"1"}
    assert state.output_count == 3


async def test_no_directory_means_no_outputs(start_agent: StartAgent) -> None:
    """A directory that nobody has made is no error."""
    state, outputs, _ = await collected(start_agent, "true", directory("out"))
    assert (state.phase, outputs) == (ActionPhase.SUCCEEDED, {})


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("ln -s /etc/passwd out/bad", "output 'bad' of directory 'out': it is a link that leads out"),
        ("ln -s ../secret out/bad; echo s > secret", "it is a link that leads out of the directory"),
        ("ln -s nowhere out/bad", "it is a link to nowhere"),
        ("ln -s bad out/bad", "output 'bad' of directory 'out': it is a link to itself"),
        ("mkfifo out/bad", "it is no regular file"),
        ("mkdir other; ln -s ../other out/bad", "it is a link that leads out of the directory"),
        ("mkdir out/d; ln -s d out/bad", "it is no regular file"),
        ('touch "$(printf "out/\\377")"', "is no text in UTF-8"),
        ("truncate -s 65M out/bad", "output 'bad' has 68157440 bytes"),
    ],
)
async def test_what_is_no_file_of_the_directory_is_refused(start_agent: StartAgent, script: str, words: str) -> None:
    """It is named, and the files beside it are kept."""
    state, outputs, _ = await collected(start_agent, f"mkdir out; printf 1 > out/good; {script}", directory("out"))
    assert state.phase is ActionPhase.FAILED
    assert words in state.message
    assert outputs == {"good": b"1"}


async def test_a_required_output_is_missed(start_agent: StartAgent) -> None:
    """The message names the output and the directory where it was expected."""
    state, outputs, _ = await collected(
        start_agent, "mkdir out; echo 1 > out/there", directory("out", "there", "missing")
    )
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.BAD_OUTPUT)
    assert "required output 'missing' is missing: no file of that name is in directory 'out'" in state.message
    assert list(outputs) == ["there"]


async def test_two_sources_with_one_name(start_agent: StartAgent) -> None:
    """The run fails, both sources are named, and the other outputs are kept."""
    state, outputs, _ = await collected(
        start_agent,
        "mkdir a b; echo 1 > a/same; echo 2 > b/same; echo 3 > b/other",
        directory("a"),
        directory("b"),
    )
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.DUPLICATE_OUTPUT)
    assert "output 'same' is in directory 'a' and in directory 'b'" in state.message
    assert outputs == {"other": b"3\n"}


@pytest.mark.parametrize(
    ("script", "output_format", "words"),
    [
        ("printf '{\"hunter2\": '", pb.OUTPUT_FORMAT_JSON, "cannot be read as format json: it is no JSON at line 1"),
        ("echo '[1]'", pb.OUTPUT_FORMAT_TERRAFORM, "as format terraform: it is no JSON object"),
        ("true", pb.OUTPUT_FORMAT_PORTER, "as format porter: it is empty"),
        ("echo hunter2; exit 7", pb.OUTPUT_FORMAT_JSON, "it failed with exit code 7"),
        (
            "setsid sh -c 'echo 1 > up; exec sleep 600' & while [ ! -s up ]; do :; done",
            pb.OUTPUT_FORMAT_JSON,
            "it left a process behind that holds its standard output",
        ),
    ],
)
async def test_an_output_command_that_fails(
    start_agent: StartAgent, script: str, output_format: pb.OutputFormat.ValueType, words: str
) -> None:
    """Source and reason are named; what it has printed is shown nowhere."""
    state, _, running = await collected(start_agent, "true", output_command(script, output_format))
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.BAD_OUTPUT)
    assert state.message.startswith("output command '/bin/sh': ")
    assert words in state.message
    assert "hunter2" not in state.message
    assert "hunter2" not in running.log


async def test_an_output_command_that_does_not_exist(start_agent: StartAgent) -> None:
    """The program is named."""
    source = pb.OutputSource(command=pb.CommandSource(argv=["nope"], format=pb.OUTPUT_FORMAT_JSON))
    state, _, _ = await collected(start_agent, "true", source)
    assert state.reason is Reason.BAD_OUTPUT
    assert "the program 'nope' is not in the image" in state.message


async def test_an_endless_output_command_is_stopped(start_agent: StartAgent) -> None:
    """It is killed when it has printed more than a run may hold."""
    state, _, _ = await collected(
        start_agent, "true", output_command("cat /dev/zero", pb.OUTPUT_FORMAT_TEXT, "endless")
    )
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.OUTPUT_TOO_LARGE)
    assert "output 'endless' has " in state.message


async def test_standard_error_of_an_output_command_is_logged(start_agent: StartAgent) -> None:
    """Its standard output is not, since it may be a secret."""
    source = output_command("echo hunter2; echo warning >&2", pb.OUTPUT_FORMAT_TEXT, "text")
    state, outputs, running = await collected(start_agent, "true", source)
    assert state.phase is ActionPhase.SUCCEEDED
    assert outputs == {"text": b"hunter2\n"}
    assert "warning\n" in running.log
    assert "hunter2" not in running.log


async def test_manifest(start_agent: StartAgent) -> None:
    """Values and files of a manifest; its paths start at the manifest's own directory."""
    entries = [{"name": "v", "value": {"a": 1}}, {"name": "f", "path": "file"}]
    state, outputs, _ = await collected(
        start_agent,
        "printf x > sub/file",
        pb.OutputSource(manifest=pb.ManifestSource(path="sub/outputs.json")),
        files={"sub/outputs.json": json.dumps(entries).encode()},
    )
    assert state.phase is ActionPhase.SUCCEEDED, state.message
    assert outputs == {"v": b'{"a":1}', "f": b"x"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "manifest 'outputs.json' cannot be read: the file is missing"),
        (b"{}", "manifest 'outputs.json' cannot be read: it is no JSON list"),
        (b'[{"name": "f", "path": "nope"}]', "output 'f' of manifest 'outputs.json': the file is missing"),
    ],
)
async def test_a_bad_manifest(start_agent: StartAgent, content: bytes | None, words: str) -> None:
    """The manifest, or the output, is named."""
    state, _, _ = await collected(
        start_agent,
        "true",
        pb.OutputSource(manifest=pb.ManifestSource(path="outputs.json")),
        files={"outputs.json": content} if content is not None else {},
    )
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.BAD_OUTPUT)
    assert words in state.message


async def test_exactness(start_agent: StartAgent) -> None:
    """Numbers, strings and bytes come over the wire as they were written."""
    document = b'{"n":1180591620717411303424,"f":1e400,"d":1.0,"s":"\\u00e9\\r\\n","o":{"b":[0.10],"a":null}}'
    state, outputs, _ = await collected(
        start_agent,
        "true",
        output_command("cat document.json", pb.OUTPUT_FORMAT_JSON),
        output_command("cat binary", pb.OUTPUT_FORMAT_TEXT, "binary"),
        files={"document.json": document, "binary": bytes(range(256))},
    )
    assert state.phase is ActionPhase.SUCCEEDED
    assert outputs == {
        "n": b"1180591620717411303424",
        "f": b"1e400",
        "d": b"1.0",
        "s": "é\r\n".encode(),
        "o": b'{"b":[0.10],"a":null}',
        "binary": bytes(range(256)),
    }


async def test_all_outputs_of_any_size_arrive(start_agent: StartAgent) -> None:
    """Many outputs come page by page, a large one chunk by chunk, an empty one without any."""
    state, outputs, _ = await collected(
        start_agent,
        "mkdir out; for i in $(seq 450); do echo $i > out/n$i; done; : > out/empty;"
        " head -c 5000001 /dev/urandom > out/large",
        directory("out"),
    )
    assert state.output_count == 452
    assert len(outputs) == 452
    assert outputs["n450"] == b"450\n"
    assert outputs["empty"] == b""
    assert len(outputs["large"]) == 5_000_001


async def test_listed_in_the_order_of_their_bytes(start_agent: StartAgent) -> None:
    """The listing's order does not depend on a locale."""
    running = start_agent(run_spec(shell("mkdir out; touch out/b out/é out/a out/Z out/_"), outputs=[directory("out")]))
    async with running.connect() as agent:
        await running.final(agent)
        infos = await agent.outputs()
    assert [info.name for info in infos] == ["Z", "_", "a", "b", "é"]
    assert isinstance(infos[0], agentoutputs.OutputInfo)


@pytest.mark.parametrize(("code", "printed"), [(0, True), (4, False)])
async def test_errors_of_output_commands_do_not_hide_the_real_one(
    start_agent: StartAgent, code: int, *, printed: bool
) -> None:
    """After a failed run the pod's log ends with what has failed, not with what its output commands think of it."""
    source = output_command("echo noise >&2; printf 1", pb.OUTPUT_FORMAT_TEXT, "x")
    _, outputs, running = await collected(start_agent, f"echo real >&2; exit {code}", source)
    assert outputs == {"x": b"1"}
    assert "real\n" in running.log
    assert ("noise\n" in running.log) is printed
