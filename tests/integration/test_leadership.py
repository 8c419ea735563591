"""One operator works, another waits and takes over, whatever becomes of the first: no run is lost or doubled."""

import signal
import threading
from collections.abc import Iterator

import pytest
from cluster import proxy
from cluster.objects import Objects
from cluster.processes import Process
from cluster.proxy import Proxy, Request
from cluster.stack import OPERATOR, OPERATOR_NAMESPACE, Stack
from cluster.waiting import until

pytestmark = pytest.mark.slow

SECOND = "operator-2"
SHORT = ("--lease-seconds", "10")
"""For those who wait until a leader's time is over."""


@pytest.fixture(autouse=True)
def alive(stack: Stack) -> Iterator[None]:
    """Each test begins with an operator that leads and has one beside it, and leaves one operator."""
    stack.kill_operator()
    yield
    for name in (SECOND, OPERATOR):
        stack.kill_operator(name)
    # Under the first one's name, which need not lead.
    stack.control_plane.request("DELETE", lease_path())
    stack.start_operator()


@pytest.fixture
def spoiler(stack: Stack) -> Iterator[Proxy]:
    """A proxy, for one of the two."""
    with Proxy(stack.control_plane) as running:
        yield running


def lease_path() -> str:
    """Where the Lease is."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/outhaul-operator"


def holder(stack: Stack) -> str:
    """Who has the Lease."""
    return str(stack.control_plane.request("GET", lease_path())["spec"]["holderIdentity"])


def both(stack: Stack, *options: str, server: str | None = None) -> tuple[Process, Process]:
    """Starts an operator, which leads, and a second one, which waits."""
    first = stack.start_operator(*options, server=server)
    return first, stack.start_operator(*options, name=SECOND)


def installed(objects: Objects) -> None:
    """Installs something that takes some seconds, and waits until it is under way."""
    text = 'echo it ran; sleep 3; printf up > "$OUTHAUL_OUTPUTS/state"'
    objects.install("service", engine="exec", commands={"install": [{"name": "main", "command": ["sh", "-c", text]}]})
    run = objects.until("Installation", "service", lambda one: one.get("status", {}).get("action"), what="it has a run")
    objects.until("Pod", run["name"], lambda one: one["status"].get("podIP"), what="it runs")


def assert_ran_once(objects: Objects, stack: Stack) -> None:
    """The Installation is ready, after one run with one pod whose command ran once."""
    run = objects.ready("service")["status"]["action"]["name"]
    assert objects.names("AgentAction") == [run]
    assert objects.get("AgentAction", run)["status"]["phase"] == "Succeeded"
    assert stack.container_log(objects.namespace, run).count("it ran") == 1
    assert list(stack.container_logs(objects.namespace)) == [run]
    assert objects.records("service") == {run: "Current"}
    assert objects.secret("service-outputs") == {"state": b"up"}


def status_of(process: Process) -> int | None:
    """Waits until a process has ended; its exit status."""
    assert process.wait(60), f"{process.name} still runs"
    return process.finish()


def test_one_leads_and_one_waits(stack: Stack) -> None:
    """Of two operators one leads; the other is alive and ready, does not lead, and asks for nothing but the Lease."""
    both(stack)
    assert holder(stack) == OPERATOR
    assert stack.operator_leads()
    assert not stack.operator_leads(SECOND)
    assert stack.operator_answer("/healthz", SECOND) == (200, "ok\n")
    assert stack.operator_answer("/readyz", SECOND) == (200, "ok\n")
    asked = {
        line.split("{")[1].split("}")[0]
        for line in stack.operator_answer("/metrics", SECOND)[1].splitlines()
        if line.startswith("outhaul_api_requests_total{")
    }
    assert asked == {'code="200",resource="leases",verb="get"'}


def test_told_to_stop_it_hands_over(objects: Objects, stack: Stack) -> None:
    """SIGTERM ends a leader in order, with status 0; the next one leads long before the Lease would have ended."""
    first, _ = both(stack)
    installed(objects)
    first.signal(signal.SIGTERM)
    assert status_of(first) == 0
    until(lambda: stack.operator_leads(SECOND), what="the second leads", timeout=30)
    assert holder(stack) == SECOND
    assert_ran_once(objects, stack)


def test_who_waits_stops_in_order(stack: Stack) -> None:
    """SIGTERM ends also an operator that waits, with status 0, and leaves the Lease to whoever has it."""
    _, second = both(stack)
    second.signal(signal.SIGTERM)
    assert status_of(second) == 0
    assert holder(stack) == OPERATOR


def test_killed_it_is_succeeded(objects: Objects, stack: Stack) -> None:
    """Where a leader is gone without a word, the other one leads once the Lease is over, and finishes the run."""
    both(stack, *SHORT)
    installed(objects)
    stack.kill_operator()
    until(lambda: stack.operator_leads(SECOND), what="the second leads", timeout=60)
    assert_ran_once(objects, stack)


def test_cut_off_it_ends(objects: Objects, stack: Stack, spoiler: Proxy) -> None:
    """A leader that does not reach the API server ends before its Lease does, so that there are never two."""
    first, _ = both(stack, *SHORT, server=spoiler.url)
    installed(objects)
    spoiler.silence()
    assert status_of(first) == 1
    until(lambda: stack.operator_leads(SECOND), what="the second leads", timeout=60)
    assert_ran_once(objects, stack)


@pytest.mark.parametrize(
    ("verb", "resource"), [("create", "pods"), ("patch", "agentactions/status"), ("patch", "installations/status")]
)
def test_stopped_and_back_it_does_no_harm(
    objects: Objects, stack: Stack, spoiler: Proxy, verb: str, resource: str
) -> None:
    """A leader that stands still in the middle of a request, which arrives when another one has done all the work.

    It changes nothing any more, and ends.
    """
    first, _ = both(stack, *SHORT, server=spoiler.url)
    late = threading.Event()

    def stand_still() -> None:
        first.signal(signal.SIGSTOP)
        objects.ready("service")
        late.set()

    def ours(request: Request) -> bool:
        return (request.verb, request.resource, request.namespace) == (verb, resource, objects.namespace)

    spoiler.fault = proxy.where(ours, proxy.around(before=stand_still), times=1)
    installed(objects)
    assert late.wait(90)
    first.signal(signal.SIGCONT)
    assert status_of(first) == 1
    objects.settle()
    assert_ran_once(objects, stack)
