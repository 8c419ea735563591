"""A proxy in front of the API server that drops, delays, doubles or refuses requests, and cuts or stops watches.

Whoever goes through it is given `Proxy.url` as the server, with the cluster's own CA and a token; client certificates
cannot pass. Each request goes through `Proxy.fault`, a coroutine that sends it on, or does not, and returns an answer
or cuts the connection. A request is carried out to its end also where whoever asked is gone meanwhile. Requests are
remembered in order, so that a test can walk through them one by one.
"""

import asyncio
import json
import re
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import aiohttp
from aiohttp import web

from cluster.controlplane import ControlPlane

_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length"}
_START_S = 30


@dataclass(frozen=True)
class Request:
    """One request, as it came."""

    number: int
    """From 1, in the order of arrival."""
    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    verb: str
    """As RBAC says it: get, list, watch, create, update, patch, delete."""
    resource: str
    """The plural, with the subresource: `installations/status`. Empty where it is no request for objects."""
    namespace: str | None
    name: str | None

    @property
    def is_write(self) -> bool:
        """Whether it asks for a change."""
        return self.method != "GET"

    @property
    def is_watch(self) -> bool:
        """Whether its answer is a stream."""
        return self.verb == "watch"


@dataclass(frozen=True)
class Answer:
    """An answer, of the API server or made up; the body of a watch comes line by line, as it is sent."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes] = field(repr=False)


class Cut(Exception):  # noqa: N818 - no error of ours: it is raised to break the connection
    """Raised by a fault, or by the body of its answer: the connection ends here, in the middle."""


Send = Callable[[], Awaitable[Answer]]
"""Sends the request on, each time that it is called."""
Fault = Callable[[Request, Send], Coroutine[Any, Any, Answer]]


async def pass_on(_: Request, send: Send) -> Answer:
    """No fault."""
    return await send()


async def lose_request(_: Request, __: Send) -> Answer:
    """The request never arrives: nothing is done, and nobody answers."""
    raise Cut


async def lose_answer(_: Request, send: Send) -> Answer:
    """The request is carried out, and whoever asked does not hear of it."""
    await _drained(await send())
    raise Cut


async def duplicate(_: Request, send: Send) -> Answer:
    """The request arrives twice; the second answer is given."""
    await _drained(await send())
    return await send()


def delay(seconds: float) -> Fault:
    """The request arrives late."""

    async def late(_: Request, send: Send) -> Answer:
        await asyncio.sleep(seconds)
        return await send()

    return late


def fail(status: int, reason: str = "", message: str = "made up by the proxy", **headers: str) -> Fault:
    """The request is not sent on, and answered with an error of Kubernetes' form.

    Args:
        status: the HTTP status.
        reason: Kubernetes' word for it.
        message: for people.
        headers: `Retry_After="1"` becomes `Retry-After: 1`.
    """

    async def refused(_: Request, __: Send) -> Answer:
        return answer(
            status,
            {"apiVersion": "v1", "kind": "Status", "code": status, "reason": reason, "message": message},
            {name.replace("_", "-"): value for name, value in headers.items()},
        )

    return refused


def around(
    *, before: Callable[[], object] | None = None, after: Callable[[], object] | None = None, fault: Fault = pass_on
) -> Fault:
    """Something is called before the request is sent on, or once it is carried out and before the answer is given.

    Args:
        before: called in a thread of its own, and waited for. Where it kills whoever asked, the request arrives all the
            same, after their death; with `lose_request` it does not.
        after: likewise. Where it kills whoever asked, nobody hears the answer.
        fault: what happens to the request between the two.
    """

    async def called(request: Request, send: Send) -> Answer:
        if before is not None:
            await asyncio.to_thread(before)
        given = await fault(request, send)
        if after is not None:
            await asyncio.to_thread(after)
        return given

    return called


def at(number: int, fault: Fault) -> Fault:
    """Spoils the request of this number, from 1, and no other."""

    async def only(request: Request, send: Send) -> Answer:
        return await (fault if request.number == number else pass_on)(request, send)

    return only


def where(condition: Callable[[Request], bool], fault: Fault, *, times: int | None = None) -> Fault:
    """Spoils the requests of which something is true, so many of them or all."""
    left = times

    async def some(request: Request, send: Send) -> Answer:
        nonlocal left
        if not condition(request) or left == 0:
            return await send()
        left = None if left is None else left - 1
        return await fault(request, send)

    return some


def watch_that(change: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]) -> Fault:
    """Lets the API server answer, and passes the lines of its answer through something that may change, add or cut."""

    async def changed(_: Request, send: Send) -> Answer:
        given = await send()
        return replace(given, body=change(given.body))

    return changed


def answer(status: int, body: object, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer that is made up."""

    async def once() -> AsyncIterator[bytes]:
        yield json.dumps(body).encode()

    return Answer(status, {"Content-Type": "application/json", **(headers or {})}, once())


class Proxy:
    """Listens on a port of loopback of its own, over TLS, in a thread of its own.

    Args:
        plane: the API server behind it.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.fault: Fault = pass_on
        """What is done to each request; may be exchanged at any time."""
        self.requests: list[Request] = []
        """What was asked so far."""
        self.url = ""
        self._watching: set[asyncio.Transport] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._flowing: asyncio.Event
        self._started: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = self._started.result(_START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_START_S)

    def clear(self) -> None:
        """Spoils nothing any more, and counts from 1 again."""
        with self._lock:
            self.fault = pass_on
            self.requests = []
        self.resume()

    def silence(self) -> None:
        """Goes silent: connections stay open and are taken, but nothing passes, in watches as well."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def resume(self) -> None:
        """Lets pass what was held up since `silence`, and everything after."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def cut(self) -> None:
        """Breaks every watch that is open, in the middle."""
        self._loop.call_soon_threadsafe(self._cut_watches)

    def _cut_watches(self) -> None:
        for transport in self._watching:
            transport.abort()

    async def _serve(self) -> None:
        self._loop, self._end, self._flowing = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._flowing.set()
        pair = self._plane.authority.issue("proxy", "proxy", names=["127.0.0.1"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        upstream = ssl.create_default_context(cafile=str(self._plane.authority.ca.certificate))
        connector = aiohttp.TCPConnector(ssl=upstream, limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            self._session = session
            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{rest:.*}", self._handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            self._started.set_result(f"https://127.0.0.1:{runner.addresses[0][1]}")
            await self._end.wait()
            await runner.cleanup()

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = self._remember(incoming, await incoming.read())
        response: web.StreamResponse | None = None
        transport = incoming.transport
        if request.is_watch and transport is not None:
            self._watching.add(transport)
        try:
            await self._flowing.wait()
            given = await self.fault(request, lambda: self._send(request))
            await self._flowing.wait()
            response = web.StreamResponse(status=given.status, headers=given.headers)
            await response.prepare(incoming)
            async for line in given.body:
                await self._flowing.wait()
                await response.write(line)
        except (Cut, aiohttp.ClientError):
            # Aborted, not closed: what is in the middle of a message stays without an end.
            if transport is not None:
                transport.abort()
        except ConnectionResetError:
            pass  # whoever asked is gone
        finally:
            if transport is not None:
                self._watching.discard(transport)
        return response or web.Response(status=502)

    def _remember(self, incoming: web.Request, body: bytes) -> Request:
        with self._lock:
            request = read(len(self.requests) + 1, incoming.method, incoming.raw_path, incoming.headers, body)
            self.requests.append(request)
        return request

    async def _send(self, request: Request) -> Answer:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        response = await self._session.request(
            request.method, self._plane.url + request.path, headers=headers, data=request.body or None
        )
        kept = {name: value for name, value in response.headers.items() if name.lower() not in _HOP_BY_HOP}
        if request.is_watch:
            return Answer(response.status, kept, _lines(response))
        data = await response.read()

        async def whole() -> AsyncIterator[bytes]:
            yield data

        return Answer(response.status, kept, whole())


def read(number: int, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Request:
    """A request, and what it is about."""
    url = urlsplit(path)
    found = _PATH.match(url.path)
    resource, namespace, name = "", None, None
    if found is not None:
        subresource = f"/{found['subresource']}" if found["subresource"] else ""
        resource, namespace, name = found["resource"] + subresource, found["namespace"], found["name"]
    is_watch = parse_qs(url.query).get("watch") == ["true"]
    verb = _VERBS.get(method) or ("get" if name else "watch" if is_watch else "list")
    return Request(number, method, path, dict(headers), body, verb, resource, namespace, name)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with response:
        rest = b""
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line + b"\n"
        if rest:
            yield rest


async def _drained(given: Answer) -> None:
    """Takes in an answer that nobody is to see, so that the request is carried out to its end."""
    async for _ in given.body:
        pass
