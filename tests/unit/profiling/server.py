"""A scripted gateway on a real socket."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

#: Receives the request's head and body, and a function that sends.
Script = Callable[[bytes, bytes, Callable[[bytes], Awaitable[None]]], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "completion_tokens_details": {"text_tokens": 2}}


def make_event(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


def make_audio_event(data: bytes) -> bytes:
    return make_event(audio={"data": base64.b64encode(data).decode()})


END = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"


def make_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.asynccontextmanager
async def serve_script(script: Script) -> AsyncIterator[int]:
    """Yield the port on which ``script`` answers every request."""

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send_data(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
                await script(head, await reader.readexactly(length), send_data)
        writer.close()

    serving: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def send_whole(send: Callable[[bytes], Awaitable[None]], *events: bytes) -> None:
    """Send a streamed answer of ``events``."""
    await send(HEAD + b"".join(map(make_chunk, events)) + make_chunk(END) + b"0\r\n\r\n")
