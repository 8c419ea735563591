"""The operator comes back, and what it knew is not there any more: a run in flight still ends with its outputs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.controlplane import ControlPlane
from cluster.objects import Objects, script
from cluster.stack import OPERATOR_NAMESPACE, Stack, await_kinds
from outhaul_api.agentaction import AgentAction
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_operator import launches, names, ownership
from outhaul_operator import settings as settings_module
from outhaul_operator.authorities import Authorities
from outhaul_operator.cluster import Cluster
from outhaul_operator.context import Context
from outhaul_operator.view import View

pytestmark = pytest.mark.usefixtures("alive")

CRDS = Path(__file__).parents[2] / "crds"
HELD = "the run has ended: succeeded, 1 outputs"


@asynccontextmanager
async def an_operator(control_plane: ControlPlane, namespace: str) -> AsyncIterator[Context]:
    """What an operator has that has just started: it has seen nothing."""
    cluster = await Cluster.connect(str(control_plane.kubeconfig))
    view, settings = View(lambda *_: None), settings_module.parse(["--operator-namespace", namespace])
    yield Context(cluster, view, settings, Authorities(cluster, view, settings), b"")
    await cluster.close()


def slow() -> dict[str, Any]:
    """One that takes a while, and leaves one output."""
    return script('echo it began; sleep 4; printf up > "$OUTHAUL_OUTPUTS/state"')


def begun(objects: Objects, stack: Stack, name: str) -> str:
    """Waits until the commands of an Installation's run are at work; returns the run's name."""
    action = objects.until("Installation", name, lambda one: one.get("status", {}).get("action"), what="it has a run")
    run = str(action["name"])
    stack.printed(objects.namespace, run, "it began")
    objects.condition("AgentAction", run, "Started")
    return run


def test_away_for_longer_than_a_run_may_take(objects: Objects, stack: Stack) -> None:
    """An agent that has held its outputs for days is asked for them: its linger counts, not the run's own time."""
    objects.install("service", **slow())
    run = begun(objects, stack, "service")
    stack.kill_operator()
    stack.printed(objects.namespace, run, HELD)
    objects.patch("AgentAction", f"{run}/status", {"status": {"startedAt": "2020-01-01T00:00:00Z"}})
    stack.start_operator()
    objects.ready("service")
    assert objects.secret("service-outputs") == {"state": b"up"}


def test_a_run_in_flight_needs_no_agent_config(objects: Objects, stack: Stack) -> None:
    """One whose AgentConfig was deleted meanwhile is followed to its end by an operator that starts."""
    objects.create("AgentConfig", "mine", spec={"image": "mine/outhaul-agent"})
    objects.install("service", agentConfig={"name": "mine"}, **slow())
    run = begun(objects, stack, "service")
    stack.kill_operator()
    objects.delete("AgentConfig", "mine")
    stack.start_operator()
    assert objects.ended(run)["status"]["phase"] == "Succeeded"
    assert objects.secret("service-outputs") == {"state": b"up"}
    assert objects.get("InstallationOutput", run)["status"]["provenance"]["image"] == "mine/outhaul-agent"


def test_a_drained_agent_waits_for_the_operator(objects: Objects, stack: Stack) -> None:
    """A pod that is deleted while it holds outputs, and nobody is there, keeps them for its grace."""
    objects.install("service", **slow())
    run = begun(objects, stack, "service")
    stack.kill_operator()
    stack.printed(objects.namespace, run, HELD)
    objects.delete("Pod", run)
    objects.until("Pod", run, lambda one: one["metadata"].get("deletionTimestamp"), what="it is to go")
    stack.start_operator()
    objects.ready("service")
    assert objects.secret("service-outputs") == {"state": b"up"}


def test_an_installation_that_cannot_be_read_any_more(objects: Objects, stack: Stack) -> None:
    """What its run has brought is stored; the Secret for applications follows once the spec is mended."""
    objects.install("service", **slow())
    run = begun(objects, stack, "service")
    deep: object = 1
    for _ in range(150):
        deep = [deep]
    objects.respec("service", parameters={"a": deep})
    status = objects.ended(run)["status"]
    assert (status["phase"], status["output"]) == ("Succeeded", run)
    collected = objects.condition("AgentAction", run, "OutputsCollected", "True", "InvalidSpec")
    assert "spec.parameters" in collected["message"]
    assert objects.secret(f"{run}-outputs") == {"state": b"up"}
    assert objects.find("Secret", "service-outputs") is None
    objects.condition("Installation", "service", "Stalled", "True", "InvalidSpec")
    objects.respec("service", parameters=None)
    objects.ready("service")
    assert objects.secret("service-outputs") == {"state": b"up"}


def test_a_record_without_outputs_that_was_deleted(objects: Objects) -> None:
    """The Installation still says where it stands."""
    objects.install("service", **script("true"))
    run = objects.ready("service")["status"]["action"]["name"]
    objects.delete("InstallationOutput", run)
    objects.gone("InstallationOutput", run)
    objects.respec("service", suspend=True, parameters={"round": 2})
    objects.condition("Installation", "service", "Ready", "False", "Suspended")


async def test_a_pod_that_came_and_went_unnoticed(objects: Objects, stack: Stack) -> None:
    """A run's pod is made once, also where the operator died right after that, and somebody then deleted the pod."""
    stack.kill_operator()
    command = {"name": "main", "command": ["sh", "-c", "echo it began; sleep 600"]}
    made = objects.create("AgentAction", "run", spec={"commands": [command]})
    async with an_operator(stack.control_plane, OPERATOR_NAMESPACE) as context:
        await context.authorities.open()
        await launches.launch(context, AgentAction.model_validate(made), AgentConfigSpec(), "outhaul-agent")
    await asyncio.to_thread(stack.printed, objects.namespace, "run", "it began")
    stack.control_plane.kubectl("delete", "pod", "run", "-n", objects.namespace, "--force", "--grace-period=0")
    stack.start_operator()
    status = (await asyncio.to_thread(objects.ended, "run"))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "PodLost")
    assert objects.find("Pod", "run") is None
    assert stack.container_log(objects.namespace, "run").count("it began") == 1


@pytest.fixture
def kinds(control_plane: ControlPlane) -> None:
    """Our kinds are known."""
    control_plane.kubectl("apply", "-k", str(CRDS))
    await_kinds(control_plane)


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("phase", ["Running", "Succeeded", None])
async def test_a_pod_that_was_not_seen_is_not_taken_for_none(
    control_plane: ControlPlane, namespace: str, phase: str | None
) -> None:
    """A run is taken back only where the API server says that its pod has started nothing."""
    home = Objects(control_plane, namespace)
    home.create("AgentAction", "run", spec={"commands": [{"name": "main", "command": ["true"]}]})
    action = AgentAction.model_validate(home.patch("AgentAction", "run/status", {"status": {"phase": "Pending"}}))
    made = ownership.of_run(action, names.pod_name("run"))
    if phase is not None:
        home.create("Pod", "run", metadata=made, spec={"containers": [{"name": "agent", "image": "none"}]})
        home.patch("Pod", "run/status", {"status": {"phase": phase}})
    async with an_operator(control_plane, namespace) as context:
        assert await launches.take_back(context, action) is (phase is None)
    assert (home.find("AgentAction", "run") is None) is (phase is None)
    assert (home.find("Pod", "run") is None) is (phase is None)
