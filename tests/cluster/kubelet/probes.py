"""Asks a container whether it is well: one attempt of a probe."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Sequence

from cluster.kubelet.api import Json

Execute = Callable[[Sequence[str]], Awaitable[bool]]
HEALTHY = range(200, 400)


async def passes(probe: Json, *, ip: str, ports: Sequence[Json], execute: Execute) -> bool:
    """Whether one attempt of a probe succeeds in its time.

    Args:
        probe: The probe's spec.
        ip: The pod's address.
        ports: The container's ports, for those that are named.
        execute: Runs a command in the container.
    """
    with contextlib.suppress(TimeoutError, OSError, ValueError, IndexError):
        async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
            if "exec" in probe:
                return await execute(probe["exec"]["command"])
            if "httpGet" in probe:
                wanted = probe["httpGet"]
                return await _http(wanted, wanted.get("host") or ip, _port(wanted["port"], ports)) in HEALTHY
            if "tcpSocket" in probe:
                wanted = probe["tcpSocket"]
                _, writer = await asyncio.open_connection(wanted.get("host") or ip, _port(wanted["port"], ports))
                writer.close()
                return True
    return False


def _port(wanted: int | str, ports: Sequence[Json]) -> int:
    """A port, by number or by name."""
    named = {port.get("name"): int(port["containerPort"]) for port in ports}
    return named[wanted] if wanted in named else int(wanted)


async def _http(wanted: Json, host: str, port: int) -> int:
    """The status that a GET is answered with."""
    context = None
    if wanted.get("scheme") == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        headers = {"Host": host, "User-Agent": "kube-probe/stand-in", "Connection": "close"}
        headers |= {header["name"]: header["value"] for header in wanted.get("httpHeaders", [])}
        lines = [f"GET {wanted.get('path', '/')} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        status = await reader.readline()
        return int(status.split()[1])
    finally:
        writer.close()
