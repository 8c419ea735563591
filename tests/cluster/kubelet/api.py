"""A small client of the API server: calls that outlast its restart, and list-and-watch.

Plain aiohttp, because the generated client costs some 50 MB before it has done anything. Every call is
retried while the server cannot be reached or asks for patience; any other refusal is an `ApiError`.
"""

import asyncio
import base64
import json
import logging
import random
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import yaml

logger = logging.getLogger(__name__)
TYPE_OF_PATCH = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
Json = dict[str, Any]
METADATA_ONLY = "application/json;as={kind};g=meta.k8s.io;v=v1"
WATCH_SECONDS = 300
GONE = 410
PATIENCE = frozenset({429, 500, 502, 503, 504})
UNREACHABLE = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)


class ApiError(Exception):
    """The API server refused a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Relisted:
    """The whole list, read anew: whatever is not in it is gone."""

    items: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Changed:
    """One object was added or modified."""

    item: Json


@dataclass(frozen=True)
class Deleted:
    """One object is gone."""

    item: Json


Event = Relisted | Changed | Deleted


class Backoff:
    """Pauses that double up to a limit, with jitter."""

    def __init__(self, first: float = 0.1, limit: float = 3.0) -> None:
        self._first = first
        self._limit = limit
        self._next = first

    def reset(self) -> None:
        """Start again from the shortest pause."""
        self._next = self._first

    async def pause(self) -> None:
        """Wait the next, longer pause."""
        await asyncio.sleep(self._next * random.uniform(0.7, 1.3))  # noqa: S311 # jitter, no secret
        self._next = min(self._next * 2, self._limit)


def _embedded(entry: Json, name: str, folder: Path) -> str | None:
    """The path of a kubeconfig's file entry, written out first where its content is embedded."""
    if data := entry.get(f"{name}-data"):
        path = folder / name
        path.write_bytes(base64.b64decode(data))
        return str(path)
    value: str | None = entry.get(name)
    return value


class Api:
    """A connection to the API server of a kubeconfig's current context."""

    def __init__(self, server: str, context: ssl.SSLContext, headers: dict[str, str]) -> None:
        self.server = server.rstrip("/")
        self._context = context
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """Read server, trust and credentials."""
        config = yaml.safe_load(path.read_text())
        current = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], current["cluster"])["cluster"]
        user = _named(config["users"], current["user"])["user"]
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            context = ssl.create_default_context(cafile=_embedded(cluster, "certificate-authority", here))
            if certificate := _embedded(user, "client-certificate", here):
                context.load_cert_chain(certificate, _embedded(user, "client-key", here))
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        return cls(cluster["server"], context, headers)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server, as pods should dial it."""
        parts = urlsplit(self.server)
        return parts.hostname or "127.0.0.1", parts.port or 443

    @property
    def authorities(self) -> bytes:
        """The certificates that the server's own is trusted for, in DER."""
        return b"".join(self._context.get_ca_certs(binary_form=True))

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._context, limit=0),
            headers={"User-Agent": "stand-in-kubelet", **self._headers},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    @property
    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            message = "use Api as a context manager"
            raise RuntimeError(message)
        return self._session

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Json | list[Json] | None = None,
        params: dict[str, str] | None = None,
        patch: str | None = None,
        accept: str = "application/json",
    ) -> Json:
        """Call the API server once it can be reached.

        Args:
            method: The HTTP method.
            path: The path below the server's address.
            body: What to send, as JSON.
            params: The query.
            patch: `json`, `merge` or `strategic`, where the method is PATCH.
            accept: The wanted representation.

        Returns:
            What the server answered.

        Raises:
            ApiError: The server refused, and not for want of patience.
        """
        headers = {"Accept": accept, "Content-Type": TYPE_OF_PATCH.get(patch or "", "application/json")}
        data = None if body is None else json.dumps(body).encode()
        backoff = Backoff()
        while True:
            try:
                async with self._client.request(
                    method,
                    self.server + path,
                    data=data,
                    params=params,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=30),
                ) as response:
                    content = await response.read()
                    if response.ok:
                        answer: Json = json.loads(content)
                        return answer
                    if response.status not in PATIENCE:
                        raise ApiError(response.status, _message(content))
                    logger.info("%s %s: %s, trying again", method, path, _message(content))
            except UNREACHABLE as error:
                logger.info("%s %s: %r, trying again", method, path, error)
            await backoff.pause()

    async def follow(
        self, path: str, *, fields: str | None = None, metadata_only: bool = False
    ) -> AsyncGenerator[Event, None]:
        """List, then watch, for ever; list again where the watch cannot be continued.

        Args:
            path: The collection's path.
            fields: A field selector.
            metadata_only: Send names and versions instead of contents, and list nothing: a `Relisted` then
                says only that changes may have been missed.

        Yields:
            What became of the collection, starting with a `Relisted`.
        """
        selector = {"fieldSelector": fields} if fields else {}
        version = ""
        backoff = Backoff()
        while True:
            began = time.monotonic()
            try:
                if not version:
                    listed = await self._list(path, selector, metadata_only=metadata_only)
                    version = listed["metadata"]["resourceVersion"]
                    yield Relisted([] if metadata_only else listed["items"])
                async for kind, item in self._watch(path, selector, version, metadata_only=metadata_only):
                    version = item["metadata"]["resourceVersion"]
                    backoff.reset()
                    if kind == "DELETED":
                        yield Deleted(item)
                    elif kind != "BOOKMARK":
                        yield Changed(item)
            except ApiError as error:
                if error.status == GONE:
                    version = ""
                else:
                    logger.warning("cannot follow %s: %s", path, error)
            except UNREACHABLE:
                pass
            if time.monotonic() - began < 1:  # a server that ends watches at once must not be hammered
                await backoff.pause()

    async def _list(self, path: str, selector: dict[str, str], *, metadata_only: bool) -> Json:
        if metadata_only:
            accept = METADATA_ONLY.format(kind="PartialObjectMetadataList")
            return await self.call("GET", path, params={**selector, "limit": "1"}, accept=accept)
        return await self.call("GET", path, params=selector)

    async def _watch(
        self, path: str, selector: dict[str, str], version: str, *, metadata_only: bool
    ) -> AsyncIterator[tuple[str, Json]]:
        params = {
            **selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        accept = METADATA_ONLY.format(kind="PartialObjectMetadata") if metadata_only else "application/json"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=WATCH_SECONDS + 30)
        async with self._client.get(
            self.server + path, params=params, headers={"Accept": accept}, timeout=timeout
        ) as response:
            if not response.ok:
                raise ApiError(response.status, _message(await response.read()))
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                    yield event["type"], event["object"]


def _named(entries: list[Json], name: str) -> Json:
    """The entry of a kubeconfig's list with this name."""
    return next(entry for entry in entries if entry["name"] == name)


def _message(content: bytes) -> str:
    """What a Status object says, or the raw answer."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")
