"""A small client of HTTPS servers that want a certificate: JSON in, JSON out.

Enough to ask whether the API server and etcd are ready, and for tests that want one answer without starting
kubectl.
"""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from cluster.errors import RequestFailed
from cluster.pki import Pair


class Client:
    """Talks to one server on this machine as one user.

    Args:
        host: name or address, as in the server's certificate.
        port: its port.
        ca: who signed the server's certificate.
        pair: the user's certificate.
    """

    def __init__(self, host: str, port: int, *, ca: Path, pair: Pair) -> None:
        self._address = (host, port)
        self._context = ssl.create_default_context(cafile=str(ca))
        self._context.load_cert_chain(pair.certificate, pair.key)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Any:
        """Sends one request and returns the answer: parsed when it is JSON, else as text.

        Raises:
            RequestFailed: the server answered with an error.
            OSError: there was no connection, or no answer in time.
        """
        host, port = self._address
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context)
        try:
            content = None if body is None else json.dumps(body)
            headers = {
                "Accept": "application/json",
                "Content-Type": content_type,
                "User-Agent": "outhaul-tests",
            }
            connection.request(method, path, body=content, headers=headers)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = "json" in (response.getheader("Content-Type") or "")
        except http.client.HTTPException as error:  # cut off half way
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        answer = json.loads(text) if is_json else text
        if response.status >= http.client.BAD_REQUEST:
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
