"""What the API server keeps out: its words are told while it does, and once it takes it the run goes on, once."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cluster import ports, webhooks
from cluster.errors import RequestFailed
from cluster.objects import Json, Objects
from cluster.stack import Stack
from cluster.waiting import until

pytestmark = pytest.mark.versions

COMMAND = {"name": "main", "command": ["sh", "-c", 'echo it ran; printf up > "$OUTHAUL_OUTPUTS/state"']}
SPEC: dict[str, Any] = {"engine": "exec", "commands": {"install": [COMMAND]}}
CREATE = {"operations": ["CREATE"], "apiVersions": ["*"], "scope": "Namespaced"}
PODS = {**CREATE, "apiGroups": [""], "resources": ["pods"]}
OUTPUTS = {**CREATE, "apiGroups": ["outhaul.dev"], "resources": ["installationoutputs"]}


def waits(objects: Objects, reason: str, *words: str) -> str:
    """Waits until the service and its run say that the run waits, in these words; returns the run's name."""

    def said(obj: Json) -> bool:
        ready: Json = next((one for one in obj.get("status", {}).get("conditions", []) if one["type"] == "Ready"), {})
        return ready.get("reason") == reason and all(one in ready["message"] for one in words)

    objects.until("Installation", "service", said, what=f"it says {reason}, {words}")
    (run,) = objects.names("AgentAction")
    message = objects.said("AgentAction", run, "Warning", reason)
    assert all(one in message for one in words)
    return run


def assert_ran_once(objects: Objects, stack: Stack, run: str | None = None) -> None:
    """The service is ready by one run that ran once, and there is nothing else of it."""
    name = objects.ready("service", timeout=90)["status"]["action"]["name"]
    assert run in {None, name}
    assert objects.names("AgentAction") == objects.names("Pod") == [name]
    assert stack.container_log(objects.namespace, name).count("it ran") == 1
    assert objects.records("service") == {name: "Current"}


@pytest.fixture
def webhook(stack: Stack, objects: Objects) -> Iterator[Any]:
    """Has a webhook asked before something is created in the namespace: `webhook(url, what)` returns how to let it go.

    ConfigMaps are among it, which nobody creates: by them it shows whether the API server asks already.
    """
    with ExitStack() as open_ones:

        def register(url: str, what: Json) -> ExitStack:
            rules = [what, {**CREATE, "apiGroups": [""], "resources": ["configmaps"]}]
            open_ones.enter_context(webhooks.registered(stack.control_plane, objects.namespace, url, rules))
            until(refused, what="the API server asks the webhook")
            return open_ones

        def refused() -> bool:
            try:
                objects.create("ConfigMap", f"probe-{uuid.uuid4().hex[:10]}")
            except RequestFailed as error:
                return "webhook" in str(error)
            return False

        yield register


def test_a_webhook_that_refuses_pods(objects: Objects, stack: Stack, webhook: Any) -> None:
    """Its words are told, also where it gives no status of its own; once it is gone the run starts."""
    no = {"allowed": False, "status": {"message": "no pods on mondays"}}
    with webhooks.serving(stack.control_plane, lambda _: no) as url:
        registered = webhook(url, PODS)
        objects.install("service", **SPEC)
        run = waits(objects, "PodRefused", "admission webhook", "no pods on mondays")
        assert objects.names("Pod") == []
        registered.close()
    assert_ran_once(objects, stack, run)


def test_a_webhook_that_does_not_answer(objects: Objects, stack: Stack, webhook: Any) -> None:
    """An admission webhook that is down keeps a run from starting; that is told, and given up after `startTimeout`."""
    registered = webhook(f"https://127.0.0.1:{ports.free(1)[0]}/", PODS)
    objects.create("AgentConfig", "default", spec={"startTimeout": "6s"})
    objects.install("service", **SPEC)
    run = waits(objects, "PodRefused", "failed calling webhook")
    status = objects.ended(run)["status"]
    assert (status["phase"], status["reason"], status["started"]) == ("Failed", "PodRefused", False)
    registered.close()
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    until(lambda: objects.left() == [], what="what the run had is gone", timeout=60)


def test_a_webhook_that_refuses_outputs(objects: Objects, stack: Stack, webhook: Any) -> None:
    """The agent holds its outputs until the policy is mended: they are not given up as if they were bad."""
    allowed: list[bool] = []
    no = {"status": {"message": "no records yet"}}
    with webhooks.serving(stack.control_plane, lambda _: {"allowed": bool(allowed), **no}) as url:
        webhook(url, OUTPUTS)
        objects.install("service", **SPEC)
        run = waits(objects, "OutputsRefused", "no records yet")
        allowed.append(True)
        assert_ran_once(objects, stack, run)
    assert objects.secret("service-outputs") == {"state": b"up"}


def test_a_limit_range_that_no_pod_meets(objects: Objects, stack: Stack) -> None:
    """Its words are told, and the run starts once it is mended."""
    limit = {"type": "Container", "max": {"memory": "16Mi"}}
    objects.create("LimitRange", "small", spec={"limits": [limit]})
    container = {"name": "agent", "resources": {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}}
    objects.create("AgentConfig", "default", spec={"podTemplate": {"spec": {"containers": [container]}}})
    objects.install("service", **SPEC)
    run = waits(objects, "PodRefused", "maximum memory usage per Container is 16Mi, but limit is 64Mi")
    objects.delete("LimitRange", "small")
    assert_ran_once(objects, stack, run)


def test_a_quota_that_admits_no_run(objects: Objects, stack: Stack) -> None:
    """An Installation whose run is kept out waits, and says whose words those are; then it is installed."""
    hard = {"count/agentactions.outhaul.dev": "0"}
    objects.limit("none", hard)
    objects.install("service", **SPEC)
    waiting = objects.condition("Installation", "service", "Reconciling", "True", "PodRefused")
    assert "exceeded quota: none" in waiting["message"]
    assert objects.names("AgentAction") == []
    objects.delete("ResourceQuota", "none")
    assert_ran_once(objects, stack)
