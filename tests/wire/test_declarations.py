"""Declarations from the run's spec to what the operator is told and given."""

from collections.abc import Callable
from typing import Any

import pytest
from outhaul_api.vocabulary import ActionPhase, Reason
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator.agentoutputs import Output
from outhaul_operator.agentstates import RunState
from wire.harness import AgentProcess, directory, output_command, run_spec, shell

StartAgent = Callable[..., AgentProcess]


def declare(name: str, **fields: Any) -> pb.OutputDeclaration:
    """Returns a declaration."""
    return pb.OutputDeclaration(name=name, **fields)


async def ended(running: AgentProcess) -> tuple[RunState, dict[str, Output]]:
    """Returns the final state and all outputs by name."""
    async with running.connect() as agent:
        state = await running.final(agent)
        outputs = [await agent.read(info) for info in await agent.outputs()]
    return state, {output.name: output for output in outputs}


async def test_types_secrets_and_defaults(start_agent: StartAgent) -> None:
    """Files get their declared types, the allow-list says what is no secret, a default stands in."""
    spec = run_spec(
        shell("mkdir -p out/net; printf 5432 > out/port; printf h > out/net/host; printf p > out/password"),
        outputs=[directory("out")],
        declare=[
            declare("port", type="number", required=True, sensitive=False),
            declare("region", default_json='"eu"'),
            declare("absent"),
        ],
        non_sensitive=["net/*"],
    )
    state, outputs = await ended(start_agent(spec))
    assert state.phase is ActionPhase.SUCCEEDED, state.message
    assert {name: (output.type, output.sensitive, output.data) for name, output in outputs.items()} == {
        "port": ("number", False, b"5432"),
        "net/host": ("string", False, b"h"),
        "password": ("string", True, b"p"),
        "region": ("string", False, b"eu"),
    }


async def test_the_sources_own_flag_stands(start_agent: StartAgent) -> None:
    """What Terraform calls a secret stays one, whatever the run's declarations and allow-list say."""
    document = b'{"secret":{"sensitive":true,"value":{"a":1}},"open":{"sensitive":false,"value":1}}'
    spec = run_spec(
        shell("true"),
        outputs=[output_command("cat document", pb.OUTPUT_FORMAT_TERRAFORM)],
        files={"document": document},
        declare=[declare("secret", sensitive=False), declare("open", sensitive=True)],
        non_sensitive=["*"],
    )
    _, outputs = await ended(start_agent(spec))
    assert {name: output.sensitive for name, output in outputs.items()} == {"secret": True, "open": True}


async def test_a_value_of_another_type_and_a_missing_one(start_agent: StartAgent) -> None:
    """The run fails and names both; the values are nowhere in the state or the log; the rest is kept."""
    spec = run_spec(
        shell("mkdir out; printf hunter2 > out/port; printf 1 > out/good"),
        outputs=[directory("out"), output_command("printf x", pb.OUTPUT_FORMAT_TEXT, "text")],
        declare=[declare("port", type="number"), declare("host", required=True)],
    )
    running = start_agent(spec)
    state, outputs = await ended(running)
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.BAD_OUTPUT)
    assert state.message == (
        "output 'port' of directory 'out' is declared as number, but it is of type string: "
        "it is no JSON at line 1, column 1; "
        "required output 'host' is missing; it was looked for in directory 'out', output command '/bin/sh'"
    )
    assert sorted(outputs) == ["good", "text"]
    assert "hunter2" not in running.log


async def test_a_failed_command_is_what_is_said(start_agent: StartAgent) -> None:
    """Declarations add nothing to a run that failed anyway, but what they refuse is not kept either."""
    spec = run_spec(
        shell("mkdir out; printf one > out/bad; printf 1 > out/good; exit 3"),
        outputs=[directory("out")],
        declare=[
            declare("bad", type="number"),
            declare("good", type="number"),
            declare("missing", required=True),
            declare("default", default_json="1"),
        ],
    )
    state, outputs = await ended(start_agent(spec))
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.COMMAND_FAILED)
    assert "declared" not in state.message
    assert "missing" not in state.message
    assert {name: output.data for name, output in outputs.items()} == {"good": b"1"}


async def test_a_command_that_may_fail_excuses_nothing(start_agent: StartAgent) -> None:
    """The run has not failed, so a required output is missed."""
    spec = run_spec(shell("exit 3", continue_on_error=True), declare=[declare("x", required=True)])
    state, _ = await ended(start_agent(spec))
    assert (state.phase, state.reason) == (ActionPhase.FAILED, Reason.BAD_OUTPUT)
    assert "required output 'x' is missing; it was looked for in no source, since the run has none" in state.message


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        (declare("x", type="int"), "output 'x' is declared as 'int', which this agent does not know"),
        (declare("x", default_json="hunter2"), "the default of output 'x' cannot be used: it is no JSON"),
    ],
)
async def test_a_bad_declaration_is_said_before_anything_runs(
    start_agent: StartAgent, declaration: pb.OutputDeclaration, words: str
) -> None:
    """The agent ends at once, and no command has started."""
    running = start_agent(run_spec(shell("echo 1 > ran"), declare=[declaration]))
    assert await running.wait() == 1
    assert running.termination["reason"] == Reason.INVALID_SPEC
    assert words in running.termination["message"]
    assert "hunter2" not in running.log + running.termination["message"]
    assert not (running.work_dir / "ran").exists()


async def test_a_run_with_nothing_to_do(start_agent: StartAgent) -> None:
    """Neither commands nor outputs: the agent says so and ends."""
    running = start_agent(run_spec())
    assert await running.wait() == 1
    assert running.termination["reason"] == Reason.INVALID_SPEC
    assert "neither commands nor outputs" in running.termination["message"]
