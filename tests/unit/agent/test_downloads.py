"""A file is downloaded whole and is the one that was meant, or it is said in our own words why not."""

import datetime as dt
import http.server
import io
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from archives import Answer, FileServer, promise, raw, redirect, serving, sha256
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from outhaul_agent.downloads import download
from outhaul_agent.reasons import Problem, Reason, RunError

NO_ADDRESS = "the server redirects (302 Found) too often, or to no address of http or https"
NO_HTTP = "the server's answer is not HTTP, or was cut off"
GOOD = b"0123456789" * 20_000


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A file server on loopback."""
    with serving() as files:
        files.at["/good"] = GOOD
        yield files


def downloaded(url: str, data: bytes = GOOD, limit: int = 1_000_000) -> bytes:
    """Downloads what should be this data, and returns what came."""
    file = io.BytesIO()
    assert download(url, sha256(data).upper(), file, limit) == len(file.getvalue())
    return file.getvalue()


def refused(url: str, data: bytes = GOOD, limit: int = 1_000_000) -> Problem:
    """Returns why nothing is downloaded; the message names the address, but for its query."""
    with pytest.raises(RunError) as caught:
        downloaded(url, data, limit)
    shown = f"the archive '{url.partition('?')[0]}': "
    assert caught.value.problem.message.startswith(shown)
    assert "hunter2" not in caught.value.problem.message
    return Problem(caught.value.problem.reason, caught.value.problem.message.removeprefix(shown))


def test_a_file_comes_whole(server: FileServer) -> None:
    """Every byte, also where the server does not say how many there are."""
    server.at["/unsaid"] = raw(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD)
    assert downloaded(f"{server.url}/good") == GOOD
    assert downloaded(f"{server.url}/unsaid") == GOOD


@pytest.mark.parametrize("steps", [1, 10])
def test_redirects_are_followed(server: FileServer, steps: int) -> None:
    """As many as a browser would follow, relative ones too."""
    for step in range(steps):
        server.at[f"/{step}"] = redirect(f"/{step + 1}")
    server.at[f"/{steps}"] = GOOD
    assert downloaded(f"{server.url}/0") == GOOD


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "the server answers 404 Not Found"),
        (
            redirect("/here?token=hunter2"),
            NO_ADDRESS,
        ),
        (
            redirect("file:///etc/hostname"),
            NO_ADDRESS,
        ),
        (redirect("data:,hunter2"), NO_ADDRESS),
        (redirect("ftp://127.0.0.1/a"), "it redirects to, or goes by way of, an address that cannot be used"),
        (redirect("http://127.0.0.1:hunter2/a"), NO_HTTP),
        (promise(1000, b"x" * 10), "the connection ended after 10 of 1,000 bytes"),
        (raw(b"hunter2\r\n\r\n"), NO_HTTP),
        (raw(b""), NO_HTTP),
        (raw(b"HTTP/1.0 503 hunter2\r\n\r\n"), "the server answers 503 Service Unavailable"),
        (raw(b"HTTP/1.0 799 hunter2\r\n\r\n"), "the server answers 799"),
        (raw(b"HTTP/1.0 204 hunter2\r\n\r\n"), "the server answers 204 No Content"),
    ],
)
def test_what_cannot_be_downloaded(server: FileServer, answer: Answer | None, words: str) -> None:
    """What went wrong on the way is told, and no word of the server is shown."""
    if answer is not None:
        server.at["/here?token=hunter2"] = answer
    problem = refused(f"{server.url}/here?token=hunter2")
    assert problem == Problem(Reason.SOURCE_UNAVAILABLE, words)


def test_nobody_answers() -> None:
    """A port where nobody listens is told as the system tells it."""
    assert refused("http://127.0.0.1:1/a") == Problem(Reason.SOURCE_UNAVAILABLE, "Connection refused")


def test_a_server_that_says_nothing(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not go on is given up."""
    monkeypatch.setattr("outhaul_agent.downloads.SILENCE", 0.1)
    given_up = threading.Event()

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        promise(10, b"x")(request)
        given_up.wait(60)

    server.at["/slow"] = answer
    problem = refused(f"{server.url}/slow")
    given_up.set()
    assert problem == Problem(Reason.SOURCE_UNAVAILABLE, "the server, or the proxy, says nothing for 0.1 s")


def test_another_file(server: FileServer) -> None:
    """A file with another digest is refused; both digests are told."""
    problem = refused(f"{server.url}/good", b"other")
    assert problem.reason is Reason.BAD_SOURCE
    words = f"its SHA-256 is {sha256(GOOD)} (200,000 bytes) and not {sha256(b'other')}: correct source.archive.sha256"
    assert problem.message.startswith(words)


def test_a_file_that_is_too_large(server: FileServer) -> None:
    """It is refused by what the server promises, or else by what comes."""
    server.at["/promised"] = promise(10**12)
    server.at["/endless"] = raw(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD)
    for path in ("/promised", "/endless"):
        problem = refused(f"{server.url}{path}", limit=100_000)
        assert problem == Problem(Reason.BAD_SOURCE, "it has more than 100,000 bytes")


def test_a_proxy_is_asked(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies come from the usual variables."""
    monkeypatch.setenv("http_proxy", server.url)
    url = "http://archives.example.com/good"
    server.at[url] = GOOD
    assert downloaded(url) == GOOD
    assert server.requests == [f"GET {url} HTTP/1.1"]


def test_only_trusted_servers_are_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of an unknown authority is refused, with what to do; named in SSL_CERT_FILE it is fine."""
    context, certificate = self_signed(tmp_path)
    with serving(context) as files:
        files.at["/good"] = GOOD
        problem = refused(f"{files.url}/good")
        assert problem.reason is Reason.SOURCE_UNAVAILABLE
        assert "the server's certificate is not trusted (self-signed certificate)" in problem.message
        assert "add its authority to the image, or name it in SSL_CERT_FILE" in problem.message
        assert files.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert downloaded(f"{files.url}/good") == GOOD


def test_no_tls_where_it_was_asked_for(server: FileServer) -> None:
    """A server that speaks no TLS is told as such."""
    problem = refused(f"{server.url.replace('http:', 'https:')}/good")
    assert problem.reason is Reason.SOURCE_UNAVAILABLE
    assert problem.message.startswith("no TLS connection can be made")


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Makes a certificate of its own for loopback; returns what serves with it, and the file of the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "files")])
    now = dt.datetime.now(dt.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(addresses, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(pem + private)
    (folder / "ca.pem").write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context, folder / "ca.pem"
