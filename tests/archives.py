"""Makes tar.gz archives, harmless ones and others, and serves them on loopback as a file server would."""

import gzip
import hashlib
import http.server
import io
import ssl
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

GZIP_LEVEL = 1
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def member(name: str, type_: bytes = tarfile.REGTYPE, *, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    """Returns a member's header; names are taken as they are."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = type_, target, mode
    return info


def tar(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Returns a tar of these members, each with its content if it has any."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as archive:
        for one in members:
            info, content = one if isinstance(one, tuple) else (one, b"")
            info.size = len(content) or info.size
            archive.addfile(info, io.BytesIO(content) if content else None)
    return buffer.getvalue()


def packed(data: bytes) -> bytes:
    """Compresses with gzip, always to the same bytes."""
    return gzip.compress(data, GZIP_LEVEL, mtime=0)


def tar_gz(files: dict[str, str]) -> bytes:
    """Returns an archive of text files."""
    return packed(tar(*((member(name), text.encode()) for name, text in files.items())))


def sha256(data: bytes) -> str:
    """Returns the SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


@dataclass
class FileServer:
    """A server on loopback. What is at a path is bytes, or a function that answers the request."""

    url: str
    at: dict[str, bytes | Answer] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """The request lines that came."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[FileServer]:
    """Serves while it is entered, by https where there is a context."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.requests.append(self.requestline)
            found = files.at.get(self.path)
            if found is None:
                self.send_error(http.HTTPStatus.NOT_FOUND, "hunter2")
            elif isinstance(found, bytes):
                self.send_response(http.HTTPStatus.OK)
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)
            else:
                found(self)

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients go away as they like
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if context is None else "https"
    files = FileServer(f"{scheme}://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def redirect(where: str) -> Answer:
    """Returns what answers with a redirect."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(http.HTTPStatus.FOUND)
        request.send_header("Location", where)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def raw(data: bytes) -> Answer:
    """Returns what answers with these bytes, which should be HTTP, and closes the connection."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.wfile.write(data)

    return answer


def promise(length: int, content: bytes = b"") -> Answer:
    """Returns what promises more bytes than it sends."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(http.HTTPStatus.OK)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(content)

    return answer
