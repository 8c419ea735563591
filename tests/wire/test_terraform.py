"""Real Terraform's outputs, from a module's literals to the operator: exactly what Terraform prints."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from outhaul_api.vocabulary import ActionPhase
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import trust
from outhaul_operator.agentoutputs import Output
from wire.harness import AgentProcess, run_spec

TERRAFORM = Path(__file__).parents[2] / "samples" / "terraform" / "terraform"

LITERALS = {
    "two_to_the_seventieth": "1180591620717411303424",
    "below_int64": "-9223372036854775809",
    "a_tenth": "0.1",
    "a_third": "1 / 3",
    "a_decimal": "1.0",
    "an_exponent": "1E5",
    "minus_zero": "-0",
    "beyond_doubles": "1e400",
    "below_doubles": "1e-400",
    "computed": "terraform_data.computed.output",
    "true": "true",
    "no_text": '""',
    "newlines": r'"a\r\nb\n\n"',
    "controls": r'"\u0000\u001b\u2028<&>é😀"',
    "looks_like_json": '"1.0"',
    "no_items": "[]",
    "nested": r'{ z = 1180591620717411303424, a = [0.1, 1.0, null, "<é>"], "b.c/d" = {} }',
}
"""By name: what the module says."""

EXACT = {
    "two_to_the_seventieth": b"1180591620717411303424",
    "below_int64": b"-9223372036854775809",
    "a_tenth": b"0.1",
    "a_decimal": b"1",  # Terraform's own doing: it prints no trailing zero
    "an_exponent": b"100000",
    "minus_zero": b"0",
    "beyond_doubles": b"1" + b"0" * 400,
    "below_doubles": b"0." + b"0" * 399 + b"1",
    "computed": b"1180591620717411303424",
    "true": b"true",
    "no_text": b"",
    "newlines": b"a\r\nb\n\n",
    "controls": "\0\x1b\u2028<&>é😀".encode(),
    "looks_like_json": b"1.0",
    "no_items": b"[]",
    "nested": '{"a":[0.1,1,null,"<é>"],"b.c/d":{},"z":1180591620717411303424}'.encode(),
}
"""By name: what the operator has to get."""

MODULE = "\n".join(
    [
        'resource "terraform_data" "computed" { input = 1180591620717411303424 }',
        *(f'output "{name}" {{ value = {literal} }}' for name, literal in LITERALS.items()),
        'output "secret" {\n value = { user = "u", password = "p", port = 5432 }\n sensitive = true\n}',
        'output "nothing" { value = null }',
    ]
)


def terraform(*arguments: str, name: str = "") -> pb.Command:
    """Returns a step that runs Terraform."""
    return pb.Command(name=name or arguments[0], argv=[str(TERRAFORM), *arguments])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def applied(
    tmp_path_factory: pytest.TempPathFactory, authority: trust.Authority
) -> tuple[dict[str, Output], str]:
    """The outputs that the operator gets of the module, and what Terraform prints."""
    spec = run_spec(
        terraform("init", "-input=false", "-no-color"),
        terraform("apply", "-input=false", "-auto-approve", "-no-color"),
        files={"main.tf": MODULE.encode()},
        outputs=[
            pb.OutputSource(
                command=pb.CommandSource(
                    argv=[str(TERRAFORM), "output", "-json", "-no-color"], format=pb.OUTPUT_FORMAT_TERRAFORM
                )
            )
        ],
        declare=[pb.OutputDeclaration(name="a_tenth", type="number", required=True)],
        non_sensitive=["*"],
    )
    environment = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    root = tmp_path_factory.mktemp("terraform")
    running = AgentProcess(root=root, spec=spec, authority=authority, environment=environment).start()
    try:
        async with running.connect() as agent:
            state = await running.final(agent)
            assert state.phase is ActionPhase.SUCCEEDED, running.log
            outputs = [await agent.read(info) for info in await agent.outputs()]
    finally:
        running.kill()
    command = [str(TERRAFORM), "output", "-json"]
    printed = await asyncio.to_thread(
        subprocess.run, command, cwd=running.work_dir, env=environment, capture_output=True, check=True
    )
    return {output.name: output for output in outputs}, printed.stdout.decode()


def test_values_are_exact(applied: tuple[dict[str, Output], str]) -> None:
    """Each literal comes through; where Terraform writes a number otherwise, as Terraform writes it."""
    outputs, _ = applied
    assert {name: output.data for name, output in outputs.items() if name in EXACT} == EXACT


def test_numbers_are_as_terraform_prints_them(applied: tuple[dict[str, Output], str]) -> None:
    """Digit by digit, those that no double can hold among them."""
    outputs, printed = applied
    found = re.findall(
        r'^  "(\w+)": \{\n    "sensitive": \w+,\n    "type": "number",\n    "value": (.*)$', printed, re.MULTILINE
    )
    assert {name: text.encode() for name, text in found} == {
        name: output.data for name, output in outputs.items() if output.type == "number"
    }
    assert len(found) == 10


def test_secrets_are_terraforms(applied: tuple[dict[str, Output], str]) -> None:
    """What the module calls sensitive is, as a whole; an allow-list for everything does not change it."""
    outputs, printed = applied
    flags = {name: entry["sensitive"] for name, entry in json.loads(printed).items()}
    assert {name: output.sensitive for name, output in outputs.items()} == flags
    assert [name for name, sensitive in flags.items() if sensitive] == ["secret"]


def test_an_output_that_is_null_is_none(applied: tuple[dict[str, Output], str]) -> None:
    """Terraform leaves it out, so there is nothing to haul."""
    outputs, _ = applied
    assert set(outputs) == {*LITERALS, "secret"}
