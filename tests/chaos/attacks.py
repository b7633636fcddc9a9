"""Slow and hostile clients, and hostile media servers; each attack is limited in time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

from tests.chaos.outcome import Attack

_READ_BYTES = 64
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_ASK = b'{"model":"qwen2.5-vl-tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}'

Feed = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def _dripping_head(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD)
    while True:
        writer.write(b"X-A: b\r\n")
        await writer.drain()
        await asyncio.sleep(1.0)


async def _endless_header(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"X-A: ")
    while True:
        writer.write(b"a" * 16384)
        await writer.drain()
        await asyncio.sleep(0.02)


async def _many_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD)
    while True:
        writer.write(b"X-A: b\r\n" * 500)
        await writer.drain()
        await asyncio.sleep(0.02)


async def _half_body(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 500_000)
    await writer.drain()
    await asyncio.Event().wait()


async def _dripping_body(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"Content-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(1.0)


async def _small_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\n \r\n" * 200)
        await writer.drain()
        await asyncio.sleep(0.05)


async def _stay_silent(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _leave_early(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"Content-Length: %d\r\n\r\n" % len(_ASK) + _ASK)
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()


ATTACKS: dict[str, Feed] = {
    "dripping head": _dripping_head,
    "endless header": _endless_header,
    "many headers": _many_headers,
    "half body": _half_body,
    "dripping body": _dripping_body,
    "chunks of a byte": _small_chunks,
    "silent": _stay_silent,
    "leaving": _leave_early,
}


async def attack_gateway(name: str, url: str, seconds: float) -> Attack:
    """Attack one gateway for at most ``seconds``; return how long it kept the connection."""
    address = urlsplit(url)
    began = time.monotonic()
    feeding: asyncio.Task[None] | None = None
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            feeding = asyncio.ensure_future(_feed_writer(ATTACKS[name], writer))
            await reader.read(_READ_BYTES)  # an answer, which can only be a refusal, or the end
        was_closed = True
    except TimeoutError:
        was_closed = False
    except OSError:
        was_closed = True
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.wait([feeding])
        if writer is not None:
            writer.transport.abort()
    return Attack(name, time.monotonic() - began, was_closed)


async def _feed_writer(feed: Feed, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await feed(writer)


async def open_crowd(urls: list[str], each: int, seconds: float) -> list[Attack]:
    """Open ``each`` connections of every kind at once, spread over gateways."""
    names = [name for name in ATTACKS for _ in range(each)]
    calls = [attack_gateway(name, urls[number % len(urls)], seconds) for number, name in enumerate(names)]
    return list(await asyncio.gather(*calls))


# Media servers

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"


async def _chunks_of_one_byte(writer: asyncio.StreamWriter) -> None:
    writer.write(_OK + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n" * 2000)
        await writer.drain()


async def _endless_informational(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 500)
        await writer.drain()


async def _endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(_OK + b"\r\n")
    while True:
        writer.write(bytes(65536))
        await writer.drain()


async def _endless_answer_header(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        writer.write(b"a" * 4096)
        await writer.drain()


async def _send_redirect(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 302 Found\r\nLocation: /again.png\r\nContent-Length: 0\r\n\r\n")


async def _no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\0\xff" * 100 + b"\r\n\r\n")


async def _false_length(writer: asyncio.StreamWriter) -> None:
    writer.write(_OK + b"Content-Length: 1000\r\n\r\nshort")


async def _two_lengths(writer: asyncio.StreamWriter) -> None:
    writer.write(_OK + b"Content-Length: 5\r\nContent-Length: 50\r\n\r\nshort")


async def _send_page(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")


async def _close_connection(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


SERVERS: dict[str, Feed] = {
    "silent": _stay_silent,
    "chunks-of-a-byte": _chunks_of_one_byte,
    "endless-informational": _endless_informational,
    "endless-body": _endless_body,
    "endless-header": _endless_answer_header,
    "redirects": _send_redirect,
    "no-http": _no_http,
    "false-length": _false_length,
    "two-lengths": _two_lengths,
    "page": _send_page,
    "closed": _close_connection,
}


@contextlib.asynccontextmanager
async def media_server() -> AsyncIterator[str]:
    """Serve ``/<name>.png`` as ``SERVERS`` defines it, and yield the base URL."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            line = (await reader.readuntil(b"\r\n")).split(b"/", 2)[1]
            name = line.decode().partition(".")[0]
            await SERVERS.get(name, _send_redirect)(writer)
            await writer.drain()
        writer.close()
        open_ones.discard(writer)

    server = await asyncio.start_server(serve_client, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in list(open_ones):
            writer.transport.abort()
