"""What every test may ask for: a control plane for the whole run, and a namespace of one's own in it."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from cluster import binaries
from cluster.controlplane import ControlPlane


def pytest_collection_finish(session: pytest.Session) -> None:
    """Gets the cluster's programs before the first test: a build outlasts a test's timeout."""
    if session.config.option.collectonly:
        return
    if any("control_plane" in getattr(item, "fixturenames", ()) for item in session.items):
        binaries.ensure(*binaries.CONTROL_PLANE)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server with its controllers, shared by all tests of the run."""
    running = ControlPlane(tmp_path_factory.mktemp("cluster"), audit=True).start()
    yield running
    running.stop(forget=True)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """The name of a fresh namespace, with its service account; deleted after the test, in the background."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    control_plane.create_namespace(name)
    yield name
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Callable[..., str]:
    """Runs kubectl as the administrator and returns its standard output: `kubectl("get", "pods", "-A")`."""
    return control_plane.kubectl
