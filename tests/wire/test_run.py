"""One run from its start to the acknowledgement, over real TLS."""

from collections.abc import Callable

from outhaul_api.vocabulary import ActionPhase, OutputType
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_operator import agentoutputs, agents
from wire.harness import AgentProcess, directory, output_command, run_spec, shell

StartAgent = Callable[..., AgentProcess]


async def test_outputs_reach_the_operator(start_agent: StartAgent) -> None:
    """Outputs of a directory and of a command arrive exact, and the agent ends once they are acknowledged."""
    spec = run_spec(
        shell('printf "a\\n" > "$OUTHAUL_OUTPUTS/file"; printf "\\000\\377" > "$OUTHAUL_OUTPUTS/binary"'),
        outputs=[
            directory("../outputs"),
            output_command(
                """echo '{"n": {"value": 1.0, "type": "number", "sensitive": false}}'""",
                pb.OUTPUT_FORMAT_TERRAFORM,
            ),
        ],
    )
    running = start_agent(spec)
    async with running.connect() as agent:
        state = await running.final(agent)
        assert state.phase is ActionPhase.SUCCEEDED, running.log
        infos = await agent.outputs()
        outputs = [await agent.read(info) for info in infos]
        assert outputs == [
            agentoutputs.Output("binary", OutputType.BYTES, sensitive=True, data=b"\0\xff"),
            agentoutputs.Output("file", OutputType.STRING, sensitive=True, data=b"a\n"),
            agentoutputs.Output("n", OutputType.NUMBER, sensitive=False, data=b"1.0"),
        ]
        await agent.acknowledge(agents.outputs_digest(infos))
    assert await running.wait() == 0
    assert running.termination["acknowledged"] is True
    assert running.termination["phase"] == "PHASE_SUCCEEDED"
