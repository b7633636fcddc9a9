"""Invalid requests get a clear 4xx in OpenAI's shape.

Other requests are unaffected.
"""

import asyncio
import io
import json
import socket
import struct
import zlib
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
from PIL import Image

from tests.e2e.questions import data_url, make_audio, make_question
from tests.e2e.system import VL, System
from tests.unit.models import files

pytestmark = pytest.mark.e2e

PNG = files.make_picture(1)
CONTEXT = 4096  # tokens of the tiny model


class BadInputCase(NamedTuple):
    """A body and its expected answer; ``says`` is part of the message."""

    body: bytes
    status: int
    code: str
    param: str | None
    says: str


def chat_body(content: Any = "hello", **more: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": VL, "messages": messages, "max_tokens": 4, "temperature": 0, **more}).encode()


def picture_body(url: str) -> bytes:
    return chat_body([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "describe"}])


def png_header(width: int, height: int, pixels: bytes) -> bytes:
    """A PNG with a declared size and possibly mismatched compressed ``pixels``."""

    def make_chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = make_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + make_chunk(b"IDAT", zlib.compress(pixels)) + make_chunk(b"IEND", b"")


def damage_data(data: bytes) -> bytes:
    """``data`` with its middle overwritten."""
    third = len(data) // 3
    return data[:third] + b"\x00\xff" * (third // 2) + data[2 * third :]


IMAGE = "messages[0].content[0].image_url.url"
CASES: dict[str, BadInputCase] = {
    "broken JSON": BadInputCase(chat_body()[:-7], 400, "bad_request", None, "not valid JSON"),
    "no UTF-8": BadInputCase(chat_body("\u00e9").replace(b"\\u00e9", b"\xff"), 400, "bad_request", None, "UTF-8"),
    "unknown model": BadInputCase(chat_body(model="gpt-9"), 404, "not_found", "model", VL),
    "no messages": BadInputCase(chat_body(messages=[]), 400, "bad_request", "messages", "length"),
    "unknown option": BadInputCase(chat_body(bestof=3), 400, "bad_request", "bestof", "bestof"),
    "corrupt image": BadInputCase(
        picture_body(data_url("image/png", damage_data(PNG))), 400, "bad_media", None, "image"
    ),
    "truncated image": BadInputCase(
        picture_body(data_url("image/png", PNG[: len(PNG) // 2])), 400, "bad_media", None, "image"
    ),
    "no image at all": BadInputCase(
        picture_body(data_url("image/png", b"hello" * 20)), 400, "bad_media", IMAGE, "image"
    ),
    "no base64": BadInputCase(picture_body("data:image/png;base64,@@@@"), 400, "bad_request", IMAGE, "base64"),
    "huge image": BadInputCase(
        picture_body(data_url("image/png", png_header(60_000, 60_000, b""))), 413, "too_large", IMAGE, "pixels"
    ),
    "file URL": BadInputCase(picture_body("file:///etc/passwd"), 400, "bad_request", IMAGE, "https and data"),
    "metadata URL": BadInputCase(picture_body("http://169.254.169.254/latest/"), 400, "bad_request", IMAGE, "http"),
    "metadata URL over https": BadInputCase(
        picture_body("https://169.254.169.254/"), 400, "bad_request", IMAGE, "not reachable"
    ),
    "localhost URL": BadInputCase(picture_body("https://localhost/a.png"), 400, "bad_request", IMAGE, "not reachable"),
    "loopback URL": BadInputCase(picture_body("https://127.0.0.1/a.png"), 400, "bad_request", IMAGE, "not reachable"),
    "loopback URL in disguise": BadInputCase(
        picture_body("https://2130706433/a.png"), 400, "bad_request", IMAGE, "host"
    ),
    "IPv6 loopback URL": BadInputCase(picture_body("https://[::1]/a.png"), 400, "bad_request", IMAGE, "not reachable"),
    "max_tokens beyond the model": BadInputCase(
        chat_body(max_tokens=CONTEXT + 1), 400, "bad_request", "max_tokens", f"context of {CONTEXT}"
    ),
    "text longer than the context": BadInputCase(
        chat_body("cat dog " * CONTEXT), 400, "context_length_exceeded", None, "this model takes"
    ),
    "sound to a model that does not listen": BadInputCase(
        chat_body(make_question(make_audio(0.5), "what?").messages[0]["content"]),
        400,
        "bad_request",
        "messages",
        "image, video",
    ),
    "speech from a model that does not speak": BadInputCase(
        chat_body(modalities=["text", "audio"], audio={"voice": "Ethan", "format": "wav"}),
        400,
        "bad_request",
        "modalities",
        "no audio output",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_bad_input_is_a_clear_error_and_the_executors_live(vl: System, name: str):
    case = CASES[name]
    before = await vl.whole()

    async with vl.http() as http:
        response = await post_body(http, case.body)
        fine = await post_body(http, chat_body())

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (case.status, case.code, "invalid_request_error")
    assert case.says in error["message"]
    assert {"message", "type", "param", "code", "request_id"} <= error.keys()
    assert error["param"] == case.param or case.param is None
    assert error["request_id"] == response.headers.get("x-request-id")
    assert fine.status_code == 200
    assert await vl.whole() == before
    await vl.ledger_is_empty()


async def post_body(http: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})


async def test_an_image_that_unpacks_to_more_than_it_says_takes_no_memory(vl: System):
    bomb = png_header(64, 64, b"\0" * (256 << 20))
    encoders = [psutil.Process(pid) for id, pid in (await vl.whole()).items() if not id.endswith("-L-0")]
    before = max(one.memory_info().rss for one in encoders)

    async with vl.http() as http:
        for path in ("E>L", "EL"):
            answer = await http.post(
                "/v1/chat/completions",
                content=picture_body(data_url("image/png", bomb)),
                headers={"content-type": "application/json", "x-omnibus-path": path},
            )
            assert answer.status_code in (200, 400), answer.text

    assert max(one.memory_info().rss for one in encoders) - before < 100 << 20
    await vl.ledger_is_empty()


async def test_a_url_of_this_machine_is_never_connected_to(vl: System):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        async with vl.http() as http:
            for host in ("127.0.0.1", "localhost", "[::1]", "0x7f.1"):
                for scheme in ("http", "https"):
                    answer = await post_body(http, picture_body(f"{scheme}://{host}:{port}/a.png"))
                    assert answer.status_code == 400, answer.text

        with pytest.raises(TimeoutError):
            listener.accept()


async def test_one_bad_image_among_good_ones_fails_one_request(vl: System):
    good, bad = picture_body(data_url("image/png", PNG)), picture_body(data_url("image/png", damage_data(PNG)))

    async with vl.http() as http:
        answers = await asyncio.gather(*(post_body(http, bad if turn % 4 == 2 else good) for turn in range(12)))

    assert [answer.status_code for answer in answers] == [400 if turn % 4 == 2 else 200 for turn in range(12)]
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers if answer.is_success}) == 1


async def test_an_error_in_a_stream_is_an_event_of_the_same_shape(vl: System):
    body = json.loads(picture_body(data_url("image/png", damage_data(PNG))))

    async with vl.http() as http:
        answer = await http.post("/v1/chat/completions", json={**body, "stream": True})

    last = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "bad_media"
    assert last["error"]["request_id"] == answer.headers["x-request-id"]


def test_the_damaged_image_is_really_damaged():
    with pytest.raises((OSError, SyntaxError)):
        Image.open(io.BytesIO(damage_data(PNG))).load()
