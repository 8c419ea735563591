"""Engine porter, with a script that keeps to Porter's documented command line and formats. There is no Porter here."""

from typing import Any

import pytest
import yaml
from cluster.objects import Objects
from cluster.stack import REPOSITORY, Stack


@pytest.fixture
def porter(objects: Objects) -> Objects:
    """A namespace whose runs have a volume for what Porter keeps in its database."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    objects.create("PersistentVolumeClaim", "porter", spec=claim)
    container = {
        "name": "agent",
        "env": [{"name": "PORTER_HOME", "value": "/porter"}],
        "volumeMounts": [{"name": "porter", "mountPath": "/porter"}],
    }
    volume = {"name": "porter", "persistentVolumeClaim": {"claimName": "porter"}}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    objects.create("AgentConfig", "default", spec={"podTemplate": template})
    return objects


def bundle(**parameters: Any) -> dict[str, Any]:
    """The spec of an Installation of a bundle, whose outputs are its parameters."""
    return {"bundle": {"repository": "example/bundle", "version": "1.0.0"}, "parameters": parameters}


def played(objects: Objects, stack: Stack, name: str, number: int) -> str:
    """What Porter printed in one run of an Installation."""
    return stack.container_log(objects.namespace, objects.ran(name, number)["metadata"]["name"])


def test_a_bundle_s_outputs_keep_type_and_sensitivity(porter: Objects) -> None:
    """Outputs that Porter lists have their bundle's types, and only those that it calls sensitive are hidden."""
    porter.install("hello", **bundle(text="a", number=3, flag=True, items=[1, "b"], secret="hunter2"))  # noqa: S106 - played
    run = porter.ready("hello")["status"]["action"]["name"]
    outputs = porter.get("InstallationOutput", run)["status"]["outputs"]
    assert {one["name"]: (one["type"], one["sensitive"], one.get("value")) for one in outputs} == {
        "flag": ("boolean", False, True),
        "items": ("array", False, [1, "b"]),
        "number": ("number", False, 3),
        "runs": ("string", False, "install"),
        "secret": ("string", True, None),
        "text": ("string", False, "a"),
    }
    assert porter.secret("hello-outputs")["secret"] == b"hunter2"


def test_the_sample_is_installed_under_porter_s_names(porter: Objects) -> None:
    """The sample, Porter's own spec, is installed under Porter's name and namespace, which the record tells."""
    spec = yaml.safe_load((REPOSITORY / "samples/porter/installation.yaml").read_text())["spec"]
    porter.create("Installation", "hello", spec=spec)
    run = porter.ready("hello")["status"]["action"]["name"]
    record = porter.get("InstallationOutput", run)["spec"]
    assert (record["name"], record["namespace"]) == ("hello-staging", "staging")
    assert porter.secret("hello-outputs")["name"] == b"Outhaul"


def test_a_changed_parameter_upgrades_the_bundle(porter: Objects) -> None:
    """A changed parameter makes Porter upgrade what it has installed."""
    porter.install("hello", **bundle(text="a"))
    porter.ready("hello")
    porter.respec("hello", parameters={"text": "b"})
    porter.ready("hello")
    assert porter.secret("hello-outputs") == {"text": b"b", "runs": b"install,upgrade"}


def test_a_retry_runs_the_bundle_although_nothing_changed(porter: Objects) -> None:
    """Porter leaves alone what has not changed; who asks for a retry gets a run of the bundle all the same."""
    porter.install("hello", **bundle(text="a"))
    porter.ready("hello")
    porter.annotate("hello", {"outhaul.dev/retry": "again"})
    porter.ran("hello", 2)
    porter.ready("hello")
    assert porter.secret("hello-outputs")["runs"] == b"install,upgrade"


def test_deletion_uninstalls_the_bundle(porter: Objects, stack: Stack) -> None:
    """Deleting the Installation lets Porter uninstall the bundle and forget the installation."""
    porter.install("hello", **bundle(text="a"))
    porter.ready("hello")
    porter.delete("Installation", "hello")
    porter.gone("Installation", "hello")
    logs = "".join(path.read_text() for path in stack.control_plane.root.glob(f"kubelet/logs/{porter.namespace}_*"))
    assert "executing uninstall action" in logs
    assert "deleting installation records for hello" in logs


def test_a_bundle_that_was_uninstalled_can_be_installed_again(porter: Objects) -> None:
    """Porter never runs anything again under the name of what it uninstalled; `uninstalled: false` installs anew."""
    porter.install("hello", **bundle(text="a"))
    porter.ready("hello")
    porter.respec("hello", uninstalled=True)
    porter.ready("hello")
    porter.respec("hello", uninstalled=False)
    porter.ready("hello")
    assert porter.secret("hello-outputs") == {"text": b"a", "runs": b"install"}


def test_a_bundle_of_no_version(porter: Objects) -> None:
    """Porter wants to be told which version of a bundle; without one the Installation is refused, with the choice."""
    porter.install("hello", bundle={"repository": "example/bundle"})
    stalled = porter.condition("Installation", "hello", "Stalled", "True", "InvalidSpec")
    assert "one of version, digest and tag" in stalled["message"]
    assert porter.runs("hello") == []


def test_a_bundle_that_fails(porter: Objects, stack: Stack) -> None:
    """A bundle that fails fails the run at the step apply; what Porter said is in the pod's log."""
    porter.install("hello", **bundle(fail=True))
    assert "container exit code: 1" in played(porter, stack, "hello", 1)
    stalled = porter.condition("Installation", "hello", "Stalled", "True", "RunFailed")
    assert "step 'apply' failed with exit code 1" in stalled["message"]
