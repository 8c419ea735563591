"""What tests with real pods ask for: a node, and the images that they run.

The node is the control plane's own (`cluster.node`). Where Docker runs, `OUTHAUL_KUBECONFIG` may name the
kubeconfig of a cluster that has nodes already, such as kind's; the images have to be loaded into it
beforehand, under the names in `cluster.images`. Tests that ask for `node` itself look at this machine and are
left out there.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import binaries, images, packages
from cluster.images import Image
from cluster.node import KUBELET, NEEDS, SCHEDULER, Node
from cluster.objects import Objects
from node.deployments import Deployment

_EXISTING = "OUTHAUL_KUBECONFIG"

_IMAGES = {
    "base_image": images.base,
    "agent_image": images.agent,
    "operator_image": images.operator,
    "terraform_image": images.terraform,
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes what takes longer than a test may, before the first test, and shows how far it is."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if not wanted & {"node", "real_pods"} or session.config.option.collectonly:
        return
    if _EXISTING in os.environ or _why_not():
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        packages.ensure(NEEDS)
        binaries.ensure(KUBELET, SCHEDULER)
        images.pause()
        for name in wanted & set(_IMAGES):
            _IMAGES[name]()


def _why_not() -> str | None:
    reason = Node.available()
    return reason and f"{reason}; or name a cluster that has nodes: {_EXISTING}"


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A real node of the control plane, ready for pods; skips where none can run, and says why."""
    if _EXISTING in os.environ:
        pytest.skip(f"looks at a node of our own, and {_EXISTING} is set")
    reason = _why_not()
    if reason:
        pytest.skip(reason)
    with Node(request.getfixturevalue("control_plane"), pause=images.pause()) as running:
        yield running


@pytest.fixture(scope="session")
def real_pods(request: pytest.FixtureRequest) -> Path:
    """The kubeconfig of a cluster with real pods: one that exists, or the control plane with its node."""
    if _EXISTING in os.environ:
        return Path(os.environ[_EXISTING])
    running: Node = request.getfixturevalue("node")
    return running.control_plane.kubeconfig


@pytest.fixture(scope="session")
def base_image(request: pytest.FixtureRequest, real_pods: Path) -> str:
    """The name of the image with Debian and Python alone."""
    return _loaded(request, images.BASE, images.base)


@pytest.fixture(scope="session")
def agent_image(request: pytest.FixtureRequest, real_pods: Path) -> str:
    """The name of the agent's image."""
    return _loaded(request, images.AGENT, images.agent)


@pytest.fixture(scope="session")
def operator_image(request: pytest.FixtureRequest, real_pods: Path) -> str:
    """The name of the operator's image."""
    return _loaded(request, images.OPERATOR, images.operator)


@pytest.fixture(scope="session")
def terraform_image(request: pytest.FixtureRequest, real_pods: Path) -> str:
    """The name of the image with the agent and Terraform."""
    return _loaded(request, images.TERRAFORM, images.terraform)


@pytest.fixture(scope="session")
def outhaul(
    node: Node, operator_image: str, agent_image: str, terraform_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """The operator as a pod of the real node, from the manifests of `deploy/`; shared by all tests of the run."""
    deployment = Deployment(
        node.control_plane,
        tmp_path_factory.mktemp("kustomize"),
        operator_image=operator_image,
        agent_image=agent_image,
        terraform_image=terraform_image,
    )
    deployment.install()
    yield deployment
    deployment.uninstall()


@pytest.fixture
def tenant(outhaul: Deployment) -> Iterator[Objects]:
    """A fresh namespace that is prepared for Terraform; let go after the test, in the background."""
    objects = outhaul.tenant(f"tenant-{uuid.uuid4().hex[:10]}")
    yield objects
    _let_go(objects)


@pytest.fixture
def objects(outhaul: Deployment) -> Iterator[Objects]:
    """A fresh namespace with nothing in it; let go after the test, in the background."""
    objects = outhaul.namespace(f"plain-{uuid.uuid4().hex[:10]}")
    yield objects
    _let_go(objects)


def _let_go(objects: Objects) -> None:
    objects.abandon()
    objects.control_plane.request("DELETE", f"/api/v1/namespaces/{objects.namespace}")


def _loaded(request: pytest.FixtureRequest, name: str, build: Callable[[], Image]) -> str:
    """Gives an image to the node; a cluster that was there before has to have it."""
    if _EXISTING not in os.environ:
        running: Node = request.getfixturevalue("node")
        running.load(build())
    return name
