"""Runs that are told to stop, by an annotation or by deletion: at work, before it, after it, while the operator dies.

The command of these tests says when it is told to stop, and takes a moment to let go of what it holds.
"""

from typing import Any

import pytest
from cluster.objects import Json, Objects, condition_of
from cluster.stack import Stack
from cluster.waiting import until

CANCEL = {"outhaul.dev/cancel": "a"}
WORK = "trap 'echo told to stop; sleep 3; echo all is released; exit 1' TERM; echo at work; sleep 300 & wait $!"
SIZE = "$OUTHAUL_PARAMETER_size"
MOVED = f'if test "{SIZE}" = 2; then {WORK}; fi; printf "{SIZE}" > "$OUTHAUL_OUTPUTS/size"'


def service(size: int = 2, install: str = MOVED, uninstall: str = "true", **fields: Any) -> dict[str, Any]:
    """The spec of a service whose installation, at size 2, works until it is told to stop."""
    return {
        "engine": "exec",
        "parameters": {"size": size},
        "commands": {
            "install": [{"name": "move", "command": ["sh", "-c", install]}],
            "uninstall": [{"name": "stop", "command": ["sh", "-c", uninstall]}],
        },
        **fields,
    }


@pytest.fixture
def upgrading(objects: Objects, stack: Stack) -> str:
    """The run of an upgrade that is at work, and would be tried again if it failed."""
    objects.install("service", **service(1, retry={"limit": 9, "backoff": "0s"}))
    objects.ready("service")
    objects.respec("service", parameters={"size": 2})
    run = numbered(objects, 2)
    stack.printed(objects.namespace, run, "at work")
    return run


def numbered(objects: Objects, number: int) -> str:
    """Waits until the service has a run of this number; returns the run's name."""

    def probe(obj: Json) -> str | None:
        action = obj.get("status", {}).get("action", {})
        return action.get("name") if action.get("number") == number else None

    return objects.until("Installation", "service", probe, what=f"it has run {number}")


def assert_cancelled(objects: Objects, stack: Stack, run: str) -> None:
    """The run was stopped in order, nothing follows it, and the outputs are those of the run before."""
    stalled = objects.condition("Installation", "service", "Stalled", "True", "RunFailed")
    assert f"run {run} (upgrade) was cancelled" in stalled["message"]
    assert "all is released" in stack.container_log(objects.namespace, run)
    objects.settle()
    installation = objects.get("Installation", "service")
    assert installation["status"]["action"]["number"] == 2
    assert installation["status"]["lastSucceeded"]["number"] == 1
    shown = condition_of(installation, "OutputsReady")
    assert shown is not None
    assert shown["status"] == "True"
    assert objects.secret("service-outputs") == {"size": b"1"}
    assert objects.records("service")[installation["status"]["lastSucceeded"]["name"]] == "Current"


def test_an_installation_s_run_is_cancelled(objects: Objects, stack: Stack, upgrading: str) -> None:
    """The command may let go of what it holds; nothing is tried again by itself, and a new spec starts a new run."""
    objects.annotate("service", CANCEL)
    ended = objects.ended(upgrading)
    assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Cancelled", "Cancelled")
    assert_cancelled(objects, stack, upgrading)
    objects.respec("service", parameters={"size": 3})
    objects.ready("service")
    assert objects.secret("service-outputs") == {"size": b"3"}


def test_deleting_a_run_cancels_it(objects: Objects, stack: Stack, upgrading: str) -> None:
    """Its pod has its whole grace; the Installation says what happened, and the next run waits for the pod's end."""
    objects.delete("AgentAction", upgrading)
    stack.printed(objects.namespace, upgrading, "told to stop")
    objects.annotate("service", {"outhaul.dev/retry": "at once"})
    objects.respec("service", parameters={"size": 3})
    numbered(objects, 3)
    assert "all is released" in stack.container_log(objects.namespace, upgrading)
    objects.ready("service")
    assert objects.secret("service-outputs") == {"size": b"3"}


def test_a_run_that_was_deleted_is_not_started_again(objects: Objects, stack: Stack, upgrading: str) -> None:
    """Its Installation is stalled, with the outputs of the run before, until a person asks for another."""
    objects.delete("AgentAction", upgrading)
    until(
        lambda: "all is released" in stack.container_log(objects.namespace, upgrading), what="it has let go", timeout=60
    )
    assert_cancelled(objects, stack, upgrading)


def test_a_run_by_hand_is_cancelled(objects: Objects, stack: Stack) -> None:
    """The annotation on the AgentAction itself does it, whatever its value."""
    objects.create("AgentAction", "by-hand", spec={"commands": [{"name": "work", "command": ["sh", "-c", WORK]}]})
    stack.printed(objects.namespace, "by-hand", "at work")
    objects.patch("AgentAction", "by-hand", {"metadata": {"annotations": {"outhaul.dev/cancel": ""}}})
    status = objects.ended("by-hand")["status"]
    assert (status["phase"], status["reason"], status["steps"][0]["exitCode"]) == ("Cancelled", "Cancelled", 1)


def test_no_attempt_follows_once_it_is_cancelled(objects: Objects) -> None:
    """Cancelled in the pause after a failure, an Installation is stalled, and still says what had failed."""
    objects.install("service", **service(install="exit 3", retry={"limit": 9, "backoff": "1h"}))
    objects.condition("Installation", "service", "Reconciling", "True", "RetryScheduled")
    objects.annotate("service", CANCEL)
    stalled = objects.condition("Installation", "service", "Stalled", "True", "RunFailed")
    assert "'move' failed with exit code 3" in stalled["message"]
    objects.settle()
    assert len(objects.runs("service")) == 1


def test_a_run_that_has_not_started_is_cancelled(objects: Objects) -> None:
    """Its pod goes; nothing was installed, so a deletion has nothing to uninstall."""
    objects.create("AgentConfig", "default", spec={"image": "outhaul-does-not-exist"})
    objects.install("service", **service())
    objects.condition("Installation", "service", "Ready", "False", "ImagePullFailed")
    run = numbered(objects, 1)
    objects.annotate("service", CANCEL)
    status = objects.ended(run)["status"]
    assert (status["phase"], status["reason"], status["started"]) == ("Cancelled", "Cancelled", False)
    objects.gone("Pod", run)
    objects.condition("Installation", "service", "Stalled", "True", "RunFailed")
    objects.settle()
    assert len(objects.runs("service")) == 1
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")


def test_what_has_ended_is_not_cancelled(objects: Objects) -> None:
    """Neither a success that is there nor one whose outputs still wait to be stored is taken back."""
    hard = {"count/secrets": str(len(objects.all("Secret")) + 1)}
    objects.limit("none", hard)
    objects.install("service", **service(1))
    objects.condition("Installation", "service", "Ready", "False", "OutputsRefused")
    objects.annotate("service", CANCEL)
    objects.settle()
    objects.delete("ResourceQuota", "none")
    objects.ready("service")
    assert objects.secret("service-outputs") == {"size": b"1"}
    objects.annotate("service", {"outhaul.dev/cancel": "b"})
    objects.settle()
    objects.ready("service")
    assert len(objects.runs("service")) == 1


def test_an_uninstall_is_cancelled(objects: Objects, stack: Stack) -> None:
    """The Installation stays and says so, until a person asks again."""
    objects.install("service", **service(1, uninstall=f"test -e /tmp/never || {{ {WORK}; }}"))
    objects.ready("service")
    objects.delete("Installation", "service")
    stack.printed(objects.namespace, numbered(objects, 2), "at work")
    objects.annotate("service", CANCEL)
    stalled = objects.condition("Installation", "service", "Stalled", "True", "UninstallFailed")
    assert "was cancelled" in stalled["message"]
    objects.annotate("service", {"outhaul.dev/retry": "again"})
    stack.printed(objects.namespace, numbered(objects, 3), "at work")


def test_an_operator_that_starts_later_cancels(objects: Objects, stack: Stack, upgrading: str, alive: None) -> None:
    """What was asked for while there was no operator is done."""
    stack.kill_operator()
    objects.annotate("service", CANCEL)
    stack.start_operator()
    assert_cancelled(objects, stack, upgrading)


def test_a_cancel_outlives_the_operator(objects: Objects, stack: Stack, upgrading: str, alive: None) -> None:
    """Killed while the command lets go of what it holds, the operator learns later how it ended."""
    objects.annotate("service", CANCEL)
    objects.until("Pod", upgrading, lambda one: one["metadata"].get("deletionTimestamp"), what="it is to go")
    stack.kill_operator()
    stack.start_operator()
    assert objects.ended(upgrading)["status"]["phase"] == "Cancelled"
    assert_cancelled(objects, stack, upgrading)
