"""A small client of HTTPS servers that want a certificate: JSON in, JSON out.

Enough to ask whether the API server and etcd are ready, and for tests that want one answer without starting kubectl.
Connections are kept: a handshake costs both sides more than most requests do.
"""

import http
import json
import ssl
from pathlib import Path
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from cluster.errors import RequestFailed
from cluster.pki import Pair

USER_AGENT = "outhaul-tests"


class Client:
    """Talks to one server on this machine as one user; from any thread.

    Args:
        host: name or address, as in the server's certificate.
        port: its port.
        ca: who signed the server's certificate.
        pair: the user's certificate.
    """

    def __init__(self, host: str, port: int, *, ca: Path, pair: Pair) -> None:
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(pair.certificate, pair.key)
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        self._pool = urllib3.HTTPSConnectionPool(
            host, port, ssl_context=context, maxsize=4, retries=False, headers=headers
        )

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Any:
        """Sends one request, once, and returns the answer: parsed when it is JSON, else as text.

        Raises:
            RequestFailed: the server answered with an error.
            OSError: there was no connection, or no answer in time.
        """
        content = None if body is None else json.dumps(body)
        headers = {**self._pool.headers, "Content-Type": content_type}
        try:
            response = self._pool.urlopen(method, path, body=content, headers=headers, timeout=timeout, redirect=False)
        except HTTPError as error:
            raise ConnectionError(f"{method} {path}: {error}") from error
        text = response.data.decode()
        answer = json.loads(text) if "json" in response.headers.get("Content-Type", "") else text
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            message = answer.get("message", text) if isinstance(answer, dict) else text
            raise RequestFailed(response.status, f"{method} {path}: {message}")
        return answer

    def answers(self, path: str) -> bool:
        """Whether a GET of this path succeeds right now."""
        try:
            self.request("GET", path, timeout=5)
        except (OSError, RequestFailed):
            return False
        return True

    def close(self) -> None:
        """Gives its connections up."""
        self._pool.close()
