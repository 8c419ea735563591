"""Outhaul at work on a control plane of its own, for the tests that watch it.

Of its own, since other tests replace the operator's namespace and role on the one that everybody shares.
"""

import gc
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from cluster import privileges
from cluster.controlplane import ControlPlane
from cluster.objects import Objects
from cluster.stack import REPOSITORY, Stack
from lives import STAGES, Life
from walks import Places, Walk

HERE = Path(__file__).parent
TENANT = REPOSITORY / "deploy/components/terraform-tenant"


@pytest.fixture(scope="session")
def stack(cluster_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A control plane, the stand-in kubelet, and the operator under its own account and role.

    Containers find the real Terraform, and a stand-in for Porter.
    """
    plane = ControlPlane(tmp_path_factory.mktemp("stack"), audit=True).start()
    try:
        running = Stack(plane, path=(REPOSITORY / "samples/terraform", HERE / "porter"))
        yield running.start()
        running.stop()
        privileges.record(plane)
    finally:
        plane.stop(forget=True)


@contextmanager
def _namespaces(stack: Stack) -> Iterator[Callable[[], Objects]]:
    made: list[Objects] = []

    def make() -> Objects:
        name = f"test-{uuid.uuid4().hex[:10]}"
        stack.control_plane.create_namespace(name)
        made.append(Objects(stack.control_plane, name))
        return made[-1]

    yield make
    for objects in made:
        objects.abandon()


@pytest.fixture
def new_objects(stack: Stack) -> Iterator[Callable[[], Objects]]:
    """Makes fresh namespaces; what is in them is let go after the test, in the background."""
    with _namespaces(stack) as make:
        yield make


@pytest.fixture
def alive(stack: Stack) -> Iterator[None]:
    """Whatever becomes of a test that ends the operator, the next one has an operator."""
    yield
    stack.start_operator()


@pytest.fixture(scope="module")
def make_namespace(stack: Stack) -> Iterator[Callable[[], Objects]]:
    """Makes namespaces for what several tests of a module look at."""
    with _namespaces(stack) as make:
        yield make


@pytest.fixture(scope="module")
def shared_objects(make_namespace: Callable[[], Objects]) -> Objects:
    """A namespace for what several tests of a module look at."""
    return make_namespace()


@pytest.fixture(scope="module")
def another(stack: Stack) -> Iterator[Objects]:
    """A second namespace for the tests of a module, beside `shared_objects`."""
    with _namespaces(stack) as make:
        yield make()


@pytest.fixture
def objects(new_objects: Callable[[], Objects]) -> Objects:
    """A fresh namespace with nothing in it."""
    return new_objects()


@pytest.fixture
def tenant(objects: Objects) -> Objects:
    """A fresh namespace that is prepared for Terraform, as `deploy/components/terraform-tenant` does it."""
    return prepared(objects)


@pytest.fixture(scope="module")
def shared_tenant(shared_objects: Objects) -> Objects:
    """The module's namespace, prepared for Terraform."""
    return prepared(shared_objects)


def prepared(objects: Objects) -> Objects:
    """Prepares a namespace for Terraform."""
    for file in ("serviceaccount.yaml", "role.yaml", "agentconfig.yaml"):
        text = (TENANT / file).read_text().replace("namespace: default", f"namespace: {objects.namespace}")
        for one in yaml.safe_load_all(text):
            fields = {key: value for key, value in one.items() if key not in {"apiVersion", "kind", "metadata"}}
            objects.create(one["kind"], one["metadata"]["name"], **fields)
    return objects


@pytest.fixture(scope="module")
def walk(stack: Stack) -> Iterator[Walk]:
    """A walk through what the operator asks."""
    with stack.proxied() as proxy:
        yield Walk(proxy)


@pytest.fixture
def new_life(stack: Stack, walk: Walk, new_objects: Callable[[], Objects]) -> Callable[[], Life]:
    """Makes lives to walk through."""
    return lambda: Life(new_objects(), lambda: stack.start_operator(server=walk.server))


@pytest.fixture(scope="module")
def usual(stack: Stack, walk: Walk, shared_objects: Objects) -> Places:
    """What the operator asks in a life in which nothing happens to it."""
    life, places = Life(shared_objects, lambda: stack.start_operator(server=walk.server)), {}
    for stage in STAGES:
        visit = walk.visit(life.objects.namespace)
        stage.begin(life.objects)
        life.await_end(stage, "nothing was done to it")
        places[stage.name] = visit.seen
    walk.end()
    return places


@pytest.fixture(autouse=True)
def _leaves_nothing_open() -> Iterator[None]:
    """What a test forgets to close is its own fault, and not that of the test in which the collector happens to run."""
    yield
    gc.collect()
