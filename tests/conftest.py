"""What every test may ask for: a control plane for the whole run, and a namespace of one's own in it."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from cluster import binaries, packages, privileges, stack
from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError, RequestFailed
from hypothesis import HealthCheck, settings

# How long an example takes says nothing here: the machine may have other things to do.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest first, whatever the order of the rest: the processes that share the work then end together."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Gets the cluster's programs before the first test, and shows its progress: a build outlasts a test's timeout."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly or not wanted & {"cluster_programs", "stack"}:
        return
    with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        try:
            binaries.ensure(*binaries.CONTROL_PLANE)
            packages.ensure(stack.NEEDS)
        except ClusterError as error:
            pytest.exit(f"the tests' cluster cannot be made: {error}", returncode=pytest.ExitCode.INTERNAL_ERROR)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Says at the very end what was left out, and why."""
    yield
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:
        return  # one of several processes that share the work; the first one reports
    reasons = Counter(str(one.longrepr[2]).removeprefix("Skipped: ") for one in reporter.stats.get("skipped", ()))
    for reason, count in reasons.items():
        reporter.write_line(f"Left out: {count} {'test' if count == 1 else 'tests'}. {reason}")


@pytest.fixture(scope="session")
def cluster_programs() -> None:
    """The programs of a control plane, found or built: tests that start one otherwise ask for this."""


@pytest.fixture(scope="session")
def control_plane(cluster_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server with its controllers, shared by all tests of the run."""
    running = ControlPlane(tmp_path_factory.mktemp("cluster"), audit=True).start()
    yield running
    privileges.record(running)
    running.stop(forget=True)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """The name of a fresh namespace, with its service account; its pods are let go after the test."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    control_plane.create_namespace(name)
    yield name
    with suppress(RequestFailed):  # the namespace may be going
        control_plane.request("DELETE", f"/api/v1/namespaces/{name}/pods")


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Callable[..., str]:
    """Runs kubectl as the administrator and returns its standard output: `kubectl("get", "pods", "-A")`."""
    return control_plane.kubectl
