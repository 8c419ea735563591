"""A validating admission webhook: an HTTPS server on loopback that a control plane asks about one namespace."""

import base64
import http.server
import json
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cluster.controlplane import ControlPlane

Json = dict[str, Any]
Answer = Callable[[Json], Json]
"""Gives the response to a review's request, but for its uid."""

_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@contextmanager
def serving(plane: ControlPlane, answer: Answer) -> Iterator[str]:
    """Answers reviews; returns where."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = review["request"]
            response = {"uid": request["uid"], **answer(request)}
            body = json.dumps({**review, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = plane.authority.issue("webhook", "webhook", names=["127.0.0.1"])
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def registered(plane: ControlPlane, namespace: str, url: str, rules: Sequence[Json]) -> Iterator[None]:
    """Has the API server ask what answers at `url`; whether it does already is for the caller to find out."""
    name = f"reviews-{uuid.uuid4().hex[:10]}"
    label = {"metadata": {"labels": {"reviewed-by": name}}}
    plane.request("PATCH", f"/api/v1/namespaces/{namespace}", label, content_type="application/merge-patch+json")
    authority = base64.b64encode(plane.authority.ca.certificate.read_bytes()).decode()
    webhook = {
        "name": "reviews.outhaul.dev",
        "clientConfig": {"url": url, "caBundle": authority},
        "rules": rules,
        "namespaceSelector": {"matchLabels": {"reviewed-by": name}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    plane.request("POST", _PATH, {"metadata": {"name": name}, "webhooks": [webhook]})
    try:
        yield
    finally:
        plane.request("DELETE", f"{_PATH}/{name}")
