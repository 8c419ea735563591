"""Downloads a file over http or https, and makes sure that it is the one that was meant. `fetch` calls `download`.

The server may be anybody's: what it sends is counted and hashed, and none of its words gets into a message. No other
scheme is known here, so no redirect and no variable leads to a file of the pod or to an FTP server. Proxies come from
the usual variables, trusted authorities from the image, or from `SSL_CERT_FILE`.
"""

import hashlib
import http
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import IO, BinaryIO

from outhaul_agent import __version__
from outhaul_agent.reasons import Reason, RunError, quoted

MAX_BYTES = 512 * 1024**2
SILENCE = 30.0
"""Seconds in which a server has to say something."""
_CHUNK = 64 * 1024
_REDIRECTS = range(300, 400)


def is_url(url: str) -> bool:
    """Tells whether a URL is of http or https, names a host, and has no credentials."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    printable = url.isascii() and url.isprintable() and " " not in url
    return printable and parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc


def download(url: str, sha256: str, file: BinaryIO, limit: int = MAX_BYTES) -> int:
    """Writes what is at a URL to a file, and returns how many bytes that is.

    Args:
        url: `is_url` holds.
        sha256: its SHA-256, 64 hex digits.
        file: where it goes; it may hold anything where this fails.
        limit: how many bytes it may have.

    Raises:
        RunError: it cannot be had, or it is another file.
        OSError: the file cannot be written.
    """
    try:
        answer = _opener().open(_request(url), timeout=SILENCE)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unavailable(url, error) from None
    with answer:
        if answer.status != http.HTTPStatus.OK:
            raise _error(Reason.SOURCE_UNAVAILABLE, url, f"the server answers {_status(answer.status)}")
        found, size = _copy(url, answer, file, limit)
    if found != sha256.lower():
        message = f"its SHA-256 is {found} ({size:,} bytes) and not {sha256.lower()}: correct source.archive.sha256, "
        raise _error(Reason.BAD_SOURCE, url, message + "or have the server give the file that was meant")
    return size


def shown(url: str) -> str:
    """Returns a URL as messages show it: without its query, which may hold a token."""
    parts = urllib.parse.urlsplit(url)
    return quoted(f"{parts.scheme}://{parts.netloc}{parts.path}", 300)


def _request(url: str) -> urllib.request.Request:
    headers = {"User-Agent": f"outhaul-agent/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
    return urllib.request.Request(url, headers=headers)  # noqa: S310 - the opener knows nothing but http and https


def _opener() -> urllib.request.OpenerDirector:
    """Returns what opens URLs of http and https, and no others: the usual opener knows files and FTP as well."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _copy(url: str, answer: http.client.HTTPResponse, file: IO[bytes], limit: int) -> tuple[str, int]:
    too_large = _error(Reason.BAD_SOURCE, url, f"it has more than {limit:,} bytes")
    promised = answer.headers.get("Content-Length", "")
    expected = int(promised) if promised.isascii() and promised.isdigit() and len(promised) < 20 else None  # noqa: PLR2004
    if expected is not None and expected > limit:
        raise too_large
    digest, size = hashlib.sha256(), 0
    while True:
        try:
            chunk = answer.read(_CHUNK)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _unavailable(url, error) from None
        if not chunk:
            break
        size += len(chunk)
        if size > limit:
            raise too_large
        digest.update(chunk)
        file.write(chunk)
    if expected is not None and size < expected:
        message = f"the connection ended after {size:,} of {expected:,} bytes"
        raise _error(Reason.SOURCE_UNAVAILABLE, url, message)
    return digest.hexdigest(), size


def _unavailable(url: str, error: Exception) -> RunError:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
    return _error(Reason.SOURCE_UNAVAILABLE, url, _why(error))


def _why(error: Exception) -> str:
    """Says what went wrong on the way, in words that are none of the server's."""
    cause: object = error
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        cause = error.reason
    match cause:
        case urllib.error.HTTPError(code=code) if code in _REDIRECTS:
            words = f"the server redirects ({_status(code)}) too often, or to no address of http or https"
        case urllib.error.HTTPError(code=code):
            words = f"the server answers {_status(code)}"
        case ssl.SSLCertVerificationError(verify_message=words):
            remedy = "add its authority to the image, or name it in SSL_CERT_FILE"
            words = f"the server's certificate is not trusted ({words}): {remedy}"
        case ssl.SSLError():
            words = f"no TLS connection can be made ({cause.reason or 'it was cut off'})"
        case TimeoutError():
            words = f"the server, or the proxy, says nothing for {SILENCE:g} s"
        case http.client.HTTPException():
            words = "the server's answer is not HTTP, or was cut off"
        case OSError():
            words = cause.strerror or "the connection cannot be made: does the proxy let it through?"
        case _:
            words = "it redirects to, or goes by way of, an address that cannot be used"
    return words


def _status(code: int) -> str:
    phrase = http.client.responses.get(code)
    return f"{code} {phrase}" if phrase else str(code)


def _error(reason: Reason, url: str, message: str) -> RunError:
    return RunError(reason, f"the archive {shown(url)}: {message}")
