"""Exact values from a command or a file to the operator: typed, and byte by byte as they were written."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outhaul_api.vocabulary import ActionPhase, OutputType
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import trust
from outhaul_operator.agentoutputs import Output
from wire.harness import AgentProcess, directory, output_command, run_spec, shell

StartAgent = Callable[..., AgentProcess]

VALUES = {
    "two to the seventieth": ("1180591620717411303424", "number"),
    "beyond int64": ("9223372036854775808", "number"),
    "below int64": ("-9223372036854775809", "number"),
    "a tenth": ("0.1", "number"),
    "no double": ("0.1000000000000000055511151231257827021181583404541015625", "number"),
    "beyond doubles": ("1e400", "number"),
    "a decimal": ("1.0", "number"),
    "an exponent": ("1E5", "number"),
    "minus zero": ("-0", "number"),
    "minus zero point zero": ("-0.0e-0", "number"),
    "null": ("null", "null"),
    "true": ("true", "boolean"),
    "false": ("false", "boolean"),
    "an empty list": ("[]", "array"),
    "an empty object": ("{}", "object"),
    "order and numbers": ('{"z":{"b":[1.0,1E5,null],"a":-0},"a":1180591620717411303424,"":""}', "object"),
    "text in a list": ('["é\u2028😀","\\u0000\\u001f\\"\\\\/","\x7f"]', "array"),
}
"""Compact JSON, which comes through as it is, and its type."""

STRINGS = {
    "empty": "",
    "newlines": "\n\n",
    "crlf": "a\r\nb\r\n",
    "control characters": "\0\x01\x1b[31m\x7f\x85",
    "beyond ASCII": "é\u202e\ufeff😀\U0010ffff",
    "quotes": "\"'\\/",
    "looks like a number": "1.0",
    "spaces": "  a  ",
}
"""Strings, which are stored as their own bytes."""

EXPECTED = {
    **{name: (kind, text.encode()) for name, (text, kind) in VALUES.items()},
    **{name: ("string", text.encode()) for name, text in STRINGS.items()},
}


def json_object(members: Iterable[tuple[str, str]]) -> str:
    """Returns a JSON object of names and JSON texts."""
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in members) + "}"


async def outputs_of(running: AgentProcess) -> list[Output]:
    """Returns what the operator reads of a run that has to succeed."""
    async with running.connect() as agent:
        state = await running.final(agent)
        assert state.phase is ActionPhase.SUCCEEDED, state.message
        return [await agent.read(info) for info in await agent.outputs()]


def typed(outputs: list[Output]) -> dict[str, tuple[str, bytes]]:
    """Returns types and values by name."""
    return {output.name: (output.type, output.data) for output in outputs}


def members(wrap: str = "%s") -> str:
    """Returns the values and strings as a JSON object; `wrap` is put around each."""
    texts = {name: text for name, (text, _) in VALUES.items()} | {
        name: json.dumps(text, ensure_ascii=len(name) % 2 == 0) for name, text in STRINGS.items()
    }
    return json_object((name, wrap % text) for name, text in texts.items())


@pytest.mark.parametrize(
    ("output_format", "wrap"),
    [(pb.OUTPUT_FORMAT_JSON, "%s"), (pb.OUTPUT_FORMAT_TERRAFORM, '{"sensitive": false, "value": %s}')],
)
async def test_json_that_a_command_prints(
    start_agent: StartAgent, output_format: pb.OutputFormat.ValueType, wrap: str
) -> None:
    """Every kind of value, in both formats that print JSON."""
    source = output_command("cat document", output_format)
    running = start_agent(run_spec(shell("true"), outputs=[source], files={"document": members(wrap).encode()}))
    assert typed(await outputs_of(running)) == EXPECTED


async def test_a_manifest(start_agent: StartAgent) -> None:
    """Every kind of value, typed and not."""
    entries = ", ".join(
        json_object([("name", json.dumps(name)), ("value", text)]) for name, (text, _) in VALUES.items()
    )
    source = pb.OutputSource(manifest=pb.ManifestSource(path="m"))
    running = start_agent(run_spec(shell("true"), outputs=[source], files={"m": f"[{entries}]".encode()}))
    assert typed(await outputs_of(running)) == {name: EXPECTED[name] for name in VALUES}


async def test_porters_strings(start_agent: StartAgent) -> None:
    """Porter prints strings: each is read as the type that the bundle, or else the run, declares."""
    by_bundle = [{"name": f"bundle {name}", "type": kind, "value": text} for name, (text, kind) in VALUES.items()]
    by_run = [{"name": f"run {name}", "type": "string", "value": text} for name, (text, _) in VALUES.items()]
    strings = [{"name": name, "type": "string", "value": text} for name, text in STRINGS.items()]
    running = start_agent(
        run_spec(
            shell("true"),
            outputs=[output_command("cat document", pb.OUTPUT_FORMAT_PORTER)],
            files={"document": json.dumps([*by_bundle, *by_run, *strings]).encode()},
            declare=[pb.OutputDeclaration(name=f"run {name}", type=kind) for name, (_, kind) in VALUES.items()],
        )
    )
    assert typed(await outputs_of(running)) == {
        **{f"{who} {name}": EXPECTED[name] for who in ("bundle", "run") for name in VALUES},
        **{name: EXPECTED[name] for name in STRINGS},
    }


FILES = {
    "every byte": bytes(range(256)),
    "every byte.bin": bytes(range(256)) * 3,
    "nothing": b"",
    "nothing.txt": b"",
    "text": b"a",
    "text.json": b'{ "a": 1.0 }\r\n',
    "newlines": b"\n\r\n\n",
    "a bom": b"\xef\xbb\xbfa",
    "not quite UTF-8": b"a\xed\xa0\x80",
    "nested/deeply/file.tar.gz": b"\x1f\x8b\0",
    ".hidden": b"x",
}


async def test_files(start_agent: StartAgent) -> None:
    """Files come through byte by byte, with and without an extension; only a declaration makes them JSON."""
    spec = run_spec(
        shell("true"),
        outputs=[directory("out")],
        files={f"out/{name}": data for name, data in {**FILES, "declared": b'{ "a": 1.0 }\r\n'}.items()},
        declare=[pb.OutputDeclaration(name="declared", type="object")],
    )
    outputs = typed(await outputs_of(start_agent(spec)))
    assert outputs.pop("declared") == ("object", b'{"a":1.0}')
    assert {name: data for name, (_, data) in outputs.items()} == FILES
    assert {name for name, (kind, _) in outputs.items() if kind == "bytes"} == {
        "every byte",
        "every byte.bin",
        "not quite UTF-8",
        "nested/deeply/file.tar.gz",
    }


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,6})?", fullmatch=True)
documents = st.recursive(
    st.sampled_from(["null", "true", "false"]) | numbers | texts.map(lambda text: json.dumps(text, ensure_ascii=False)),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(texts, inner, max_size=4).map(lambda members: json_object(members.items()))
    ),
    max_leaves=15,
)
"""Compact JSON as text: no parser of ours has a hand in it."""


def kind_of(text: str) -> str:
    """Returns the type that a JSON text obviously has."""
    kinds = {"n": "null", "t": "boolean", "f": "boolean", '"': "string", "[": "array", "{": "object"}
    return kinds.get(text[0], "number")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
async def test_any_json_and_any_bytes(
    tmp_path_factory: pytest.TempPathFactory, authority: trust.Authority, data: st.DataObject
) -> None:
    """Forty of any JSON texts and ten of any bytes a run: compact JSON is unchanged, bytes are too."""
    wanted = data.draw(st.lists(documents, min_size=1, max_size=40), label="documents")
    binaries = data.draw(st.lists(st.binary(max_size=200), max_size=10), label="binaries")
    document = json_object((f"v{index}", text) for index, text in enumerate(wanted))
    files = {f"out/b{index}": content for index, content in enumerate(binaries)}
    spec = run_spec(
        shell("true"),
        outputs=[output_command("cat document", pb.OUTPUT_FORMAT_JSON), directory("out")],
        files={"document": document.encode(), **files},
    )
    running = AgentProcess(root=tmp_path_factory.mktemp("exact"), spec=spec, authority=authority).start()
    try:
        outputs = typed(await outputs_of(running))
    finally:
        running.kill()
    expected: dict[str, Any] = {}
    for index, text in enumerate(wanted):
        kind = kind_of(text)
        expected[f"v{index}"] = (kind, (json.loads(text) if kind == "string" else text).encode())
    assert {name: value for name, value in outputs.items() if name.startswith("v")} == expected
    assert {name: value for name, (_, value) in outputs.items() if name.startswith("b")} == {
        f"b{index}": content for index, content in enumerate(binaries)
    }
    assert {kind for kind, _ in outputs.values()} <= set(OutputType)
