"""The client of the API server, at the wire: a real HTTP server on loopback that answers as it is told to."""

import asyncio
import contextlib
import dataclasses
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, web
from looptime import AdvancingLoop
from outhaul_operator.apierrors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind
from scripted import TOKEN, Answer, Script, Seen, Server, failure, serving

BASE = "/apis/outhaul.dev/v1alpha1/namespaces/tenant"
SECRET_VALUE = "aHVudGVyMg"  # noqa: S105 - what no error may show
BODY = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "s", "namespace": "tenant"},
    "data": {"password": SECRET_VALUE},
}
OBJECT: dict[str, Any] = {
    "apiVersion": "outhaul.dev/v1alpha1",
    "kind": "AgentAction",
    "metadata": {"name": "a", "namespace": "tenant", "uid": "u"},
}
READ = {**OBJECT, "metadata": {**OBJECT["metadata"], "resourceVersion": "7"}}

Call = Callable[[Cluster], Awaitable[object]]


@pytest.fixture(scope="module", autouse=True)
def _no_proxy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
async def connected(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Server, Cluster]]:
    """A scripted server, and a client of it."""
    async with serving(tmp_path_factory.mktemp("connected")) as both:
        yield both


@pytest.fixture
def server(connected: tuple[Server, Cluster]) -> Iterator[Server]:
    """The scripted server, which has seen nothing yet."""
    connected[0].requests.clear()
    yield connected[0]
    assert not connected[0].left, "not everything was asked for"


@pytest.fixture
def cluster(connected: tuple[Server, Cluster]) -> Cluster:
    """The client."""
    return connected[1]


@pytest.fixture(scope="module")
async def lonely(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A client whose server does not listen any more."""
    async with serving(tmp_path_factory.mktemp("lonely")) as (server, cluster):
        await server.stop()
        yield cluster


def path(request: Seen) -> str:
    """Returns a request's path, quoted as it came."""
    return urlsplit(request.url).path


def query(request: Seen) -> dict[str, str]:
    """Returns a request's query; no name comes twice."""
    pairs = parse_qsl(urlsplit(request.url).query, strict_parsing=True, keep_blank_values=True)
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


CALLS: dict[str, Call] = {
    "get": lambda cluster: cluster.get(Kind.SECRET, "tenant", "s"),
    "list": lambda cluster: cluster.list(Kind.POD, "tenant", {}),
    "create": lambda cluster: cluster.create(Kind.SECRET, BODY),
    "json_patch": lambda cluster: cluster.json_patch(
        Kind.SECRET, "tenant", "s", [{"op": "add", "path": "/data/password", "value": SECRET_VALUE}]
    ),
    "merge": lambda cluster: cluster.merge(Kind.SECRET, "tenant", "s", {"data": {"password": SECRET_VALUE}}),
    "apply_status": lambda cluster: cluster.apply_status(Kind.AGENT_ACTION, READ, {"message": SECRET_VALUE}),
    "delete": lambda cluster: cluster.delete(Kind.SECRET, "tenant", "s"),
}
EVERY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


# -- what is asked


async def test_get_asks_for_one_object(server: Server, cluster: Cluster) -> None:
    """A get names kind, namespace and name, and answers with the object as it is."""
    server.will(Answer(body={"metadata": {"name": "a"}, "spec": {"n": 2**63}}))
    assert await cluster.get(Kind.AGENT_ACTION, "tenant", "a") == {"metadata": {"name": "a"}, "spec": {"n": 2**63}}
    assert (server.request.method, server.request.url) == ("GET", f"{BASE}/agentactions/a")
    assert server.request.body is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.INSTALLATION, "/apis/outhaul.dev/v1alpha1/namespaces/n/installations/a"),
        (Kind.AGENT_ACTION, "/apis/outhaul.dev/v1alpha1/namespaces/n/agentactions/a"),
        (Kind.AGENT_CONFIG, "/apis/outhaul.dev/v1alpha1/namespaces/n/agentconfigs/a"),
        (Kind.INSTALLATION_OUTPUT, "/apis/outhaul.dev/v1alpha1/namespaces/n/installationoutputs/a"),
        (Kind.POD, "/api/v1/namespaces/n/pods/a"),
        (Kind.SECRET, "/api/v1/namespaces/n/secrets/a"),
        (Kind.EVENT, "/api/v1/namespaces/n/events/a"),
    ],
)
async def test_every_kind_has_its_path(server: Server, cluster: Cluster, kind: Kind, expected: str) -> None:
    """Each kind is asked for where the API has it."""
    server.will(Answer())
    await cluster.get(kind, "n", "a")
    assert server.request.url == expected


async def test_names_cannot_lead_elsewhere(server: Server, cluster: Cluster) -> None:
    """What is no name stays in its part of the path: it asks for something that does not exist, not for another."""
    server.will(Answer())
    await cluster.get(Kind.SECRET, "te/nant", "a/status?watch=true#x%2F y")
    assert server.request.url == "/api/v1/namespaces/te%2Fnant/secrets/a%2Fstatus%3Fwatch=true%23x%252F%20y"


async def test_list_selects_by_labels(server: Server, cluster: Cluster) -> None:
    """A list asks for all its labels, and its items say what they are."""
    items = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]
    server.will(Answer(body={"apiVersion": "v1", "kind": "PodList", "items": items}))
    found = await cluster.list(Kind.POD, "tenant", {"a.b/c": "d", "e": "f"})
    assert found == [{"apiVersion": "v1", "kind": "Pod", **item} for item in items]
    assert path(server.request) == "/api/v1/namespaces/tenant/pods"
    assert query(server.request) == {"labelSelector": "a.b/c=d,e=f"}


async def test_list_of_all_namespaces(server: Server, cluster: Cluster) -> None:
    """Without a namespace all are asked for, and without labels all objects."""
    server.will(Answer(body={"apiVersion": "v1", "kind": "PodList", "items": None}))
    assert await cluster.list(Kind.POD, None, {}) == []
    assert server.request.url == "/api/v1/pods"


async def test_create_posts_the_object(server: Server, cluster: Cluster) -> None:
    """A create goes to the object's own namespace, under our name as field manager."""
    server.will(Answer(201, {**BODY, "metadata": {"name": "s", "uid": "u"}}))
    assert (await cluster.create(Kind.SECRET, BODY))["metadata"]["uid"] == "u"
    assert (server.request.method, path(server.request)) == ("POST", "/api/v1/namespaces/tenant/secrets")
    assert query(server.request) == {"fieldManager": "outhaul"}
    assert server.request.headers["Content-Type"] == "application/json"
    assert server.request.body == BODY


async def test_json_patch_sends_its_operations(server: Server, cluster: Cluster) -> None:
    """A JSON patch is sent as one, in its order."""
    operations: list[dict[str, Any]] = [
        {"op": "test", "path": "/type", "value": "t"},
        {"op": "add", "path": "/data", "value": {"k": "v"}},
    ]
    server.will(Answer(body=BODY))
    assert await cluster.json_patch(Kind.SECRET, "tenant", "s", operations) == BODY
    assert (server.request.method, path(server.request)) == ("PATCH", "/api/v1/namespaces/tenant/secrets/s")
    assert query(server.request) == {"fieldManager": "outhaul"}
    assert server.request.headers["Content-Type"] == "application/json-patch+json"
    assert server.request.body == operations


async def test_merge_sends_a_merge_patch(server: Server, cluster: Cluster) -> None:
    """A merge patch is sent as one, null included."""
    server.will(Answer())
    await cluster.merge(Kind.SECRET, "tenant", "s", {"data": {"a": None}})
    assert server.request.headers["Content-Type"] == "application/merge-patch+json"
    assert query(server.request) == {"fieldManager": "outhaul"}
    assert server.request.body == {"data": {"a": None}}


RUNNING = {"phase": "Running"}


async def test_a_status_is_written_to_the_object_that_was_read(server: Server, cluster: Cluster) -> None:
    """A status replaces as a whole the one that was read, of the object with this uid and version, and no other."""
    server.will(Answer(body=OBJECT))
    assert await cluster.apply_status(Kind.AGENT_ACTION, READ, {"phase": "Succeeded"}) == OBJECT
    assert (server.request.method, path(server.request)) == ("PATCH", f"{BASE}/agentactions/a/status")
    assert query(server.request) == {"fieldManager": "outhaul"}
    assert server.request.headers["Content-Type"] == "application/json-patch+json"
    assert server.request.body == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/status", "value": {"phase": "Succeeded"}},
    ]


@pytest.mark.parametrize(
    "current",
    [
        pytest.param(READ | {"status": {"phase": "Failed"}}, id="another status"),
        pytest.param(READ | {"metadata": READ["metadata"] | {"uid": "v"}, "status": RUNNING}, id="another object"),
    ],
)
async def test_a_status_that_was_written_meanwhile_is_a_conflict(
    server: Server, cluster: Cluster, current: dict[str, Any]
) -> None:
    """Where the patch is refused and the object is not what was read, that is why."""
    server.will(failure(422, "Invalid"), Answer(body=current))
    with pytest.raises(ConflictError, match="patch agentactions tenant/a/status: it has changed"):
        await cluster.apply_status(Kind.AGENT_ACTION, READ | {"status": RUNNING}, {})


@pytest.mark.parametrize("status", [{}, {"status": RUNNING}], ids=["the first", "a later one"])
async def test_a_status_is_written_though_something_else_has_changed(
    server: Server, cluster: Cluster, status: dict[str, Any]
) -> None:
    """A label or a spec that somebody has changed since does not keep a status from being written."""
    current = READ | {"metadata": READ["metadata"] | {"resourceVersion": "8"}} | status
    server.will(failure(422, "Invalid"), Answer(body=current), Answer(body=OBJECT))
    assert await cluster.apply_status(Kind.AGENT_ACTION, READ | status, {"phase": "Succeeded"}) == OBJECT
    assert {"op": "test", "path": "/metadata/resourceVersion", "value": "8"} in server.requests[-1].body


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"uid": "u"}, {"uid": "u"}),
        ({"uid": "u", "resource_version": "7"}, {"uid": "u", "resourceVersion": "7"}),
    ],
)
async def test_delete_names_its_preconditions(
    server: Server, cluster: Cluster, given: dict[str, str], expected: dict[str, str]
) -> None:
    """A delete takes the object that is meant, and its dependents after it."""
    server.will(Answer(body={"kind": "Status", "status": "Success"}))
    await cluster.delete(Kind.POD, "tenant", "p", **given)
    assert (server.request.method, server.request.url) == ("DELETE", "/api/v1/namespaces/tenant/pods/p")
    assert server.request.body["propagationPolicy"] == "Background"
    assert server.request.body["preconditions"] == expected


async def test_deleting_what_is_gone_is_fine(server: Server, cluster: Cluster) -> None:
    """An object that does not exist is deleted already."""
    server.will(failure(404, "NotFound"))
    await cluster.delete(Kind.POD, "tenant", "p")


async def test_exists_tells_not_found_from_not_known(server: Server, cluster: Cluster) -> None:
    """Only the server's own word says that something does not exist."""
    server.will(Answer(), failure(404, "NotFound"), failure(403, "Forbidden"))
    assert await cluster.exists(Kind.POD, "tenant", "p")
    assert not await cluster.exists(Kind.POD, "tenant", "p")
    with pytest.raises(RefusedError):
        await cluster.exists(Kind.POD, "tenant", "p")


@EVERY_CALL
async def test_every_request_says_who_asks(server: Server, cluster: Cluster, call: Call) -> None:
    """Each request carries the token and our name, and takes JSON."""
    server.will(Answer(body={"apiVersion": "v1", "kind": "PodList", "items": []}))
    await call(cluster)
    assert server.request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert server.request.headers["User-Agent"] == "outhaul"
    assert server.request.headers["Accept"] == "application/json"


async def test_a_session_beside_says_who_asks(server: Server, cluster: Cluster) -> None:
    """What asks the server without our client, as kopf does, carries the token and our name as well."""
    server.will(Answer())

    async def untouched(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        return await handler(request)

    async with cluster.session(untouched) as session, session.get(f"{cluster.server}/api"):
        pass
    assert cluster.server == server.url
    assert server.request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert server.request.headers["User-Agent"] == "outhaul"


def review(*, allowed: bool) -> Answer:
    """Returns the server's answer to what we may do."""
    return Answer(201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed} if allowed else {}})


@pytest.mark.parametrize(("allowed", "expected"), [([True, True], True), ([True, False], False), ([False], False)])
async def test_rights_are_asked_for(server: Server, cluster: Cluster, allowed: list[bool], *, expected: bool) -> None:
    """Whether a kind may be listed and watched is the server's word, of this namespace; nothing is tried."""
    server.will(*(review(allowed=one) for one in allowed))
    assert await cluster.may_watch(Kind.CONFIG_MAP, "tenant") is expected
    for request, verb in zip(server.requests, ["list", "watch"], strict=False):
        assert (request.method, path(request)) == ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        assert request.body["kind"] == "SelfSubjectAccessReview"
        assert request.body["spec"]["resourceAttributes"] == {
            "verb": verb,
            "resource": "configmaps",
            "namespace": "tenant",
        }


async def test_metadata_is_listed_without_what_it_is_of(server: Server, cluster: Cluster) -> None:
    """The list asks for metadata alone, so that no Secret's data is ever sent, and says where to watch on."""
    items = [{"metadata": {"name": "s"}}]
    server.will(Answer(body={"metadata": {"resourceVersion": "7"}, "items": items}))
    assert await cluster.list_metadata(Kind.SECRET, "tenant") == (items, "7")
    assert server.request.url == "/api/v1/namespaces/tenant/secrets"
    assert server.request.headers["Accept"] == ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")


# -- what goes wrong


FAILURES: list[tuple[int, str, type[ApiError]]] = [
    (404, "NotFound", NotFoundError),
    (404, "", UnavailableError),
    (409, "AlreadyExists", AlreadyExistsError),
    (409, "Conflict", ConflictError),
    (400, "BadRequest", RefusedError),
    (403, "Forbidden", RefusedError),
    (405, "MethodNotAllowed", RefusedError),
    (413, "RequestEntityTooLarge", RefusedError),
    (415, "UnsupportedMediaType", RefusedError),
    (422, "Invalid", RefusedError),
    (401, "Unauthorized", UnavailableError),
    (408, "Timeout", UnavailableError),
    (429, "TooManyRequests", UnavailableError),
    (500, "InternalError", UnavailableError),
    (503, "ServiceUnavailable", UnavailableError),
    (504, "Timeout", UnavailableError),
]


@pytest.mark.parametrize(("status", "reason", "expected"), FAILURES)
async def test_each_failure_has_its_class(
    server: Server, cluster: Cluster, status: int, reason: str, expected: type[ApiError]
) -> None:
    """The class says what to do, the text names the object and quotes the server."""
    server.will(failure(status, reason))
    with pytest.raises(ApiError) as caught:
        await cluster.json_patch(Kind.SECRET, "tenant", "s", [])
    assert type(caught.value) is expected
    assert caught.value.status == status
    assert str(caught.value) == "patch secrets tenant/s: the server's own words"


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (403, 'pods "p" is forbidden: exceeded quota: none', True),
        (400, 'admission webhook "pods.example.com" denied the request: not today', True),
        (500, 'Internal error occurred: failed calling webhook "pods.example.com": connection refused', True),
        (422, "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no", True),
        (422, 'Pod "p" is invalid: spec.containers: Required value', False),
        (500, "Internal error occurred: etcdserver: request timed out", False),
        (429, "too many requests", False),
    ],
)
async def test_a_policy_is_told_from_a_mistake(
    server: Server, cluster: Cluster, status: int, message: str, *, expected: bool
) -> None:
    """What keeps an object out without finding fault with it is told, whatever status it chooses, or has by failing."""
    server.will(failure(status, "", message))
    with pytest.raises(ApiError) as caught:
        await cluster.create(Kind.POD, BODY)
    assert caught.value.is_by_policy is expected


async def test_a_failed_create_names_the_object(server: Server, cluster: Cluster) -> None:
    """The name is in the body then, not in the path."""
    server.will(failure(409, "AlreadyExists"))
    with pytest.raises(AlreadyExistsError, match="post secrets tenant/s: "):
        await cluster.create(Kind.SECRET, BODY)


async def test_a_failed_status_names_the_subresource(server: Server, cluster: Cluster) -> None:
    """The text tells a refused status from a refused object."""
    server.will(failure(422, "Invalid"), Answer(body=READ))
    with pytest.raises(RefusedError, match="patch agentactions tenant/a/status: "):
        await cluster.apply_status(Kind.AGENT_ACTION, READ, {})


async def test_a_long_message_is_cut(server: Server, cluster: Cluster) -> None:
    """A server that says too much does not fill a status."""
    server.will(failure(422, "Invalid", "x" * 5000))
    with pytest.raises(RefusedError) as caught:
        await cluster.get(Kind.POD, "tenant", "p")
    assert caught.value.message == "x" * 1000


GARBAGE = [b"", b"<html>Bad Gateway</html>", b"\xff\xfe\x00", b"null", b'"text"', b"[1]", b"7", b"{", b"[" * 100_000]


@pytest.mark.parametrize("payload", GARBAGE)
@pytest.mark.parametrize(
    ("status", "expected"), [(502, UnavailableError), (403, RefusedError), (404, UnavailableError)]
)
async def test_a_failure_in_no_known_words(
    server: Server, cluster: Cluster, status: int, expected: type[ApiError], payload: bytes
) -> None:
    """Where a proxy answers in its own way, the status alone says what happened."""
    server.will(Answer(status, payload, {"Content-Type": "text/html"}))
    with pytest.raises(expected) as caught:
        await cluster.get(Kind.POD, "tenant", "p")
    assert str(caught.value) == f"get pods tenant/p: HTTP {status}"


@pytest.mark.parametrize("payload", GARBAGE)
async def test_a_success_that_is_no_object(server: Server, cluster: Cluster, payload: bytes) -> None:
    """An answer that is no JSON object is none; the request may be tried again."""
    server.will(Answer(200, payload))
    with pytest.raises(UnavailableError, match="no JSON object"):
        await cluster.get(Kind.POD, "tenant", "p")


@EVERY_CALL
async def test_an_answer_that_is_cut(server: Server, cluster: Cluster, call: Call) -> None:
    """A connection that breaks in the answer leaves open what was done; the request may be tried again."""
    server.will(Answer(200, b'{"kind": "Sta', cut=True))
    with pytest.raises(UnavailableError) as caught:
        await call(cluster)
    assert caught.value.status == 0


@EVERY_CALL
async def test_nobody_listens(lonely: Cluster, call: Call) -> None:
    """A refused connection is an error of its own kind, which says nothing of the request."""
    with pytest.raises(UnavailableError) as caught:
        await call(lonely)
    assert caught.value.status == 0
    assert str(caught.value).endswith(": ClientConnectorError")


async def test_a_connection_that_was_closed_meanwhile(server: Server, cluster: Cluster) -> None:
    """A server that hangs up without an answer is unavailable."""

    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    server.will(hang_up)
    with pytest.raises(UnavailableError, match="ServerDisconnectedError"):
        await cluster.create(Kind.SECRET, BODY)
    assert len(server.requests) == 1, "a write was repeated"


def shown(error: BaseException) -> str:
    """Returns everything that a log could show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.__cause__)


@EVERY_CALL
@pytest.mark.parametrize(
    "answer",
    [failure(500, "InternalError"), failure(422, "Invalid"), Answer(200, b"<"), Answer(200, b"{", cut=True)],
    ids=["500", "422", "garbage", "cut"],
)
async def test_no_error_shows_a_secret(server: Server, cluster: Cluster, call: Call, answer: Answer) -> None:
    """Neither an error nor its causes quote the token, or a value that was sent."""
    server.will(answer)
    with pytest.raises(ApiError) as caught:
        await call(cluster)
    assert TOKEN not in shown(caught.value)
    assert SECRET_VALUE not in shown(caught.value)


@EVERY_CALL
async def test_no_error_of_a_connection_shows_a_secret(lonely: Cluster, call: Call) -> None:
    """Where nobody listens, an error does not quote what would have been sent."""
    with pytest.raises(ApiError) as caught:
        await call(lonely)
    assert TOKEN not in shown(caught.value)
    assert SECRET_VALUE not in shown(caught.value)


async def test_a_token_is_not_carried_elsewhere(server: Server, cluster: Cluster, tmp_path: Path) -> None:
    """A redirect to another server does not get the token."""
    (tmp_path / "other").mkdir()
    async with serving(tmp_path / "other") as (other, _):
        server.will(Answer(307, headers={"Location": f"{other.url}/elsewhere"}))
        other.will(Answer())
        with contextlib.suppress(ApiError):
            await cluster.get(Kind.POD, "tenant", "p")
        assert all("Authorization" not in request.headers for request in other.requests)


async def test_a_password_file_is_not_read(
    server: Server, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who the operator is, its token says alone, whatever a ~/.netrc has for the server's address."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.will(Answer(body=OBJECT))
    await cluster.get(Kind.AGENT_ACTION, "tenant", "a")
    assert server.request.headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(("exempt", "is_used"), [("", True), ("127.0.0.1", False)])
async def test_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exempt: str, *, is_used: bool
) -> None:
    """The server is asked by way of the proxy that the environment names, unless its address is exempt from that."""
    proxy = Server()
    await proxy.start()
    proxy.will(Answer(body=OBJECT))
    for name, value in {"http_proxy": proxy.url, "no_proxy": exempt}.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(name.upper(), value)
    async with serving(tmp_path) as (server, cluster):
        server.will(Answer(body=OBJECT))
        assert await cluster.get(Kind.AGENT_ACTION, "tenant", "a") == OBJECT
        assert len(proxy.requests) == is_used
        assert len(server.requests) == (not is_used)
    await proxy.stop()


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    """A request is given up after half a minute, and not before."""

    async def main(loop: AdvancingLoop) -> None:
        async with serving(tmp_path) as (server, cluster):
            asked = asyncio.Event()
            over = asyncio.Event()

            async def say_nothing(_request: web.Request) -> web.StreamResponse:
                asked.set()
                await over.wait()
                return web.Response()

            server.will(say_nothing)
            request = asyncio.create_task(cluster.get(Kind.POD, "tenant", "p"))
            await asked.wait()
            loop.advance(25)
            assert not (await asyncio.wait({request}, timeout=0))[0]
            loop.advance(10)
            with pytest.raises(UnavailableError, match="get pods tenant/p: TimeoutError"):
                await request
            over.set()

    loop = AdvancingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


def test_who_waits_for_a_turn_is_not_late(tmp_path: Path) -> None:
    """However many requests there are, a hundred are under way, a quarter of them at most in one namespace.

    What the others wait is not counted against them.
    """

    async def main(loop: AdvancingLoop) -> None:
        async with serving(tmp_path) as (server, cluster):
            full, over = asyncio.Event(), asyncio.Event()

            async def hold(_request: web.Request) -> web.StreamResponse:
                if len(server.requests) == 100:
                    full.set()
                await over.wait()
                return web.json_response({})

            server.will(*[hold] * 110)
            requests = [asyncio.create_task(cluster.get(Kind.POD, f"tenant-{n % 4}", "p")) for n in range(110)]
            await full.wait()
            loop.advance(25)
            assert not (await asyncio.wait(requests, timeout=0))[0]
            assert len(server.requests) == 100
            over.set()
            await asyncio.gather(*requests[:100])
            loop.advance(25)
            await asyncio.gather(*requests)

    loop = AdvancingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


async def test_watches_take_no_turns(server: Server, cluster: Cluster) -> None:
    """While more watches are open than requests may be under way, a request is answered all the same."""
    opened, over = asyncio.Semaphore(0), asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        opened.release()
        await over.wait()
        return response

    async def watch() -> None:
        async for _ in cluster.watch_events("tenant", {"involvedObject.uid": "u"}):
            pass

    server.will(*[hold] * 110)
    watches = [asyncio.create_task(watch()) for _ in range(110)]
    for _ in watches:
        await opened.acquire()
    server.will(Answer(body=OBJECT))
    assert await cluster.get(Kind.AGENT_ACTION, "tenant", "a") == OBJECT
    over.set()
    await asyncio.gather(*watches)


# -- the stream of events


def stream(*parts: bytes, cut: bool = False) -> Script:
    """Returns an answer that comes in parts."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0)
        if cut:
            assert request.transport is not None
            request.transport.close()
        return response

    return answer


def line(type_: str, content: object) -> bytes:
    """Returns one event of a watch."""
    return json.dumps({"type": type_, "object": content}).encode() + b"\n"


ABOUT = {"involvedObject.uid": "u-1", "type": "Warning"}


async def collect(cluster: Cluster) -> list[Any]:
    """Returns everything that a watch of events brings."""
    return [event async for event in cluster.watch_events("tenant", ABOUT)]


async def test_events_come_one_by_one(server: Server, cluster: Cluster) -> None:
    """Events that are there and that come are told, wherever the stream is divided; other lines are not."""
    first, second = line("ADDED", {"reason": "a"}), line("MODIFIED", {"reason": "b"})
    others = line("DELETED", {"reason": "c"}) + line("BOOKMARK", {}) + line("ERROR", {"code": 410})
    server.will(stream(first[:7], first[7:] + second + others))
    assert await collect(cluster) == [{"reason": "a"}, {"reason": "b"}]
    assert path(server.request) == "/api/v1/namespaces/tenant/events"
    assert query(server.request) == {
        "fieldSelector": "involvedObject.uid=u-1,type=Warning",
        "watch": "true",
        "timeoutSeconds": "300",
    }
    assert server.request.headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    "answer",
    [
        stream(line("ADDED", {"reason": "a"}), b"garbage\n"),
        stream(line("ADDED", {"reason": "a"}), b"[]\n"),
        stream(line("ADDED", {"reason": "a"}), b"{}\n"),
        stream(line("ADDED", {"reason": "a"}), b'{"type": "ADD', cut=True),
        stream(line("ADDED", {"reason": "a"}), cut=True),
    ],
    ids=["garbage", "no object", "no event", "cut in an event", "cut"],
)
async def test_a_stream_that_breaks(server: Server, cluster: Cluster, answer: Script) -> None:
    """What came before is told; the break is unavailability."""
    server.will(answer)
    came = []

    async def take() -> None:
        async for event in cluster.watch_events("tenant", ABOUT):
            came.append(event)  # noqa: PERF401 - what came before the error matters

    with pytest.raises(UnavailableError, match="watch events in tenant"):
        await take()
    assert came == [{"reason": "a"}]


async def test_a_stream_that_is_refused(server: Server, cluster: Cluster) -> None:
    """An answer other than a stream is an error like any other."""
    server.will(failure(403, "Forbidden"))
    with pytest.raises(RefusedError, match="watch events in tenant: the server's own words"):
        await collect(cluster)


async def test_a_stream_that_nobody_serves(lonely: Cluster) -> None:
    """A watch of a server that is gone is unavailable, and says nothing of the token."""
    with pytest.raises(UnavailableError) as caught:
        await collect(lonely)
    assert TOKEN not in shown(caught.value)


# -- the stream of metadata


async def test_metadata_is_watched_from_where_it_was_listed(server: Server, cluster: Cluster) -> None:
    """Every event is told with the objects' metadata alone, from a version on."""
    server.will(stream(line("ADDED", {"metadata": {}}), line("DELETED", {"metadata": {}})))
    events = [event["type"] async for event in cluster.watch_metadata(Kind.SECRET, "tenant", "7")]
    assert events == ["ADDED", "DELETED"]
    assert query(server.request) == {"resourceVersion": "7", "watch": "true", "timeoutSeconds": "300"}
    assert server.request.headers["Accept"] == "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


async def test_a_watch_of_metadata_whose_beginning_is_gone(server: Server, cluster: Cluster) -> None:
    """A version that the server has forgotten ends the watch, so that it is listed again."""
    server.will(stream(line("ERROR", {"code": 410, "reason": "Expired"})))
    with pytest.raises(UnavailableError, match="begin anew"):
        [event async for event in cluster.watch_metadata(Kind.SECRET, "tenant", "7")]


async def test_a_server_may_say_when_to_come_back(server: Server, cluster: Cluster) -> None:
    """`Retry-After`, in seconds, is kept with the error; what is no number of seconds is not."""
    for value, expected in (("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), ("-1", 0.0), ("", 0.0)):
        server.will(dataclasses.replace(failure(429, "TooManyRequests"), headers={"Retry-After": value}))
        with pytest.raises(UnavailableError) as caught:
            await cluster.get(Kind.POD, "tenant", "p")
        assert caught.value.retry_after_s == expected


@pytest.mark.parametrize("name", [name for name in CALLS if name not in {"get", "list"}])
async def test_who_may_not_write_any_more_does_not(server: Server, cluster: Cluster, name: str) -> None:
    """An operator that has lost leadership sends no change; it still reads."""
    cluster.may_write = lambda: False
    try:
        with pytest.raises(UnavailableError, match="does not lead"):
            await CALLS[name](cluster)
        assert server.requests == []
        server.will(Answer())
        await cluster.get(Kind.POD, "tenant", "p")
    finally:
        cluster.may_write = lambda: True
