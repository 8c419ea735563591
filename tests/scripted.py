"""A real HTTP server on loopback that answers what it is told to, for what the client does with it."""

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from outhaul_operator.cluster import Cluster

TOKEN = "token-that-nobody-may-see"  # noqa: S105 - it opens nothing


@dataclass(frozen=True)
class Seen:
    """A request as it came over the wire."""

    method: str
    url: str
    """Path and query, quoted as they came."""
    headers: Mapping[str, str]
    body: Any
    """JSON, or None where there was no body."""


@dataclass(frozen=True)
class Answer:
    """One answer: JSON unless it is bytes."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    """Whether the connection breaks before all of the body was sent."""

    @property
    def payload(self) -> bytes:
        """What is sent as the body."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def failure(status: int, reason: str, message: str = "the server's own words") -> Answer:
    """Returns an error as Kubernetes writes it."""
    body = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": status,
        "reason": reason,
        "message": message,
    }
    return Answer(status, body)


Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers in the order of the script, and remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self._script: deque[Answer | Script] = deque()
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{rest:.*}", self._handle)
        self._server = TestServer(application, host="127.0.0.1")

    def will(self, *answers: Answer | Script) -> None:
        """Adds answers to the script."""
        self._script.extend(answers)

    @property
    def left(self) -> int:
        """How many answers nobody has asked for."""
        return len(self._script)

    @property
    def request(self) -> Seen:
        """The only request that came."""
        (only,) = self.requests
        return only

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.port}"

    async def start(self) -> None:
        """Begins to listen, on a port that is free."""
        await self._server.start_server()

    async def stop(self) -> None:
        """Ends; nobody listens there any more."""
        await self._server.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text) if text else None
        self.requests.append(Seen(request.method, request.raw_path, dict(request.headers), body))
        if not self._script:
            return web.json_response({"message": "the test has no answer for this"}, status=501)
        step = self._script.popleft()
        if not isinstance(step, Answer):
            return await step(request)
        response = web.StreamResponse(status=step.status, headers={"Content-Type": "application/json", **step.headers})
        if not step.cut:
            await response.prepare(request)
            await response.write(step.payload)
            return response
        response.content_length = len(step.payload) + 1000
        await response.prepare(request)
        await response.write(step.payload)
        assert request.transport is not None
        request.transport.close()
        return response


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Server, Cluster]]:
    """Runs a scripted server, and a client whose kubeconfig in `folder` names it."""
    server = Server()
    await server.start()
    kubeconfig = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server.url}}],
        "users": [{"name": "we", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "it", "user": "we"}}],
        "current-context": "here",
    }
    kubeconfig.write_text(yaml.safe_dump(document))
    cluster = await Cluster.connect(str(kubeconfig))
    try:
        yield server, cluster
    finally:
        await cluster.close()
        await server.stop()
