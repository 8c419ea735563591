"""How the API server is reached: where, with which credentials, by which sessions. `cluster` alone uses it."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse
from kubernetes.aio import client, config
from outhaul_api.vocabulary import MANAGER

from outhaul_operator import traffic


async def configuration(kubeconfig: str | None) -> client.Configuration:
    """Returns a pod's service account where there is one, else what a kubeconfig file says.

    Args:
        kubeconfig: A kubeconfig file's path; None: the service account, else kubectl's own default.

    Raises:
        kubernetes.aio.config.ConfigException: There is neither.
    """
    found = client.Configuration()
    if kubeconfig is None:
        try:
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(client_configuration=found)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(config_file=kubeconfig, client_configuration=found)  # type: ignore[no-untyped-call]
    # Left to itself, aiohttp looks for a proxy and reads ~/.netrc again for each request, and that in a thread.
    found.proxy = found.proxy or _proxy(found.host)
    found.client_session_kwargs = {"middlewares": [traffic.counted], "trust_env": False}
    # Watches last, and must not use up the connections that requests need: `cluster` limits those itself.
    found.connection_pool_maxsize = 0
    return found


def _proxy(server: str) -> str | None:
    """Returns the proxy that the environment names for the API server."""
    url = urlsplit(server)
    return None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme)


def session(api: client.ApiClient, middleware: ClientMiddlewareType) -> aiohttp.ClientSession:
    """Returns a session beside the client's own, with the token of the moment on each request."""

    async def authorized(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        token = (await api.configuration.auth_settings()).get("BearerToken")
        if token is not None:
            request.headers["Authorization"] = token["value"]
        return await handler(request)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=api.rest_client.ssl_context),
        headers={"User-Agent": MANAGER},
        middlewares=[middleware, traffic.counted, authorized],
        proxy=api.rest_client.proxy,
    )
