"""What happens to every request to the API server on its way, the client's and kopf's: it is counted.

A middleware of aiohttp, for the sessions that `cluster` makes.
"""

import time
from typing import NamedTuple

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from yarl import URL

from outhaul_operator import metrics

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Asked(NamedTuple):
    """What a request is about, in the words of RBAC; without names."""

    verb: str
    resource: str
    """The plural, with `/status` where it is about a status."""


def asked(method: str, url: URL) -> Asked:
    """Returns what a request is about; what is no request for objects has the resource `other`."""
    _, resource, name, subresource = _split(url)
    if method != "GET":
        verb = _VERBS.get(method, method.lower())
    elif name:
        verb = "get"
    else:
        verb = "watch" if url.query.get("watch") == "true" else "list"
    return Asked(verb, f"{resource}/{subresource}" if subresource else resource or "other")


def namespace_of(url: URL) -> str | None:
    """Returns the namespace that a request stays in; None where it is about all, or about none."""
    return _split(url)[0]


def _split(url: URL) -> tuple[str | None, str, str, str]:
    """Returns namespace, plural, name and subresource; empty where there is none."""
    parts = url.path.strip("/").split("/")
    # api/v1/… or apis/group/version/…
    parts = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    namespace = None
    if len(parts) > 2 and parts[0] == "namespaces":  # noqa: PLR2004 - the namespace, and something in it
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "", "")[:3]
    return namespace, resource, name, subresource


async def counted(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Sends a request and counts it by its answer; a watch once it has begun."""
    verb, resource = asked(request.method, request.url)
    code, begun = "none", time.monotonic()
    try:
        response = await handler(request)
        code = str(response.status)
        if verb != "watch":
            metrics.API_SECONDS.labels(verb).observe(time.monotonic() - begun)
    finally:
        metrics.API_REQUESTS.labels(verb, resource, code).inc()
    return response
