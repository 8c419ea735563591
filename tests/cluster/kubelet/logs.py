"""The endpoint behind `kubectl logs`: serves containers' log files to the API server, and to nobody else.

Callers prove by certificate that the cluster's own authority knows them.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from cluster.kubelet.machine import HOST_IP, log_file
from cluster.pki import Authority

FOLLOW_SECONDS = 0.2
CHUNK = 1 << 16
IsRunning = Callable[[str, str, str], bool]


class LogServer:
    """Serves the logs below a kubelet's root."""

    def __init__(self, root: Path, client_authorities: bytes, is_running: IsRunning) -> None:
        self._root = root
        self._client_authorities = client_authorities
        self._is_running = is_running

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Serve for as long as the context lasts; gives the port."""
        pair = Authority(self._root / "pki").issue("kubelet", "kubelet", names=[HOST_IP])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        context.load_verify_locations(cadata=self._client_authorities)
        context.verify_mode = ssl.CERT_REQUIRED
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST_IP, 0, ssl_context=context)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        names = [request.match_info[part] for part in ("namespace", "pod", "container")]
        file = log_file(self._root, names[0], names[1], names[2])
        if request.query.get("previous") == "true":
            return web.Response(status=400, text="the stand-in kubelet keeps one log for all attempts\n")
        follow = request.query.get("follow") == "true"
        try:
            log = file.open("rb")
        except FileNotFoundError:
            return web.Response(status=404, text=f"container {names[2]} has not started\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        with log:
            await response.prepare(request)
            start = log.read() if "tailLines" in request.query else b""
            if start:
                wanted = int(request.query["tailLines"])
                await response.write(b"".join(start.splitlines(keepends=True)[-wanted:] if wanted else []))
            while True:
                runs = self._is_running(names[0], names[1], names[2])  # asked first: its last words come before
                while chunk := log.read(CHUNK):
                    await response.write(chunk)
                if not (follow and runs):
                    break
                await asyncio.sleep(FOLLOW_SECONDS)
        await response.write_eof()
        return response
