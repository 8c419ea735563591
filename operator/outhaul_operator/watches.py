"""kopf's watches, seen from the requests that they make: whether they live, and how fast they are opened.

A middleware of the session that `handlers` gives to kopf. It notices when a watch shows no sign of life; it asks a
server that ends watches at once again with growing pauses, of which kopf has none; and it turns what would end kopf,
though listing again repairs it, into the one error after which kopf lists again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, StreamReader

from outhaul_operator.queue import backoff
from outhaul_operator.traffic import asked, namespace_of

_OK, _GONE, _UNAVAILABLE = 200, 410, 503
_STARTING = {403, 404}
"""What a server answers while it starts and has not read all roles and kinds yet; in earnest, it goes on for long."""
_LIST_AGAIN = b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n'
"""What a server says when a watch goes too far back; kopf then lists anew."""
_SHORT_S = 5.0
"""A watch that its server ends sooner was not worth opening."""


class Place(NamedTuple):
    """What one watch is of."""

    resource: str
    namespace: str | None
    """None: all."""

    def __str__(self) -> str:
        """Returns the form that messages use."""
        return self.resource if self.namespace is None else f"{self.resource} in {self.namespace}"


@dataclass
class _Watch:
    heard_at: float
    """When the server last said anything, by the loop's clock."""
    is_listed: bool = False
    """Whether the first list is in: a watch follows it."""
    lists: int = 0
    """How many lists since the last watch began."""
    in_vain: int = 0
    """How often in a row the server has ended it at once."""


class Watches:
    """The watches of one operator.

    Args:
        places: What has to be watched.
        patience_s: After how long a silence kopf opens a watch anew; one that stays silent for three times as long is
            wedged.
        listed_again: Told after each list but the first of a place: what vanished meanwhile, kopf does not say.
        sleep: Waits before a watch is opened.
    """

    def __init__(
        self,
        places: Iterable[Place],
        patience_s: float,
        listed_again: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._patience_s = patience_s
        self._listed_again = listed_again
        self._sleep = sleep
        self._watches = {place: _Watch(_now()) for place in places}

    def unlisted(self) -> str | None:
        """Tells what has never been listed; a check of readiness."""
        missing = [str(place) for place, watch in self._watches.items() if not watch.is_listed]
        return f"not listed yet: {', '.join(missing)}" if missing else None

    def wedged(self) -> str | None:
        """Tells which watches show no sign of life; a check of liveness."""
        silent = [f"{place} for {age:.0f} s" for place, age in self.ages().items() if age > 3 * self._patience_s]
        return f"watches are silent: {', '.join(silent)}" if silent else None

    def ages(self) -> dict[Place, float]:
        """Returns the seconds since the server last said anything about each place."""
        now = _now()
        return {place: now - watch.heard_at for place, watch in self._watches.items()}

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Sends a request of kopf's; this is the middleware."""
        verb, resource = asked(request.method, request.url)
        watch = self._watches.get(Place(resource, namespace_of(request.url)))
        if watch is None or verb not in {"list", "watch"}:
            return await handler(request)
        if watch.in_vain:
            # Not for as long as makes kopf lose its patience.
            await self._sleep(backoff(watch.in_vain, longest_s=self._patience_s / 3))
        if verb == "list":
            watch.lists += 1
        elif watch.lists:
            if watch.is_listed:
                self._listed_again()
            watch.lists, watch.is_listed = 0, True
        response = await handler(request)
        if watch.is_listed and response.status in _STARTING:
            # kopf asks again after this one, and ends after those; where it stays so, the watch is found to be wedged.
            response.status = _UNAVAILABLE
            return response
        watch.heard_at = _now()
        if verb == "watch" and response.status in {_OK, _GONE}:
            lines = _Lines(response.content, watch, is_gone=response.status == _GONE)
            # kopf takes any other answer for the end of the operator.
            response.status = _OK
            response.content = cast("StreamReader", lines)
        return response


class _Lines:
    """The lines of a watch in place of the stream: whole ones alone, so that one that was cut short is none."""

    def __init__(self, content: StreamReader, watch: _Watch, *, is_gone: bool) -> None:
        self._content = content
        self._watch = watch
        self._is_gone = is_gone

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yields what kopf splits into lines."""
        begun, is_ours = _now(), False
        try:
            if self._is_gone:
                yield _LIST_AGAIN
                return
            rest = b""
            async for data in self._content.iter_chunked(size):
                self._watch.heard_at = _now()
                whole, newline, rest = (rest + data).rpartition(b"\n")
                if newline:
                    yield repaired(whole + newline)
        except (GeneratorExit, asyncio.CancelledError):
            is_ours = True
            raise
        finally:
            is_vain = not is_ours and _now() - begun < _SHORT_S
            self._watch.in_vain = self._watch.in_vain + 1 if is_vain else 0

    def __getattr__(self, name: str) -> object:
        """Returns whatever else the response, in whose place this is, asks of a stream."""
        return getattr(self._content, name)


def repaired(lines: bytes) -> bytes:
    """Returns a watch's lines, those that are no events or tell of an error as one after which kopf lists again."""
    if all(_is_event(line) for line in lines.splitlines()):
        return lines
    return b"".join(line + b"\n" if _is_event(line) else _LIST_AGAIN for line in lines.splitlines())


def _is_event(line: bytes) -> bool:
    # Not parsed, which kopf does: only its ends are looked at.
    return line.startswith(b"{") and line.endswith(b"}") and b'"type":"ERROR"' not in line[:40]


def _now() -> float:
    return asyncio.get_running_loop().time()
