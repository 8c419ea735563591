"""Which instructions an agent refuses before it starts anything."""

from typing import Any

import pytest
from outhaul_agent.reasons import Reason, RunError
from outhaul_agent.spec import check_spec
from outhaul_grpc.v1 import agent_pb2 as pb


def run(**fields: Any) -> pb.RunSpec:
    """Returns a run that is fine but for the changes."""
    values: dict[str, Any] = {
        "run_uid": "uid",
        "timeout_seconds": 1,
        "commands": [pb.Command(name="one", argv=["true"])],
        **fields,
    }
    return pb.RunSpec(**values)


def command(**fields: Any) -> pb.RunSpec:
    """Returns a run with one command."""
    return run(commands=[pb.Command(**{"name": "one", "argv": ["true"], **fields})])


def archive(**fields: Any) -> pb.RunSpec:
    """Returns a run with an archive."""
    return run(archive=pb.Archive(**{"url": "https://example.com/a.tar.gz", "sha256": "0" * 64, **fields}))


def output(source: Any) -> pb.RunSpec:
    """Returns a run with one output source."""
    return run(outputs=[pb.OutputSource(**source)])


def test_a_run_that_is_fine() -> None:
    """Relative and absolute working directories, nested files and every kind of source are fine."""
    text = pb.CommandSource(argv=["true"], format=pb.OUTPUT_FORMAT_TEXT, name="x", working_dir="/a/../b")
    check_spec(
        run(
            files={"a/b..c/d": b""},
            commands=[pb.Command(name="one", argv=["true", ""], working_dir="a/b", env={"A": "\n"})],
            outputs=[
                pb.OutputSource(directory=pb.DirectorySource(path="../out")),
                pb.OutputSource(command=text),
                pb.OutputSource(manifest=pb.ManifestSource(path="/m")),
            ],
        )
    )


def test_a_run_that_only_reads_outputs_is_fine() -> None:
    """Without commands there have to be outputs, and that is enough."""
    check_spec(run(commands=[], outputs=[pb.OutputSource(directory=pb.DirectorySource(path="out"))]))


def test_an_archive_that_is_fine() -> None:
    """Any host, port and query by http or https, digits of either case, and a directory."""
    check_spec(archive(url="http://[::1]:8080/a?token=x", sha256="aB" * 32, path="./a/b c"))


def declared(*declarations: dict[str, Any]) -> pb.RunSpec:
    """Returns a run with these declarations."""
    return run(declare=[pb.OutputDeclaration(**one) for one in declarations])


@pytest.mark.parametrize(
    "declaration",
    [
        {"name": ""},
        {"name": "a", "type": "bytes", "default_json": '"AP8="'},
        {"name": "a", "type": "null", "default_json": "null"},
        {"name": "a", "default_json": '{"a": [1e400]}'},
        {"name": "é" * 512, "required": True, "sensitive": False},
    ],
)
def test_declarations_that_are_fine(declaration: dict[str, Any]) -> None:
    """Any name, any known type, and a default of that type."""
    check_spec(declared(declaration))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (run(run_uid=""), "no uid"),
        (run(timeout_seconds=0), "no timeout"),
        (run(timeout_seconds=float("nan")), "no number"),
        (run(linger_seconds=-1), "negative"),
        (run(linger_seconds=float("inf")), "no number"),
        (run(commands=[pb.Command(name="a", argv=["x"])] * 2), "two commands are called 'a'"),
        (run(commands=[pb.Command(name=str(n), argv=["x"]) for n in range(65)]), "65 commands"),
        (command(name=""), "one has no name"),
        (command(argv=[]), "names no program"),
        (command(argv=[""]), "names no program"),
        (command(argv=["a", "b\0c"]), "contains a NUL"),
        (command(timeout_seconds=-1), "negative"),
        (command(env={"A=B": "x"}), "variable 'A=B'"),
        (command(env={"A": "x\0"}), "variable 'A'"),
        (command(env={"": "x"}), "cannot be set"),
        (command(working_dir="../x"), "the working directory of command 'one', '../x' has '..'"),
        (command(working_dir="/a\0"), "the working directory of command 'one' has a control character"),
        (command(argv=["a\n"]), "the program of command 'one' has a control character in its name"),
        (command(env={"A\n": "x"}), "variable 'A\\n' of command 'one' cannot be set"),
        (run(files={"../x": b""}), "the file '../x' has '..'"),
        (run(files={"/x": b""}), "the file '/x' is no relative path"),
        (run(files={"a/../../x": b""}), "the file 'a/../../x' has '..'"),
        (run(files={"": b""}), "the file '' has no name"),
        (run(files={"./": b""}), "the file './' has no name"),
        (run(files={"a\0": b""}), "the file 'a\\x00' has a control character"),
        (run(files={"a": b"", "./a": b""}), "the file 'a' is there twice"),
        (archive(url="ftp://example.com/a"), "not one of http or https"),
        (archive(url="file:///etc/passwd"), "not one of http or https"),
        (archive(url="https://user:hunter2@example.com/a"), "has credentials"),
        (archive(url="https://hunter2@example.com/a"), "has credentials"),
        (archive(url="https:///a"), "not one of http or https"),
        (archive(url="https://[::1/a"), "not one of http or https"),
        (archive(url="https://example.com:port/a"), "not one of http or https"),
        (archive(url="https://example.com/a b"), "not one of http or https"),
        (archive(url="https://example.com/a\r\nHost: b"), "not one of http or https"),
        (archive(url="https://exämple.com/a"), "not one of http or https"),
        (archive(url=""), "not one of http or https"),
        (archive(sha256="0" * 63), "SHA-256 is not 64 hex digits"),
        (archive(sha256=""), "SHA-256 is not 64 hex digits"),
        (archive(sha256="0" * 64 + "\n"), "SHA-256 is not 64 hex digits"),
        (archive(path="a/.."), "the archive's directory 'a/..' has '..'"),
        (archive(path="/a"), "the archive's directory '/a' is no relative path"),
        (output({}), "of a kind that this agent does not know"),
        (output({"directory": pb.DirectorySource()}), "kind directory has no usable path"),
        (output({"manifest": pb.ManifestSource(path="\0")}), "kind manifest has no usable path"),
        (output({"command": pb.CommandSource(argv=["x"])}), "no format that this agent knows"),
        (
            output({"command": pb.CommandSource(argv=["x"], format=pb.OUTPUT_FORMAT_TEXT)}),
            "does not name its output",
        ),
        (output({"command": pb.CommandSource(format=pb.OUTPUT_FORMAT_JSON)}), "names no program"),
        (run(commands=[]), "neither commands nor outputs"),
        (declared({"name": "a"}, {"name": "a", "type": "string"}), "output 'a' is declared twice"),
        (declared({"name": "é" * 513}), "more than 1024 bytes"),
        (declared({"name": "a", "type": "integer"}), "declared as 'integer', which this agent does not know; types"),
        (declared({"name": "a", "default_json": ""}), "the default of output 'a' cannot be used: it is empty"),
        (declared({"name": "a", "default_json": "{'"}), "it is no JSON at line 1, column 2"),
        (declared({"name": "a", "default_json": '{"b":1,"b":2}'}), "a key twice"),
        (declared({"name": "a", "default_json": "NaN"}), "NaN"),
        (
            declared({"name": "a", "type": "number", "default_json": '"1"'}),
            "the default of output 'a' cannot be used: its type is declared as number, but it is of type string",
        ),
        (declared({"name": "a", "type": "bytes", "default_json": '"?"'}), "base64"),
    ],
)
def test_what_is_refused(spec: pb.RunSpec, words: str) -> None:
    """What would fail in the middle, or do harm, is refused at the start."""
    with pytest.raises(RunError) as caught:
        check_spec(spec)
    assert caught.value.problem.reason is Reason.INVALID_SPEC
    assert words in caught.value.problem.message
    assert "hunter2" not in caught.value.problem.message
