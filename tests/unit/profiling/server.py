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


def event(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


def audio(data: bytes) -> bytes:
    return event(audio={"data": base64.b64encode(data).decode()})


END = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[int]:
    """Yield the port on which ``script`` answers every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
                await script(head, await reader.readexactly(length), send)
        writer.close()

    serving: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def whole(send: Callable[[bytes], Awaitable[None]], *events: bytes) -> None:
    """Send a streamed answer of ``events``."""
    await send(HEAD + b"".join(map(chunk, events)) + chunk(END) + b"0\r\n\r\n")
