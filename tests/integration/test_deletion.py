"""Deletion at any moment, by force, and with the namespace: each ends, and says what it leaves behind."""

from typing import Any

import pytest
from cluster.objects import Json, Objects
from cluster.stack import Stack
from cluster.waiting import until

pytestmark = pytest.mark.slow

FORCE = {"outhaul.dev/force-delete": "true"}


def step(script: str) -> list[Json]:
    """One command, a shell script."""
    return [{"name": "main", "command": ["sh", "-c", script]}]


def service(install: str = "true", uninstall: str = "true", **fields: Any) -> Json:
    """The spec of an Installation of two scripts, each of which says in the log that it ran."""
    commands = {"install": step(f"echo it installs; {install}"), "uninstall": step(f"echo it uninstalls; {uninstall}")}
    return {"engine": "exec", "commands": commands, **fields}


def said(stack: Stack, objects: Objects, words: str) -> int:
    """How many lines of all logs of the namespace's pods are these words."""
    return sum(log.splitlines().count(words) for log in stack.container_logs(objects.namespace).values())


def begins(stack: Stack, objects: Objects, words: str, times: int = 1) -> None:
    """Waits until some pods have said something so many times."""
    until(lambda: said(stack, objects, words) == times, what=f"{words!r} in the logs", timeout=60)


def stalls(objects: Objects, name: str = "service") -> None:
    """Deletes an Installation whose uninstall fails, and waits until it has."""
    objects.delete("Installation", name)
    objects.condition("Installation", name, "Stalled", "True", "UninstallFailed")


# -- at any moment


def test_during_an_install(objects: Objects, stack: Stack) -> None:
    """The install comes to its end, then it is uninstalled, each once."""
    objects.install("service", **service("sleep 3"))
    begins(stack, objects, "it installs")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    assert (said(stack, objects, "it installs"), said(stack, objects, "it uninstalls")) == (1, 1)


def test_during_an_upgrade(objects: Objects, stack: Stack) -> None:
    """The upgrade comes to its end, then it is uninstalled by the newest spec, once."""
    objects.install("service", **service())
    objects.ready("service")
    objects.respec("service", commands=service("sleep 3", "echo by the newest spec")["commands"])
    begins(stack, objects, "it installs", 2)
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    assert (said(stack, objects, "it uninstalls"), said(stack, objects, "by the newest spec")) == (1, 1)


def test_while_an_upgrade_waits_for_its_source(objects: Objects, stack: Stack) -> None:
    """An upgrade whose pod cannot start makes way for the uninstall, which has a copy of the source."""
    objects.create("ConfigMap", "code", data={"word": "from the source"})
    objects.install("service", **service(uninstall="cat word", source={"configMapRef": {"name": "code"}}))
    objects.ready("service")
    objects.delete("ConfigMap", "code")
    objects.respec("service", parameters={"changed": True})
    objects.condition("Installation", "service", "Ready", "False", "VolumeNotReady")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    logs = stack.container_logs(objects.namespace).values()
    assert sum("from the source" in log for log in logs) == 1
    assert said(stack, objects, "it installs") == 1


def test_while_it_waits_for_others(objects: Objects) -> None:
    """What has never run, since something is missing that it needs, goes at once."""
    objects.install("service", **service(dependsOn=["missing"]))
    objects.condition("Installation", "service", "DependenciesReady", "False")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    assert objects.all("AgentAction") == []


def test_after_an_install_that_had_nothing_to_run(objects: Objects, stack: Stack) -> None:
    """Where no command has started, since the source is nowhere, there is nothing to uninstall or to wait for."""
    archive = {"url": "http://127.0.0.1:1/code.tar.gz", "sha256": "0" * 64}
    objects.install("service", **service(source={"archive": archive}))
    objects.condition("Installation", "service", "Stalled", "True", "RunFailed")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    assert (said(stack, objects, "it installs"), said(stack, objects, "it uninstalls")) == (0, 0)


def test_between_two_tries(objects: Objects, stack: Stack) -> None:
    """A failed install that would be tried again later is uninstalled now instead."""
    objects.install("service", **service("exit 3", retry={"limit": 3, "backoff": "1h"}))
    objects.ran("service", 1)
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    assert (said(stack, objects, "it installs"), said(stack, objects, "it uninstalls")) == (1, 1)


def test_in_the_foreground(objects: Objects, stack: Stack) -> None:
    """Where Kubernetes first deletes what an Installation owns, as some tools ask, it is uninstalled all the same."""
    objects.install("service", **service())
    objects.ready("service")
    path = f"/apis/outhaul.dev/v1alpha1/namespaces/{objects.namespace}/installations/service"
    objects.control_plane.request("DELETE", path, {"propagationPolicy": "Foreground"})
    objects.gone("Installation", "service")
    assert (said(stack, objects, "it installs"), said(stack, objects, "it uninstalls")) == (1, 1)
    until(lambda: not objects.left(), what="nothing is left", timeout=90)


# -- by force


def left_behind(objects: Objects, name: str = "service") -> str:
    """Waits until an Installation is gone; returns what it said of what it leaves behind."""
    objects.gone("Installation", name)
    return objects.said("Installation", name, "Warning", "LeftBehind")


def test_force_ends_a_failing_uninstall(objects: Objects, stack: Stack) -> None:
    """With the annotation an Installation goes that cannot be uninstalled, and names what may still be there."""
    objects.install("service", **service(uninstall="exit 3"))
    objects.ready("service")
    stalls(objects)
    run = objects.get("Installation", "service")["status"]["action"]["name"]
    objects.annotate("service", FORCE)
    assert f"what run {run} (uninstall) and those before it have installed may still be there" in left_behind(objects)
    assert said(stack, objects, "it uninstalls") == 1
    until(lambda: not objects.left(), what="nothing is left", timeout=90)


def test_force_does_not_wait(objects: Objects) -> None:
    """Neither for who uses it, nor for an AgentConfig that is gone."""
    objects.create("AgentConfig", "special", spec={})
    objects.install("service", **service(agentConfig={"name": "special"}))
    objects.install("giver", **service('printf x > "$OUTHAUL_OUTPUTS/x"'))
    objects.install("taker", **service(inputs=[{"name": "x", "output": {"installation": "giver", "name": "x"}}]))
    for name in ("service", "taker"):
        objects.ready(name)
    objects.delete("AgentConfig", "special")
    for name, reason in (("service", "AgentConfigNotFound"), ("giver", "InUse")):
        objects.delete("Installation", name)
        objects.condition("Installation", name, "Ready", "False", reason)
        objects.annotate(name, FORCE)
        assert "(install) and those before it" in left_behind(objects, name)


def test_force_tells_a_run_under_way_to_stop(objects: Objects, stack: Stack) -> None:
    """It does not wait for the run; its command is told to stop, and has its grace, as the pod goes."""
    wait = "trap 'echo it was told to stop; sleep 1; echo and had its grace; exit 1' TERM; sleep 600 & wait"
    objects.install("service", **service(uninstall=wait))
    objects.ready("service")
    objects.delete("Installation", "service")
    begins(stack, objects, "it uninstalls")
    objects.annotate("service", FORCE)
    assert "it is under way, and told to stop" in left_behind(objects)
    begins(stack, objects, "it was told to stop")
    begins(stack, objects, "and had its grace")
    until(lambda: not objects.left(), what="nothing is left", timeout=90)


def test_force_alone_deletes_nothing(objects: Objects) -> None:
    """The annotation on an Installation that nobody deletes changes nothing, and none but `true` counts."""
    objects.install("service", **service(uninstall="exit 3"))
    objects.annotate("service", FORCE)
    objects.ready("service")
    objects.annotate("service", {"outhaul.dev/force-delete": "yes"})
    stalls(objects)
    objects.settle()
    assert objects.find("Installation", "service") is not None


def test_an_orphan_says_what_it_leaves(objects: Objects) -> None:
    """A policy that is changed to Orphan lets go of what cannot be uninstalled, and that is no warning."""
    objects.install("service", **service(uninstall="exit 3"))
    objects.ready("service")
    stalls(objects)
    objects.respec("service", deletionPolicy="Orphan")
    objects.gone("Installation", "service")
    message = objects.said("Installation", "service", "Normal", "LeftBehind")
    assert "deletionPolicy Orphan" in message
    assert "may still be there" in message


def test_an_orphan_waits_for_its_run(objects: Objects, stack: Stack) -> None:
    """An Installation that was an orphan from the start goes once its run has ended, and says what it leaves."""
    objects.install("service", deletionPolicy="Orphan", **service("sleep 4; echo it has installed"))
    begins(stack, objects, "it installs")
    objects.delete("Installation", "service")
    objects.gone("Installation", "service")
    assert (said(stack, objects, "it has installed"), said(stack, objects, "it uninstalls")) == (1, 0)
    assert "may still be there" in objects.said("Installation", "service", "Normal", "LeftBehind")


def test_a_run_whose_pod_was_orphaned(objects: Objects, stack: Stack) -> None:
    """Where an AgentAction is deleted and its pod is not, the pod is deleted before another run starts."""
    stubborn = "trap 'sleep 2; echo it has stopped; exit 1' TERM; sleep 60 & wait"
    objects.install("service", **service(stubborn))
    begins(stack, objects, "it installs")
    (run,) = objects.names("AgentAction")
    control = stack.control_plane
    control.kubectl("delete", "agentaction", run, "-n", objects.namespace, "--cascade=orphan")
    objects.delete("Installation", "service")
    begins(stack, objects, "it uninstalls")
    assert said(stack, objects, "it has stopped") == 1
    objects.gone("Installation", "service")
    until(lambda: objects.names("Pod") == [], what="no pod is left", timeout=60)


# -- with the namespace


def populate(objects: Objects) -> list[str]:
    """Makes Installations of which each would hold its namespace in a way of its own; returns their names."""
    objects.create("AgentConfig", "special", spec={})
    objects.install("healthy", **service())
    objects.install("configured", **service(agentConfig={"name": "special"}))
    objects.install("giver", **service('printf x > "$OUTHAUL_OUTPUTS/x"'))
    objects.install("taker", **service(inputs=[{"name": "x", "output": {"installation": "giver", "name": "x"}}]))
    objects.install("failed", **service(uninstall="exit 3"))
    names = ["healthy", "configured", "giver", "taker", "failed"]
    for name in names:
        objects.ready(name)
    stalls(objects, "failed")
    objects.install("busy", **service("sleep 600"))
    run = objects.until("Installation", "busy", lambda one: one.get("status", {}).get("action"), what="it has a run")
    # One whose pod has not started leaves nothing behind, and nothing is said of it.
    objects.condition("AgentAction", run["name"], "Started")
    return [*names, "busy"]


def told(objects: Objects) -> list[str]:
    """Returns what was said of a namespace that is gone, where Kubernetes keeps that."""
    events = Objects(objects.control_plane, "default").events("Namespace", objects.namespace)
    return sorted(message for _, reason, message in events if reason == "LeftBehind")


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("away", [pytest.param(False, id="at work"), pytest.param(True, id="operator away")])
def test_a_namespace_goes_with_all_that_is_in_it(objects: Objects, stack: Stack, *, away: bool) -> None:
    """Whatever holds up an uninstall, a namespace that is deleted goes, and what is left behind is said beside it."""
    names = populate(objects)
    uninstalled = said(stack, objects, "it uninstalls")
    if away:
        stack.kill_operator()
    objects.delete_namespace()
    if away:
        until(lambda: not objects.all("AgentAction"), what="the runs are gone", timeout=60)
        assert sorted(objects.names("Installation")) == sorted(names)
        stack.start_operator()
    objects.namespace_gone()
    assert said(stack, objects, "it uninstalls") == uninstalled
    messages = told(objects)
    for name in names:
        (message,) = [one for one in messages if one.startswith(f"Installation {name} went without an uninstall")]
        assert "may still be there" in message


def test_a_namespace_goes_after_its_installations(objects: Objects, stack: Stack) -> None:
    """What was deleted before its namespace, and is held up, goes with it without another word from anybody."""
    objects.install("service", **service(uninstall="exit 3", outputs={"historyLimit": 1}))
    objects.ready("service")
    stalls(objects)
    objects.delete_namespace()
    objects.namespace_gone()
    assert said(stack, objects, "it uninstalls") == 1
    assert len(told(objects)) == 1
