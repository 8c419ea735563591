"""The only module that talks to the API server: requests, their errors, and nothing about what they mean.

Everybody else passes and gets plain JSON objects. Built on the generic part of `kubernetes.aio` (configuration,
authentication, connection pool); its typed models are not used, since half of our objects are custom ones.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Self
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import ClientMiddlewareType
from kubernetes.aio import client
from outhaul_api.vocabulary import MANAGER

from outhaul_operator import apierrors, connections
from outhaul_operator.apierrors import (
    UNPROCESSABLE,
    ApiError,
    ConflictError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from outhaul_operator.kinds import Kind, Object, Objects
from outhaul_operator.turns import Turns

_ATTEMPTS = 5

_REQUEST_TIMEOUT_S = 30
_MOST_REQUESTS = 100
"""Requests under way at a time. Those that wait for their turn are not late yet."""

_NOT_FOUND = 404
_WATCH_S = 300
_METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


class Cluster:
    """A connection to one API server.

    Use `connect` to make one, and close it at the end.
    """

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self.may_write: Callable[[], bool] = lambda: True
        """Asked before each change of anything but a Lease: who has lost leadership changes nothing more."""
        self._turns = Turns(_MOST_REQUESTS, share=_MOST_REQUESTS // 4)

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """Connects as a pod's service account where there is one, else by a kubeconfig file.

        Args:
            kubeconfig: A kubeconfig file's path; None: the service account, else kubectl's own default.

        Raises:
            kubernetes.aio.config.ConfigException: There is neither.
        """
        api = client.ApiClient(await connections.configuration(kubeconfig))
        api.user_agent = MANAGER
        return cls(api)

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self._api.configuration.host)

    def session(self, middleware: ClientMiddlewareType) -> aiohttp.ClientSession:
        """Returns a session with the API server for who does without this class: kopf.

        Args:
            middleware: Each request goes through it.
        """
        return connections.session(self._api, middleware)

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Returns the object as the server has it now."""
        return await self._json("GET", kind, namespace, name)

    async def list(self, kind: Kind, namespace: str | None, labels: Mapping[str, str]) -> Objects:
        """Returns the objects that carry all the labels, of one namespace or, with None, of all."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        answer = await self._json("GET", kind, namespace, query={"labelSelector": selector} if selector else None)
        # Items of a list do not say what they are.
        what = {"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List")}
        return [what | item for item in answer["items"] or []]

    async def exists(self, kind: Kind, namespace: str, name: str) -> bool:
        """Tells whether there is an object of that name."""
        try:
            await self.get(kind, namespace, name)
        except NotFoundError:
            return False
        return True

    async def is_served(self, kind: Kind, namespace: str | None) -> bool:
        """Tells whether the server knows a kind; of ours it does once its CustomResourceDefinition is there."""
        try:
            await self._json("GET", kind, namespace, query={"limit": "1"})
        except UnavailableError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    async def create(self, kind: Kind, body: Object, *, dry_run: bool = False) -> Object:
        """Creates an object.

        Args:
            kind: The object's kind.
            body: The object.
            dry_run: Only asks whether it could be created.

        Raises:
            AlreadyExistsError: There is one of that name; the caller decides whether it is the same.
        """
        query = {"fieldManager": MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return await self._json("POST", kind, body["metadata"]["namespace"], body=body, query=query)

    async def replace(self, kind: Kind, obj: Object) -> Object:
        """Writes an object whole, as it was read but for what was changed in it.

        Raises:
            ConflictError: Somebody else has changed it since it was read.
        """
        metadata = obj["metadata"]
        query = {"fieldManager": MANAGER}
        return await self._json("PUT", kind, metadata["namespace"], metadata["name"], body=obj, query=query)

    async def json_patch(self, kind: Kind, namespace: str, name: str, operations: Objects) -> Object:
        """Applies a JSON patch. A patch that only tests writes nothing and answers with the object.

        Raises:
            RefusedError: A `test` failed, or the result is invalid.
        """
        query = {"fieldManager": MANAGER}
        return await self._json("PATCH", kind, namespace, name, body=operations, query=query, content_type=JSON_PATCH)

    async def apply_status(self, kind: Kind, obj: Object, status: Object) -> Object:
        """Makes an object's status exactly `status`, if it still is as in `obj`.

        By a JSON patch that tests the version: an apply would put its own in the place of a newer status.

        Raises:
            ConflictError: The object of that name is another one, or its status was written since it was read.
            RefusedError: The status is invalid.
        """
        read = obj
        for _ in range(_ATTEMPTS):
            try:
                return await self._patch_status(kind, read, status)
            except RefusedError as error:
                if error.status != UNPROCESSABLE:
                    raise
                now, refused = await self.get(kind, read["metadata"]["namespace"], read["metadata"]["name"]), error
            before, after = read["metadata"], now["metadata"]
            if before["uid"] != after["uid"] or obj.get("status") != now.get("status"):
                break
            if before["resourceVersion"] == after["resourceVersion"]:
                raise refused
            # Something else of it has changed.
            read = now
        what = f"patch {kind.value[1]} {obj['metadata']['namespace']}/{obj['metadata']['name']}/status"
        raise ConflictError(what, UNPROCESSABLE, "it has changed since it was read")

    async def _patch_status(self, kind: Kind, read: Object, status: Object) -> Object:
        metadata = read["metadata"]
        # The version, not the status that was read: API servers compare texts as they are escaped, each in its own way.
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            {"op": "add", "path": "/status", "value": status},
        ]
        return await self._json(
            "PATCH",
            kind,
            metadata["namespace"],
            metadata["name"],
            subresource="status",
            body=operations,
            query={"fieldManager": MANAGER},
            content_type=JSON_PATCH,
        )

    async def merge(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """Applies a JSON merge patch."""
        query = {"fieldManager": MANAGER}
        return await self._json("PATCH", kind, namespace, name, body=body, query=query, content_type=MERGE_PATCH)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Deletes an object; one that is gone already is fine.

        Args:
            kind: The object's kind.
            namespace: Its namespace.
            name: Its name.
            uid: Delete only the object with this uid.
            resource_version: Delete only if it has not changed since.

        Raises:
            ConflictError: A precondition does not hold.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {key: value for key, value in preconditions.items() if value},
        }
        try:
            await self._json("DELETE", kind, namespace, name, body=body)
        except NotFoundError:
            return

    async def may_watch(self, kind: Kind, namespace: str) -> bool:
        """Tells whether the operator may list and watch a kind in a namespace; asking is no attempt."""
        for verb in ("list", "watch"):
            attributes = {"verb": verb, "resource": kind.value[1], "namespace": namespace}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "metadata": {},
                "spec": {"resourceAttributes": attributes},
            }
            answer = await self._json("POST", Kind.ACCESS_REVIEW, None, body=body)
            if not answer["status"].get("allowed"):
                return False
        return True

    async def watch_events(self, namespace: str, fields: Mapping[str, str]) -> AsyncIterator[Object]:
        """Yields the events with these fields, those of the past first, until the server ends the stream."""
        query = {"fieldSelector": ",".join(f"{key}={value}" for key, value in fields.items())}
        async for event in self._watch(Kind.EVENT, namespace, query, "application/json"):
            if event["type"] in {"ADDED", "MODIFIED"}:
                yield event["object"]

    async def list_metadata(self, kind: Kind, namespace: str) -> tuple[Objects, str]:
        """Returns the metadata of a namespace's objects, without what they hold, and where to watch on from."""
        answer = await self._json("GET", kind, namespace, accept=_METADATA_LIST)
        return answer["items"] or [], answer["metadata"]["resourceVersion"]

    async def watch_metadata(self, kind: Kind, namespace: str, version: str) -> AsyncIterator[Object]:
        """Yields watch events with the objects' metadata alone, until the server ends the stream.

        Raises:
            UnavailableError: The stream broke, or its beginning is gone: list again.
        """
        query = {"resourceVersion": version}
        async for event in self._watch(kind, namespace, query, _METADATA):
            if event["type"] == "ERROR":
                raise UnavailableError(f"watch {kind.value[1]} in {namespace}", 0, "the watch has to begin anew")
            yield event

    async def _watch(self, kind: Kind, namespace: str, query: Mapping[str, str], accept: str) -> AsyncIterator[Object]:
        what = f"watch {kind.value[1]} in {namespace}"
        query = {**query, "watch": "true", "timeoutSeconds": str(_WATCH_S)}
        url = self._url(kind, namespace, query=query)
        response = await self._request("GET", url, None, {"Accept": accept}, what, timeout_s=_WATCH_S + 30)
        async with response:
            try:
                if response.status != 200:  # noqa: PLR2004
                    raise _error(what, response, await response.read())
                async for line in response.content:
                    event = apierrors.parsed(line)
                    if event is None or not {"type", "object"} <= event.keys():
                        raise UnavailableError(what, response.status, "an event of the watch is none")
                    yield event
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise UnavailableError(what, 0, type(error).__name__) from error

    async def _json(
        self,
        method: str,
        kind: Kind,
        namespace: str | None,
        name: str | None = None,
        *,
        subresource: str | None = None,
        body: object = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        what = f"{method.lower()} {kind.value[1]} {'/'.join(part for part in (namespace, name, subresource) if part)}"
        if name is None and isinstance(body, dict):
            what += f"/{body['metadata'].get('name', '')}"
        url = self._url(kind, namespace, name, subresource, query)
        headers = {"Content-Type": content_type, "Accept": accept}
        # A Lease does not wait: it would run out meanwhile.
        async with contextlib.nullcontext() if kind is Kind.LEASE else self._turns.place(namespace):
            if method != "GET" and kind not in {Kind.LEASE, Kind.ACCESS_REVIEW} and not self.may_write():
                raise UnavailableError(what, 0, "this operator does not lead any more")
            response = await self._request(method, url, body, headers, what)
            async with response:
                try:
                    data = await response.read()
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise UnavailableError(what, 0, type(error).__name__) from error
        if not 200 <= response.status < 300:  # noqa: PLR2004
            raise _error(what, response, data)
        answer = apierrors.parsed(data)
        if answer is None:
            raise UnavailableError(what, response.status, "the answer is no JSON object")
        return answer

    async def _request(
        self,
        method: str,
        url: str,
        body: object,
        headers: dict[str, str],
        what: str,
        *,
        timeout_s: float = _REQUEST_TIMEOUT_S,
    ) -> aiohttp.ClientResponse:
        headers = {**headers, **self._api.default_headers}
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], url, method, body)
            answer = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method,
                url,
                headers=headers,
                body=body,
                _request_timeout=aiohttp.ClientTimeout(total=timeout_s, connect=10),
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The text of a connection error may quote headers; its type says enough.
            raise UnavailableError(what, 0, type(error).__name__) from error
        response: aiohttp.ClientResponse = answer.response
        return response

    def _url(
        self,
        kind: Kind,
        namespace: str | None,
        name: str | None = None,
        subresource: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> str:
        base, plural = kind.value
        parts = [self._api.configuration.host.rstrip("/"), base]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts) + (f"?{urlencode(query)}" if query else "")


def _error(what: str, response: aiohttp.ClientResponse, data: bytes) -> ApiError:
    return apierrors.from_answer(what, response.status, data, response.headers.get("Retry-After", ""))
