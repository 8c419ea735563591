"""Forgetting Terraform's state after a destroy: run as in a pod, against an HTTPS server that plays the API server."""

import base64
import datetime as dt
import gzip
import http.server
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from outhaul_operator.engines import forget_state

BASE = "/api/v1/namespaces/tenant/secrets"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/tenant/leases/lock-tfstate-default-shop"


def state(*resources: dict[str, Any], parts: int = 1) -> list[dict[str, Any]]:
    """Returns the Secrets of a state as Terraform's kubernetes backend writes it: gzip, in parts where it is large."""
    packed = gzip.compress(json.dumps({"version": 4, "resources": list(resources)}).encode())
    size = -(-len(packed) // parts)
    return [
        {
            "metadata": {"name": "tfstate-default-shop" + (f"-part-{index}" if index else "")},
            "data": {"tfstate": base64.b64encode(packed[index * size : (index + 1) * size]).decode()},
        }
        for index in range(parts)
    ]


RESOURCES = [{"type": "terraform_data", "name": f"r{index}"} for index in range(40)]


@pytest.mark.parametrize("parts", [1, 2, 12])
def test_resources_are_counted_over_all_parts(parts: int) -> None:
    """A state in several Secrets is put together in its order, in whatever order the server lists them."""
    secrets = state(*RESOURCES, parts=parts)
    assert forget_state._resources(secrets[::-1]) == 40  # noqa: SLF001 - it runs alone in a pod, and has no other face
    assert forget_state._resources(sorted(secrets, key=lambda one: str(one["metadata"]["name"]))) == 40  # noqa: SLF001


@pytest.mark.parametrize(
    "content", [{"version": 4}, {"version": 4, "resources": None}, {"version": 4, "resources": []}]
)
def test_a_state_without_resources_is_empty(content: dict[str, Any]) -> None:
    """Terraform writes no list, null or an empty list."""
    data = base64.b64encode(gzip.compress(json.dumps(content).encode())).decode()
    assert forget_state._resources([{"metadata": {"name": "a"}, "data": {"tfstate": data}}]) == 0  # noqa: SLF001


# -- as a program


class Api(http.server.ThreadingHTTPServer):
    """Plays the API server: lists the Secrets, deletes what is asked for, and remembers what that was."""

    secrets: list[dict[str, Any]]
    lease = True
    refuse: set[str]
    deleted: list[str]
    tokens: set[str]
    selectors: list[str]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Api

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Keeps the test's output clean."""

    def do_GET(self) -> None:
        """Lists Secrets."""
        url = urlsplit(self.path)
        self.server.tokens.add(self.headers["Authorization"])
        self.server.selectors += parse_qs(url.query)["labelSelector"]
        if url.path != BASE or "GET" in self.server.refuse:
            self.answer(403, {"message": "no"})
        else:
            self.answer(200, {"items": self.server.secrets})

    def do_DELETE(self) -> None:
        """Deletes something."""
        if "DELETE" in self.server.refuse:
            self.answer(403, {"message": "no"})
        elif self.path == LEASE and not self.server.lease:
            self.answer(404, {"message": "not found"})
        else:
            self.server.deleted.append(self.path)
            self.answer(200, {})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        """Sends JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a service account's: the server's root and a token; and beside it the server's own key."""
    folder = tmp_path_factory.mktemp("account")
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(certificate.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(private + certificate.public_bytes(pem))
    (folder / "token").write_text("the-token\n")
    return folder


@pytest.fixture
def api(account: Path) -> Iterator[Api]:
    """The server, with an empty state and a lock's Lease."""
    server = Api(("localhost", 0), Handler)
    server.secrets, server.refuse, server.deleted, server.tokens, server.selectors = state(), set(), [], set(), []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def forget(api: Api, account: Path, folder: Path, *, has_backend: bool = True) -> tuple[int, str]:
    """Runs the program as the pod does; only the place of the service account is another."""
    source = files("outhaul_operator.engines").joinpath("forget_state.py").read_text()
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert source.count(place) == 1
    (folder / "forget_state.py").write_text(source.replace(place, str(account)))
    if has_backend:
        (folder / "outhaul_backend.tf").write_text("")
    done = subprocess.run(
        [sys.executable, "-I", "forget_state.py", "outhaul_backend.tf", "tenant", "shop"],
        cwd=folder,
        env={"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(api.server_port)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert "the-token" not in done.stdout
    return done.returncode, done.stdout


def test_an_empty_state_is_forgotten(api: Api, account: Path, tmp_path: Path) -> None:
    """All Secrets of the state and the lock's Lease are deleted, with the pod's own token."""
    api.secrets = state(parts=3)
    assert forget(api, account, tmp_path) == (0, "")
    names = ["tfstate-default-shop", "tfstate-default-shop-part-1", "tfstate-default-shop-part-2"]
    assert api.deleted == [*(f"{BASE}/{name}" for name in names), LEASE]
    assert api.tokens == {"Bearer the-token"}
    assert api.selectors == ["tfstate=true,tfstateSecretSuffix=shop,tfstateWorkspace=default"]


def test_a_state_with_resources_is_kept(api: Api, account: Path, tmp_path: Path) -> None:
    """What Terraform still knows of something is not forgotten, and the step fails."""
    api.secrets = state(*RESOURCES[:3])
    assert forget(api, account, tmp_path) == (1, "the state in namespace tenant still lists 3 resources; it is kept\n")
    assert api.deleted == []


def test_the_state_of_another_backend_is_left_alone(api: Api, account: Path, tmp_path: Path) -> None:
    """Where the module has a backend of its own, nothing is even asked."""
    code, said = forget(api, account, tmp_path, has_backend=False)
    assert code == 0
    assert "a backend of its own" in said
    assert api.selectors == []


def test_no_state_is_fine(api: Api, account: Path, tmp_path: Path) -> None:
    """A second attempt, after everything was deleted, succeeds."""
    api.secrets, api.lease = [], False
    assert forget(api, account, tmp_path) == (0, "")


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
def test_missing_rights_are_told(api: Api, account: Path, tmp_path: Path, verb: str) -> None:
    """A service account that may not is told what it needs."""
    api.refuse = {verb}
    code, said = forget(api, account, tmp_path)
    assert code == 1
    assert "the service account needs list and delete on secrets, delete on leases" in said
