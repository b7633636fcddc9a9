"""Any answer of a media server gives bytes or one typed error.

It never blocks the event loop.
"""

import asyncio
import time

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import Rejected
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from tests.chaos.attacks import SERVERS, media_server
from tests.fuzz.corpus import save_failing, try_saved
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.profile import limit_examples

RULES = FetchRules(allow_http=True, allow_private=True, ports=None, timeout=2.0)
LIMIT = 1 << 20
#: The longest that the event loop may not turn, in time of the processor: others may use the machine as well.
STALL_SECONDS = 1.0

ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nshort",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /b.png\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nrest",
    b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b",
]
LOCATIONS = [
    "//[",
    "http://[::1",
    "//a:b",
    "http://\u2100.c",
    "\\\\a",
    "file:///etc/passwd",
    "data:,x",
    "//\0",
    "?",
    "",
    "http:a",
]


async def fetch_answer(answer: bytes) -> None:
    """Fetch from a server that sends ``answer`` on each connection and closes."""

    async def send_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(send_answer, "127.0.0.1", 0)
    try:
        await fetch_outcome(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.png")
    finally:
        server.close()


async def fetch_outcome(url: str) -> str:
    """``bytes``, or the code of the refusal."""
    try:
        inline = await Fetcher(RULES).fetch(url, LIMIT)
    except Rejected as error:
        return error.code
    assert len(inline.data) <= LIMIT
    return "bytes"


@try_saved("answers")
@limit_examples(120, cost=4)
@given(data=mutate_bytes(ANSWERS))
def test_a_damaged_answer_is_taken_or_refused(data: bytes):
    with save_failing("answers", data):
        uvloop.run(fetch_answer(data))


@limit_examples(40, cost=4)
@given(
    location=st.sampled_from(LOCATIONS)
    | st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=12)
)
def test_a_redirect_to_anywhere_is_followed_or_refused(location: str):
    head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location.encode(errors="replace")

    uvloop.run(fetch_answer(head + b"\r\n\r\n"))


@pytest.mark.parametrize("name", SERVERS)
async def test_a_hostile_server_is_refused_and_the_loop_goes_on(name: str):
    stalls: list[float] = []

    async def measure_stalls() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            stalls.append(time.thread_time() - before)

    beating = asyncio.create_task(measure_stalls())
    async with media_server() as server, asyncio.timeout(20):
        assert await fetch_outcome(f"{server}/{name}.png") in ("bad_media", "too_large")
        await asyncio.sleep(0.05)  # delays shorter than a beat appear in the next one
    beating.cancel()

    assert max(stalls) < STALL_SECONDS
