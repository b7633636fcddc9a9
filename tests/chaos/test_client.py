"""Clients of chaos runs add almost no time to the gateway's latency."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator

import pytest

from tests.chaos.client import send_request
from tests.chaos.requests import ChaosRequest

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A server that answers everything."""

    async def answer_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_client, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_no_client_reads_certificates_while_others_wait(url: str, monkeypatch: pytest.MonkeyPatch):
    """Loading certificates would block the event loop for 70 ms each time.

    A run with four clients and their jobs did little else, and counted the delays as lateness of the gateway.
    """
    read: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **given: read.append(given))
    request = ChaosRequest("text", "/", b"", lambda body: body.decode())

    outcomes = await asyncio.gather(*(send_request(number, request, url, 0, time.monotonic) for number in range(8)))

    assert [outcome.answer for outcome in outcomes] == ["hi"] * 8
    assert read == []
