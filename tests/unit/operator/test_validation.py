"""What an AgentAction's schema cannot say: each fault has one message, and none shows a value."""

from typing import Any

import pytest
from builders import OTHER_UID, UID, action_object, owned_by_installation
from outhaul_api.vocabulary import Reason
from outhaul_grpc.layout import AGENT_VARIABLES
from outhaul_operator import validation
from outhaul_operator.names import run_name
from outhaul_operator.verdicts import RunFailedError

SECRET = "hunter2-in-the-wrong-place"  # noqa: S105 - what no message may show
COMMAND = {"name": "a", "command": ["true"]}
NO_PROGRAM = "must name a program: it is empty, or has a line break or another control character"
TEXT = {"command": ["cat"], "format": "text", "name": "x"}


def archived(**changes: str) -> dict[str, Any]:
    """Returns a spec with an archive."""
    archive = {"url": "https://example.com/a.tar.gz", "sha256": "0" * 64, **changes}
    return {"commands": [COMMAND], "archive": archive}


def faults(spec: object, **metadata: Any) -> str:
    """Returns what is said about a spec."""
    with pytest.raises(RunFailedError) as caught:
        validation.parse_action({**action_object(**metadata), "spec": spec})
    assert caught.value.reason is Reason.INVALID_SPEC
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    message, remedy = str(caught.value).rsplit("; ", 1)
    assert remedy == "the spec of a run is final, so create a corrected AgentAction under another name"
    return message


@pytest.mark.parametrize(
    "spec",
    [
        {"commands": [COMMAND]},
        {"command": ["porter"], "args": ["install", "--force"]},
        {"commands": [COMMAND, {**COMMAND, "name": "b"}], "outputs": [{"command": TEXT}]},
        {"commands": [COMMAND], "outputs": [{"directory": {"path": "/x"}}, {"manifest": {"path": "m"}}]},
        {"commands": [COMMAND], "outputs": [{"command": {"command": ["x"], "format": "terraform"}}]},
        {"commands": [COMMAND], "files": {"a/b": "", "..a": "AAE=", ".hidden": "YQ=="}},
        {"action": "recollect", "outputs": [{"command": TEXT}]},
        archived(),
        archived(url="http://[::1]:8080/a?b=c#d", path="a/b"),
        {"commands": [COMMAND], "somethingNewer": {"x": 1}},
    ],
)
def test_what_is_right_is_read(spec: dict[str, Any]) -> None:
    """A correct AgentAction is returned, and a field of a later version is let be."""
    obj = action_object(spec)
    assert validation.parse_action(obj).metadata.name == obj["metadata"]["name"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "spec must give either commands, or command with args"),
        ({"commands": [COMMAND], "command": ["x"]}, "spec must give either commands, or command with args"),
        ({"commands": [COMMAND], "args": [SECRET]}, "spec.args needs spec.command"),
        ({"commands": [COMMAND, COMMAND]}, "spec.commands: the name 'a' is used twice"),
        (
            {"commands": [{**COMMAND, "args": ["a", f"{SECRET}\0"]}]},
            "spec.commands[0].args[1] has a NUL character",
        ),
        (
            {"commands": [{**COMMAND, "env": [{"name": "A", "value": f"{SECRET}\0"}]}]},
            "spec.commands[0].env[0].value has a NUL character",
        ),
        ({"commands": [{**COMMAND, "workingDir": "\0"}]}, "spec.commands[0].workingDir has a NUL character"),
        ({"commands": [COMMAND], "env": [{"name": "A", "value": "\0"}]}, "spec.env[0].value has a NUL character"),
        (
            {"commands": [COMMAND], "outputs": [{"command": {**TEXT, "command": ["\0"]}}]},
            "spec.outputs[0].command.command[0] has a NUL character",
        ),
        (
            {"commands": [COMMAND], "outputs": [{"command": TEXT}, {}]},
            "spec.outputs[1] must have exactly one of directory, command and manifest; it has none",
        ),
        (
            {"commands": [COMMAND], "outputs": [{"manifest": {"path": "m"}, "directory": {"path": "d"}}]},
            "spec.outputs[0] must have exactly one of directory, command and manifest; it has directory and manifest",
        ),
        (
            {"commands": [COMMAND], "outputs": [{"command": {"command": ["x"], "format": "text"}}]},
            "spec.outputs[0].command.name is needed with format text, and only there",
        ),
        (
            {"commands": [COMMAND], "outputs": [{"command": {**TEXT, "format": "json"}}]},
            "spec.outputs[0].command.name is needed with format text, and only there",
        ),
        ({"commands": [COMMAND], "files": {"a": "not base64!"}}, "spec.files: the content of 'a' is not base64"),
        ({"commands": [COMMAND], "files": {"a": "YQ"}}, "spec.files: the content of 'a' is not base64"),
        ({"commands": [COMMAND], "files": {"a": "ä"}}, "spec.files: the content of 'a' is not base64"),
        (
            {"commands": [{**COMMAND, "command": ["echo\n", "x"]}]},
            f"spec.commands[0].command[0] {NO_PROGRAM}",
        ),
        (
            {"commands": [{**COMMAND, "command": [""]}]},
            f"spec.commands[0].command[0] {NO_PROGRAM}",
        ),
        (
            {"commands": [{**COMMAND, "workingDir": "a/../../b"}]},
            "spec.commands[0].workingDir: 'a/../../b' has '..'",
        ),
        (
            {"commands": [{**COMMAND, "workingDir": "/a\n"}]},
            "spec.commands[0].workingDir: '/a\\n' has a control character",
        ),
        (
            archived(path="/modules"),
            "spec.archive.path: '/modules' is no relative path",
        ),
        (
            {"commands": [COMMAND], "outputs": [{"command": {**TEXT, "command": ["cat\r"]}}]},
            f"spec.outputs[0].command.command[0] {NO_PROGRAM}",
        ),
        ({"action": "recollect"}, "spec must give either commands, or command with args"),
    ],
)
def test_each_fault_has_its_message(spec: dict[str, Any], message: str) -> None:
    """One mistake is one sentence, which names the field."""
    assert faults(spec) == message


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("", "'' names no file"),
        (".", "'.' names no file"),
        ("./", "'./' names no file"),
        ("/etc/passwd", "'/etc/passwd' is no relative path"),
        ("../x", "'../x' has '..'"),
        ("a/../../x", "'a/../../x' has '..'"),
        ("a/..", "'a/..' has '..'"),
        ("\0", "'\\x00' has a control character"),
        ("a\nb", "'a\\nb' has a control character"),
        ("a\x1b[2J", "'a\\x1b[2J' has a control character"),
        ("\x85", "'\\x85' has a control character"),
        ("a/" * 600 + "a", "…' has more than 1024 bytes"),
        ("é" * 128, "…' has a name of more than 255 bytes"),
    ],
)
def test_files_stay_in_the_working_directory(path: str, fault: str) -> None:
    """A path that leads out of the working directory, or is no name that a line can show, is refused."""
    message = faults({"commands": [COMMAND], "files": {path: ""}})
    assert message.startswith("spec.files: ")
    assert message.endswith(fault)


@pytest.mark.parametrize(("one", "other"), [("a", "a/b"), ("a/b", "./a"), ("a", "a/b/c"), ("a", "./a")])
def test_a_file_is_no_directory(one: str, other: str) -> None:
    """Two files of which one would be the other's directory, or the other itself, are refused by their names."""
    message = faults({"commands": [COMMAND], "files": {one: "", other: ""}})
    assert "cannot both be files; rename one" in message
    assert repr(one) in message
    assert repr(other) in message


@pytest.mark.parametrize(
    "spec",
    [
        {"commands": [{**COMMAND, "command": ["sh", "-c", "echo one\necho two\n"], "args": ["a\nb"]}]},
        {"commands": [{**COMMAND, "env": [{"name": "CERTIFICATE", "value": "-----BEGIN\nx\r\n"}]}]},
        {"commands": [COMMAND], "env": [{"name": "SCRIPT", "value": "a\nb"}]},
        {"command": ["sh", "-c", "echo one\necho two"]},
        {"commands": [{**COMMAND, "workingDir": "."}, {**COMMAND, "name": "b", "workingDir": "/opt/../srv"}]},
    ],
)
def test_several_lines_are_fine_where_they_are_data(spec: dict[str, Any]) -> None:
    """A script is an argument, a certificate a variable's value: both have lines."""
    validation.parse_action(action_object(spec))


@pytest.mark.parametrize("name", sorted(AGENT_VARIABLES))
def test_the_agents_own_variables_are_refused(name: str) -> None:
    """A run cannot move its agent to another port or another working directory."""
    message = faults({"commands": [COMMAND], "env": [{"name": name, "value": "1"}]})
    assert message == f"spec.env: {name} is a variable that the agent needs; use another name"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"commands": [{"name": SECRET + " ", "command": ["x"]}]}, "spec.commands.0.name"),
        ({"commands": [{"name": "a", "command": SECRET}]}, "spec.commands.0.command"),
        ({"commands": [{"name": "a\n", "command": ["x"]}]}, "spec.commands.0.name"),
        ({"commands": [{**COMMAND, "env": [{"name": "A=B"}]}]}, "spec.commands.0.env.0.name"),
        ({"commands": [{**COMMAND, "env": [{"name": "A\n"}]}]}, "spec.commands.0.env.0.name"),
        ({"commands": [{**COMMAND, "env": [{"name": ""}]}]}, "spec.commands.0.env.0.name"),
        ({"commands": [COMMAND], "env": [{"name": "A\n"}]}, "spec.env.0.name"),
        ({"commands": [COMMAND], "timeout": SECRET}, "spec.timeout"),
        ({"commands": [COMMAND], "action": SECRET}, "spec.action"),
        ({"commands": [COMMAND], "env": [{"name": "A", "value": {"secret": SECRET}}]}, "spec.env.0.value"),
        ({"commands": [COMMAND], "installation": SECRET}, "spec.installation"),
        (archived(url=f"https://user:{SECRET}@example.com/"), "spec.archive.url"),
        (archived(url=f"https://{SECRET}@example.com/"), "spec.archive.url"),
        (archived(url="file:///etc/passwd"), "spec.archive.url"),
        (archived(url="ftp://example.com/a.tar.gz"), "spec.archive.url"),
        (archived(url="https://"), "spec.archive.url"),
        (archived(url="https:///a.tar.gz"), "spec.archive.url"),
        (archived(url="https://example.com/a b"), "spec.archive.url"),
        (archived(url="https://example.com/\r\nHost: other"), "spec.archive.url"),
        (archived(url="https://example.com\\@other/"), "spec.archive.url"),
        (archived(sha256="0" * 63), "spec.archive.sha256"),
        (archived(sha256="g" * 64), "spec.archive.sha256"),
        (archived(sha256="0" * 64 + "\n"), "spec.archive.sha256"),
        ({"commands": [COMMAND], "archive": {"url": "https://example.com"}}, "spec.archive.sha256"),
        ({"commands": [COMMAND], "outputs": [{"command": {"command": ["x"], "format": SECRET}}]}, "format"),
        (SECRET, "spec"),
        (None, "spec"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_field(spec: object, named: str) -> None:
    """A value of the wrong form is told by where it stands, by the object's own names, and never quoted."""
    assert named in faults(spec)


CLAIM = {"name": "shop", "uid": UID, "number": 3}


@pytest.mark.parametrize(
    ("claim", "metadata"),
    [
        (CLAIM, {"ownerReferences": owned_by_installation()}),
        (CLAIM, {"name": run_name("shop", uid=UID, number=3)}),
        (CLAIM, {"name": run_name("shop", uid=UID, number=3), "ownerReferences": owned_by_installation(OTHER_UID)}),
        (CLAIM, {"name": run_name("shop", uid=UID, number=3), "ownerReferences": owned_by_installation(name="x")}),
        (
            {**CLAIM, "number": 4},
            {"name": run_name("shop", uid=UID, number=3), "ownerReferences": owned_by_installation()},
        ),
    ],
)
def test_a_run_of_an_installation_is_the_operator_s(claim: object, metadata: dict[str, Any]) -> None:
    """A run that says it is an Installation's is one by name and owner too, or it is refused: a copy is none."""
    message = faults({"commands": [COMMAND], "installation": claim}, **metadata)
    assert message == "spec.installation is for the operator's own runs; leave it out, and the owner with it"
    name = run_name("shop", uid=UID, number=3)
    obj = action_object(
        {"commands": [COMMAND], "installation": CLAIM}, name=name, ownerReferences=owned_by_installation()
    )
    assert validation.parse_action(obj).spec.installation is not None


def nested(levels: int) -> object:
    """Returns a value that is nested so deeply."""
    value: object = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


def test_what_is_nested_too_deeply_is_refused() -> None:
    """The API server takes objects that are nested deeper than they can be written back; ours have a limit."""
    for levels, message in ((98, None), (99, "spec.volumes.0: Value error, it is nested more than 100 levels deep")):
        spec = {"commands": [COMMAND], "volumes": [{"name": "v", "emptyDir": nested(levels)}]}
        if message is None:
            parsed = validation.parse_action(action_object(spec))
            assert parsed.to_json()["spec"]["volumes"] == spec["volumes"]
        else:
            assert message in faults(spec)


def test_the_first_faults_are_enough() -> None:
    """A hundred mistakes are not a hundred sentences."""
    message = faults({"commands": [COMMAND], "files": {f"../{index}": "" for index in range(100)}})
    assert message.count(";") == 4
    unreadable = faults({"commands": [{"name": "a", "command": []}] * 60})
    assert unreadable.count(";") == 4
