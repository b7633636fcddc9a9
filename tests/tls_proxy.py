"""A TLS proxy for servers without TLS, such as a wheel's Valkey."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests import certificates

LOOPBACK = "127.0.0.1"


@contextmanager
def start_proxy(port: int) -> Iterator[int]:
    """Port of a TLS proxy for the server on ``port``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(_serve_proxy(port), loop).result(10)
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _serve_proxy(port: int) -> asyncio.Server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.CERTIFICATE, certificates.KEY)

    async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(LOOPBACK, port)
        await asyncio.wait(
            {asyncio.create_task(_copy_stream(reader, back)), asyncio.create_task(_copy_stream(there, writer))},
        )

    return await asyncio.start_server(both_ways, LOOPBACK, 0, ssl=context)


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()
