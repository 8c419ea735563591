"""The proxy that spoils what the operator asks of the API server does to requests what it says, and nothing else."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from cluster import proxy
from cluster.controlplane import ControlPlane
from cluster.objects import Objects
from cluster.proxy import Proxy
from cluster.waiting import until
from outhaul_operator.apierrors import AlreadyExistsError, NotFoundError, UnavailableError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object

ACCOUNT = "tester"


@pytest.fixture(scope="module")
def spoiler(control_plane: ControlPlane) -> Iterator[Proxy]:
    """A proxy in front of the shared API server."""
    with Proxy(control_plane) as running:
        yield running


@pytest.fixture
def objects(control_plane: ControlPlane, namespace: str) -> Objects:
    """A namespace with an account that may do everything with ConfigMaps."""
    made = Objects(control_plane, namespace)
    made.create("ServiceAccount", ACCOUNT)
    made.create("Role", ACCOUNT, rules=[{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])
    made.create(
        "RoleBinding",
        ACCOUNT,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        subjects=[{"kind": "ServiceAccount", "name": ACCOUNT}],
    )
    return made


@pytest.fixture
async def client(control_plane: ControlPlane, spoiler: Proxy, objects: Objects) -> AsyncIterator[Cluster]:
    """The operator's own client, through the proxy."""
    spoiler.clear()
    path = control_plane.service_account_kubeconfig(objects.namespace, ACCOUNT, server=spoiler.url)
    cluster = await Cluster.connect(str(path))
    yield cluster
    await cluster.close()


def config_map(objects: Objects, name: str = "one") -> Object:
    """A ConfigMap to create."""
    metadata = {"name": name, "namespace": objects.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "value" * 1000}}


async def test_nothing_is_spoilt_unasked(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """Requests and answers pass as they are, and are remembered with what they are about."""
    created = await client.create(Kind.CONFIG_MAP, config_map(objects))
    assert await client.get(Kind.CONFIG_MAP, objects.namespace, "one") == created
    assert await client.list(Kind.CONFIG_MAP, objects.namespace, {}) != []
    with pytest.raises(AlreadyExistsError):
        await client.create(Kind.CONFIG_MAP, config_map(objects))
    with pytest.raises(NotFoundError):
        await client.get(Kind.CONFIG_MAP, objects.namespace, "two")
    seen = [(one.number, one.verb, one.resource, one.namespace, one.name) for one in spoiler.requests]
    assert seen == [
        (1, "create", "configmaps", objects.namespace, None),
        (2, "get", "configmaps", objects.namespace, "one"),
        (3, "list", "configmaps", objects.namespace, None),
        (4, "create", "configmaps", objects.namespace, None),
        (5, "get", "configmaps", objects.namespace, "two"),
    ]
    assert b"valuevalue" in spoiler.requests[0].body


async def test_a_request_gets_lost(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """A lost request is not carried out, and has no answer."""
    spoiler.fault = proxy.at(1, proxy.lose_request)
    with pytest.raises(UnavailableError):
        await client.create(Kind.CONFIG_MAP, config_map(objects))
    assert objects.find("ConfigMap", "one") is None
    await client.create(Kind.CONFIG_MAP, config_map(objects))


async def test_an_answer_gets_lost(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """A request whose answer is lost is carried out all the same."""
    spoiler.fault = proxy.where(lambda one: one.is_write, proxy.lose_answer, times=1)
    with pytest.raises(UnavailableError):
        await client.create(Kind.CONFIG_MAP, config_map(objects))
    with pytest.raises(AlreadyExistsError):
        await client.create(Kind.CONFIG_MAP, config_map(objects))


async def test_a_request_comes_twice(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """A doubled request is carried out twice, and the second answer given."""
    spoiler.fault = proxy.at(1, proxy.duplicate)
    with pytest.raises(AlreadyExistsError):
        await client.create(Kind.CONFIG_MAP, config_map(objects))


async def test_a_request_fails(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """A refused request is not carried out, and is answered as the API server would."""
    spoiler.fault = proxy.at(1, proxy.fail(429, "TooManyRequests", "slowly", Retry_After="1"))
    with pytest.raises(UnavailableError, match="slowly") as caught:
        await client.create(Kind.CONFIG_MAP, config_map(objects))
    assert caught.value.status == 429
    assert objects.find("ConfigMap", "one") is None


async def test_something_happens_around_a_request(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """What is called before a request finds nothing done, and what is called after it finds it done."""
    found: list[bool] = []

    def look() -> None:
        found.append(objects.find("ConfigMap", "one") is not None)

    spoiler.fault = proxy.at(1, proxy.around(before=look, after=look))
    await client.create(Kind.CONFIG_MAP, config_map(objects))
    assert found == [False, True]


async def test_a_request_outlives_who_asked(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """Where whoever asked is gone before the request is sent on, it is carried out nevertheless."""
    arrived, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        go_on.wait(30)

    spoiler.fault = proxy.at(1, proxy.around(before=hold))
    asking = asyncio.create_task(client.create(Kind.CONFIG_MAP, config_map(objects)))
    await asyncio.to_thread(arrived.wait, 30)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    go_on.set()
    await asyncio.to_thread(objects.until, "ConfigMap", "one", lambda _: True, what="it is there")


async def test_watches_stream(client: Cluster, objects: Objects) -> None:
    """An event passes as it happens, though the answer to the watch has no end yet."""
    _, version = await client.list_metadata(Kind.CONFIG_MAP, objects.namespace)
    events = client.watch_metadata(Kind.CONFIG_MAP, objects.namespace, version)
    await client.create(Kind.CONFIG_MAP, config_map(objects))
    async with asyncio.timeout(30):
        assert (await anext(events))["object"]["metadata"]["name"] == "one"


async def test_a_watch_is_cut_in_the_middle_of_a_line(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """A fault can break a watch wherever it likes."""

    async def half(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            yield line[: len(line) // 2]
            raise proxy.Cut

    _, version = await client.list_metadata(Kind.CONFIG_MAP, objects.namespace)
    spoiler.fault = proxy.where(lambda one: one.is_watch, proxy.watch_that(half))
    await client.create(Kind.CONFIG_MAP, config_map(objects))
    with pytest.raises(UnavailableError):
        await anext(client.watch_metadata(Kind.CONFIG_MAP, objects.namespace, version))


async def test_silence(client: Cluster, spoiler: Proxy, objects: Objects) -> None:
    """In silence nothing passes and nothing breaks, and afterwards everything passes that was held up."""
    await client.create(Kind.CONFIG_MAP, config_map(objects))
    spoiler.silence()
    asking = asyncio.create_task(client.get(Kind.CONFIG_MAP, objects.namespace, "one"))
    await asyncio.to_thread(until, lambda: len(spoiler.requests) == 2, what="the request has arrived")
    assert not asking.done()
    spoiler.resume()
    assert (await asking)["metadata"]["name"] == "one"
