"""What may stand between an operator and an agent: proxies, and servers that are no agent at all."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from outhaul_grpc import layout
from outhaul_operator import trust

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(ip: str, talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Serves an agent's port with anything; conversations that are not over in the end are broken off.

    Connections are taken here and not by asyncio's server, which knows only those that have begun: what it has accepted
    in its last moment stays open.
    """
    loop = asyncio.get_running_loop()
    conversations: dict[asyncio.Task[None], socket.socket] = {}

    def accept() -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = listener.accept()
            connection.settimeout(0)
            conversations[loop.create_task(_converse(connection, talk, tls))] = connection

    with socket.create_server((ip, layout.PORT)) as listener:
        listener.settimeout(0)
        loop.add_reader(listener, accept)
        try:
            yield
        finally:
            loop.remove_reader(listener)
            for task in conversations:
                task.cancel()
            await asyncio.gather(*conversations, return_exceptions=True)
            # One that was cancelled before it began has closed nothing.
            for connection in conversations.values():
                connection.close()


async def _converse(connection: socket.socket, talk: Talk, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    streams: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = loop.create_future()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), lambda *both: streams.set_result(both))
    await loop.connect_accepted_socket(lambda: protocol, connection)
    reader, writer = await streams
    try:
        with suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            if tls is not None:
                await writer.start_tls(tls)
            await talk(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


def relay_to(ip: str, tls: ssl.SSLContext | None = None, name: str | None = None) -> Talk:
    """Returns a conversation that is passed on to the agent at `ip`: byte by byte, or in TLS of its own."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(
            ip, layout.PORT, ssl=tls, server_hostname=name if tls else None
        )
        pumps = [asyncio.create_task(pump(reader, there_writer)), asyncio.create_task(pump(there_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in pumps:
                one.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            there_writer.transport.abort()

    return talk


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Listens, and says nothing."""
    while await reader.read(65536):
        pass
    del writer


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes at the first word."""
    await reader.read(1)
    del writer


async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers without TLS."""
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()
    await silent(reader, writer)


async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends TLS records of nonsense without an end."""
    await reader.read(1)
    while True:
        writer.write(b"\x16\x03\x03\x40\x00" + b"\xff" * 0x4000)
        await writer.drain()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins a TLS record and sends a byte of it now and then."""
    await reader.read(1)
    writer.write(b"\x16\x03\x03\x40\x00")
    while True:
        writer.write(b"\x02")
        await writer.drain()
        await asyncio.sleep(0.2)


def server_tls(leaf: trust.Leaf, folder: Path, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Returns how to serve with a leaf, as far as HTTP/2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _with(context, leaf, folder, newest)


def client_tls(
    leaf: trust.Leaf, roots: bytes, folder: Path, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """Returns how to call with a leaf."""
    context = ssl.create_default_context(cadata=roots.decode())
    return _with(context, leaf, folder, newest)


def _with(context: ssl.SSLContext, leaf: trust.Leaf, folder: Path, newest: ssl.TLSVersion) -> ssl.SSLContext:
    file = folder / "leaf.pem"
    file.write_bytes(leaf.certificate + leaf.key)
    context.load_cert_chain(file)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = newest
    return context
