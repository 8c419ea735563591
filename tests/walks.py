"""Walks through the requests that the operator makes for an Installation, and has something happen at each of them.

A *place* is one request of a stage of an Installation's life, by what it asks and which of its kind it is. A *visit* is
one namespace in which something happens at some places; many of them are under way at once, since what is asked in one
namespace is told from the rest. Watches and events are no places: nothing is carried out by the first, and nothing
depends on the second.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from cluster.proxy import Answer, Cut, Fault, Proxy, Request, Send

_RUN = re.compile(r"-[0-9a-f]{10}(?=-|$)")
_POLL_S = 0.05


class Place(NamedTuple):
    """One request of a stage."""

    what: str
    """Verb, resource, and the name of the object, without what differs from one namespace to another."""
    nth: int
    """From 1: which of these."""

    def __str__(self) -> str:
        """Returns the form for people."""
        return f"{self.what} ({self.nth})"

    @property
    def is_write(self) -> bool:
        """Whether it asks for a change."""
        return self.what.partition(" ")[0] not in {"get", "list"}


Places = dict[str, list[Place]]
"""By stage, in order."""
Faults = Callable[[Place], Fault | None]
"""What happens at a place."""


def rows(places: Places) -> list[dict[str, Place]]:
    """Lays places out for lives: each life has at most one in each stage."""
    columns = zip_longest(*places.values())
    return [{stage: one for stage, one in zip(places, row, strict=True) if one is not None} for row in columns]


def only(place: Place | None, fault: Fault) -> Faults:
    """Has one thing happen, at one place or nowhere."""
    return {place: fault}.get


@dataclass
class Visit:
    """One namespace, during one stage."""

    faults: Faults
    seen: list[Place] = field(default_factory=list)
    """What was asked, in order."""
    reached: set[Place] = field(default_factory=set)
    """At which of its places something has happened."""
    is_cut_off: bool = False
    """Whether nothing arrives from here any more."""
    is_stopped: bool = False
    """Whether what was to arrive before that has arrived."""
    is_over: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """How often each thing was asked."""

    def note(self, request: Request) -> Place:
        """Takes note of a request; returns its place."""
        what = _what(request)
        self.counts[what] += 1
        place = Place(what, self.counts[what])
        self.seen.append(place)
        return place


class Walk:
    """Spoils what is asked in the namespaces that are visited, as their visits say; the rest passes.

    Args:
        proxy: What all requests of the operator go through.
    """

    def __init__(self, proxy: Proxy) -> None:
        self.server = proxy.url
        """Where the operator has to ask."""
        self._visits: dict[str, Visit] = {}
        proxy.fault = self._pass

    def visit(self, namespace: str, faults: Faults = lambda _: None, *, before: Visit | None = None) -> Visit:
        """Begins a visit, in the place of the one before.

        Args:
            namespace: Where.
            faults: What happens at which places.
            before: The visit that was ended in the middle of the stage, if any: what it has lost is asked again, and
                counted as the same.
        """
        counts = before.counts - Counter(one.what for one in before.reached) if before is not None else Counter()
        self._visits[namespace] = made = Visit(faults, counts=counts)
        return made

    def end(self) -> None:
        """Ends all visits. What they have kept from passing never arrives."""
        visits, self._visits = self._visits, {}
        for one in visits.values():
            one.is_over = True

    async def _pass(self, request: Request, send: Send) -> Answer:
        visit = self._visits.get(request.namespace or "")
        if visit is None or request.is_watch:
            return await send()
        if visit.is_cut_off:
            return await _never(visit)
        if request.resource == "events":
            return await send()
        place = visit.note(request)
        fault = visit.faults(place)
        if fault is None:
            return await send()
        visit.reached.add(place)
        return await fault(request, send)

    def stop(self, *, after: bool) -> Fault:
        """Stops everything that comes from the namespace, until the visits are ended: its operator is about to die.

        Args:
            after: Whether the request itself is still carried out; nobody hears the answer.
        """

        async def stopped(request: Request, send: Send) -> Answer:
            visit = self._visits[request.namespace or ""]
            visit.is_cut_off = True
            if after:
                async for _ in (await send()).body:
                    pass
            visit.is_stopped = True
            return await _never(visit)

        return stopped


async def _never(visit: Visit) -> Answer:
    """Keeps a request until its visit is over, and breaks its connection then."""
    while not visit.is_over:  # noqa: ASYNC110 - another thread says so
        await asyncio.sleep(_POLL_S)
    raise Cut


def _what(request: Request) -> str:
    name, verb = request.name, request.verb
    body = json.loads(request.body) if request.body else {}
    if name is None and verb == "create":
        name = body["metadata"]["name"]
    if isinstance(body, list) and all(one["op"] == "test" for one in body):
        # A guarded read: the operator may not get Secrets.
        verb = "test"
    return " ".join(filter(None, [verb, request.resource, _RUN.sub("-*", name or "")]))
