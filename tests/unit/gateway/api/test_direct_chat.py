"""Chats answered directly, on connections that close, wait or read slowly."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.bus import coalescer
from omnibus.bus.messages import Chunk
from omnibus.executor.runner import Job
from omnibus_gateway.api import chat_completions
from omnibus_gateway.api.direct_chat import DirectChat
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.openai import messages
from omnibus_gateway.openai.chat_request import PLAIN_FIELDS, ChatRequest
from tests.unit.gateway.house import (
    OMNI,
    TEXT,
    VL,
    ToyGateway,
    build_chat_body,
    make_image_part,
    make_text_part,
    start_toy_gateway,
)
from tests.unit.gateway.wires import Doorway, HttpConnection, open_doorway
from tests.unit.sidecar.node import wait_until

PATH = "/v1/chat/completions"


@pytest.fixture
async def chat_door(home: ToyGateway) -> AsyncIterator[Doorway]:
    await home.all_of(OMNI)
    home.serve(TEXT, VL, OMNI)
    await home.executor(TEXT, "L", "thinker")
    await home.executor(VL, "EL", "vision", "thinker")
    async with open_doorway(home) as open_door:
        yield open_door


@pytest.fixture
def direct_models(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models of the chats that were answered directly."""
    models: list[str] = []
    start = DirectChat.start

    def record_model(self: DirectChat) -> None:
        models.append(self._request.model)
        start(self)

    monkeypatch.setattr(DirectChat, "start", record_model)
    return models


def build_request(body: Any, *headers: str, path: str = PATH, version: str = "1.1") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def read_content(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


HELLO = build_chat_body(TEXT, "hello", seed=5)
AUDIO = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
PLAIN = {
    "one": build_request(HELLO),
    "parameters": build_request(HELLO | {"max_tokens": 3, "temperature": 0, "top_p": 0.5, "stop": "x", "user": "me"}),
    "a stream": build_request(HELLO | {"stream": True, "stream_options": {"include_usage": True}}),
    "several messages": build_request(
        HELLO | {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]}
    ),
    "speech": build_request(build_chat_body(OMNI, "hello", seed=5) | AUDIO),
    "the last one of a connection": build_request(HELLO, "Connection: close"),
    "a stream that is the last one": build_request(HELLO | {"stream": True}, "Connection: close"),
    "headers of clients": build_request(
        HELLO, "User-Agent: x", "Authorization: Bearer none", "X-Stainless-Lang: python"
    ),
}
GENERAL = {
    "an image": build_request(build_chat_body(VL, [make_text_part("look"), make_image_part()])),
    "a path": build_request(HELLO, "x-omnibus-path: L"),
    "a header of others": build_request(HELLO, "x-forwarded-for: 10.0.0.1"),
    "a page": build_request(HELLO, "Origin: http://localhost"),
    "no model": build_request(build_chat_body("nobody", "hello")),
    "no JSON": build_request(b"{"),
    "an unknown field": build_request(HELLO | {"temprature": 1}),
    "a field that is not plain": build_request(HELLO | {"reasoning_effort": "none"}),
    "an old version": build_request(HELLO, version="1.0"),
    "compressed speech in a stream": build_request(
        build_chat_body(OMNI, "hi", stream=True) | AUDIO | {"audio": {"voice": "alloy", "format": "mp3"}}
    ),
    "messages by handle": build_request(build_chat_body(TEXT, "word " * 5000)),
}


@pytest.mark.parametrize("request_bytes", [PLAIN["one"], GENERAL["an image"], GENERAL["compressed speech in a stream"]])
async def test_every_chat_is_parsed_once(chat_door: Doorway, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes):
    bodies: list[bytes] = []
    parse = messages.parse_chat

    def count_body(body: bytes) -> ChatRequest:
        bodies.append(body)
        return parse(body)

    monkeypatch.setattr(messages, "parse_chat", count_body)
    monkeypatch.setattr(chat_completions, "parse_chat", count_body)

    answer = await exchange_bytes(chat_door, request_bytes)

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert len(bodies) == 1


@pytest.mark.parametrize("request_bytes", PLAIN.values(), ids=PLAIN.keys())
async def test_plain_chats_are_answered_directly_as_in_general(
    home: ToyGateway, chat_door: Doorway, direct_models: list[str], request_bytes: bytes
):
    async with open_doorway(home, direct=False) as other:
        answers = [await exchange_bytes(each, request_bytes) for each in (other, chat_door)]

    assert len(direct_models) == 1
    assert without_ids(answers[0]) == without_ids(answers[1])
    assert answers[1].startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert (b"\r\nconnection: close\r\n" in answers[1]) == (b"Connection: close" in request_bytes)
    await home.emptied()


@pytest.mark.parametrize("request_bytes", GENERAL.values(), ids=GENERAL.keys())
async def test_all_others_go_the_general_way(
    home: ToyGateway, chat_door: Doorway, direct_models: list[str], request_bytes: bytes
):
    assert b"HTTP/1.1 " in await exchange_bytes(chat_door, request_bytes)

    assert direct_models == []
    await home.emptied()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_connection_of_a_last_request_is_closed_behind_its_answer(
    home: ToyGateway, chat_door: Doorway, direct_models: list[str], streamed: bool
):
    wire = await chat_door.wire()
    await wire.send(build_request(HELLO | {"stream": streamed}, "Connection: close"))

    whole = await asyncio.wait_for(wire._reader.read(), 20)  # to the end of what comes

    assert direct_models == [TEXT]
    assert whole.endswith(b"[DONE]\n\n\r\n0\r\n\r\n" if streamed else b"}")
    await home.emptied()


def test_fields_that_are_plain_are_fields():
    assert set(ChatRequest.__struct_fields__) > PLAIN_FIELDS
    assert not {"tools", "n", "logprobs", "response_format", "image_config"} & PLAIN_FIELDS


async def exchange_bytes(door: Doorway, request_bytes: bytes) -> bytes:
    """Send one request and return everything received."""
    wire = await door.wire()
    await wire.send(request_bytes)
    head = await wire.head()
    if b"transfer-encoding: chunked" in head:
        rest = await asyncio.wait_for(wire._reader.readuntil(b"0\r\n\r\n"), 20)
    else:
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        rest = await asyncio.wait_for(wire._reader.readexactly(int(length.split(b":")[1])), 20)
    wire.close()
    return head + rest


def without_ids(answer: bytes) -> list[Any]:
    """Return head and body without the fields that differ between requests."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if line.split(b":")[0] not in (b"date", b"x-request-id")]
    if b"chunked" in head:
        text = b"".join(part for part in body.split(b"\r\n") if part.startswith(b"data: "))
        document = [json.loads(part) for part in text.split(b"data: ") if part.strip() not in (b"", b"[DONE]")]
        deltas = "".join((each["choices"] or [{"delta": {}}])[0]["delta"].get("content") or "" for each in document)
        return [*lines, deltas, document[-1].get("usage"), document[0]["choices"], b"[DONE]" in body]
    document = json.loads(body)
    document.pop("id"), document.pop("created")
    if audio := document["choices"][0]["message"].get("audio"):
        audio.pop("id"), audio.pop("expires_at")
    return [*[line for line in lines if not line.startswith(b"content-length")], document]


async def test_a_body_may_follow_its_head_at_once_or_later(
    home: ToyGateway, chat_door: Doorway, direct_models: list[str]
):
    head, _, body = build_request(HELLO).partition(b"\r\n\r\n")
    wire = await chat_door.wire()

    await wire.send(head + b"\r\n\r\n")
    await asyncio.sleep(0.001)
    await wire.send(body)
    assert read_content((await wire.answer())[1]) == "You said hello [5] "
    await wire.send(head + b"\r\n\r\n" + body[:9])
    await asyncio.sleep(0.2)  # longer than a direct route waits
    await wire.send(body[9:])
    assert read_content((await wire.answer())[1]) == "You said hello [5] "

    assert len(direct_models) <= 1  # on a slow machine the first one was handed over, too
    await home.emptied()


async def test_requests_on_one_connection_are_answered_in_order(
    home: ToyGateway, chat_door: Doorway, direct_models: list[str]
):
    wire = await chat_door.wire()
    requests = [build_request(build_chat_body(TEXT, f"word{number}", seed=0)) for number in range(6)]

    await wire.send(b"".join(requests))
    answers = [read_content((await wire.answer())[1]) for _ in requests]

    assert answers == [f"You said word{number} [0] " for number in range(6)]
    assert direct_models  # the first one; pipelined requests take the general path
    await home.emptied()


class HeldChatThinker:
    """A thinker that writes one word and then waits."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, job: Job) -> None:
        await job.send("text", {"text": "word "})
        self.begun.set()
        await self.go.wait()
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


async def start_request(home: ToyGateway, door: Doorway, held_thinker: HeldChatThinker, **more: Any) -> HttpConnection:
    """Return a connection whose request is running."""
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=held_thinker)
    wire = await door.wire()
    await wire.send(build_request(build_chat_body(TEXT, "hello", **more)))
    await asyncio.wait_for(held_thinker.begun.wait(), 20)
    return wire


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_work_for_a_client_that_leaves_ends(home: ToyGateway, direct_models: list[str], stream: bool):
    held_thinker = HeldChatThinker()
    async with open_doorway(home) as door:
        wire = await start_request(home, door, held_thinker, stream=stream)

        wire.close()

        await home.emptied()
    assert direct_models == [TEXT]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_deadline_is_an_error_in_time(tmp_path: Path, direct_models: list[str], stream: bool):
    async with start_toy_gateway(tmp_path, deadline=0.5) as home, open_doorway(home) as door:
        wire = await start_request(home, door, HeldChatThinker(), stream=stream)

        head = await wire.head()

        assert head.split()[1] == (b"200" if stream else b"504")
        assert b"deadline" in await asyncio.wait_for(wire._reader.readuntil(b"}}"), 20)
        await home.emptied()
    assert direct_models == [TEXT]


async def test_a_gateway_that_stops_finishes_what_it_answers_and_closes_the_connection(
    home: ToyGateway, direct_models: list[str]
):
    held_thinker = HeldChatThinker()
    async with open_doorway(home) as door:
        wire = await start_request(home, door, held_thinker)

        door.stop()
        await asyncio.sleep(0.3)
        held_thinker.go.set()

        head = await wire.head()
        assert b"connection: close" in head
        assert read_content(await wire.rest()) == "word "
    assert direct_models == [TEXT]


async def test_a_stopping_gateway_ends_what_outlives_its_drain(home: ToyGateway, direct_models: list[str]):
    async with open_doorway(home) as door:
        wire = await start_request(home, door, HeldChatThinker())
        requests = home.direct.open_requests  # type: ignore[union-attr]

        requests.begin_stop()
        await requests.end_all(home.dispatcher.fail_all)

        status, body = await wire.answer()
        assert (status, json.loads(body)["error"]["code"]) == (503, "gateway_stopping")
        await wire.send(build_request(HELLO))
        assert await wire.status() == 503
    assert direct_models == [TEXT]


async def test_a_slow_reader_holds_back_its_own_stream_alone(
    home: ToyGateway, direct_models: list[str], monkeypatch: pytest.MonkeyPatch
):
    words, word = 100, "long " * 2000  # more than the sockets of this connection hold
    rest, completion = asyncio.Event(), asyncio.Event()

    async def send_words(job: Job) -> None:
        if (await job.value("messages"))[-1]["content"] == "much":
            for _ in range(words):
                await job.send("text", {"text": word})
            await rest.wait()
        await job.send("text", {"text": "rest"})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": words}})
        completion.set()

    held_back: list[bool] = []
    go_on = DirectChat.on_writable

    def record_call(self: DirectChat) -> None:
        held_back.append(True)
        go_on(self)

    monkeypatch.setattr(DirectChat, "on_writable", record_call)
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=send_words)
    async with open_doorway(home, send_bytes=1 << 16) as door:
        wire = await door.wire(receive_bytes=1 << 16)
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await wire.send(build_request(build_chat_body(TEXT, "much", stream=True)))
        await wait_until(lambda: bool(direct_models))
        other = await door.wire()
        await other.send(build_request(build_chat_body(TEXT, "little", stream=True)))
        assert b"[DONE]" in await asyncio.wait_for(read_stream(other), 60)
        completion.clear()
        rest.set()
        await asyncio.wait_for(completion.wait(), 20)
        assert held_back == []
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        whole = await asyncio.wait_for(read_stream(wire), 60)

    assert held_back
    assert (whole.count(b"long "), whole.count(b'"rest"')) == (2000 * words, 1)
    assert whole.rstrip().endswith(b"[DONE]\n\n\r\n0".rstrip())
    await home.emptied()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_defect_of_the_gateway_is_an_error_that_says_nothing_of_the_inside(
    home: ToyGateway, chat_door: Doorway, direct_models: list[str], monkeypatch: pytest.MonkeyPatch, stream: bool
):
    def raise_defect(self: DirectChat) -> bool:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(DirectChat, "_is_complete", raise_defect)
    wire = await chat_door.wire()
    await wire.send(build_request(HELLO | {"stream": stream}))

    head = await wire.head()
    body = await asyncio.wait_for(wire._reader.readuntil(b"}}"), 20)

    assert head.split()[1] in (b"500", b"200" if stream else b"500")
    assert b'"code":"internal_error"' in body.replace(b" ", b"")
    assert b"secret" not in body
    assert direct_models == [TEXT]
    await home.emptied()


@pytest.mark.parametrize("plain", [True, False], ids=["directly", "in a task"])
async def test_pieces_that_travel_as_one_chunk_are_an_event_each(
    home: ToyGateway, direct_models: list[str], monkeypatch: pytest.MonkeyPatch, plain: bool
):
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 3600.0)

    async def send_numbers(job: Job) -> None:
        for number in range(4):
            await job.send_text("text", {"text": f" {number}", "ids": [number]})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": 4}})

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=send_numbers)
    chunks: list[tuple[int, ...]] = []
    feed = ResultStream.feed_chunk

    def record_cuts(self: ResultStream, chunk: Chunk) -> None:
        chunks.append(chunk.cuts)
        feed(self, chunk)

    monkeypatch.setattr(ResultStream, "feed_chunk", record_cuts)
    more = {} if plain else {"service_tier": "auto"}
    async with open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(build_request(build_chat_body(TEXT, "hello", stream=True, **more)))
        whole = await asyncio.wait_for(read_stream(wire), 60)

    events = [json.loads(line[6:]) for line in whole.decode().splitlines() if line.startswith("data: {")]
    contents = [text for event in events for each in event["choices"] if (text := each["delta"].get("content"))]
    assert (contents, chunks) == ([" 0", " 1", " 2", " 3"], [(), (2, 2, 2), ()])
    assert direct_models == [TEXT] * plain
    await home.emptied()


async def read_stream(wire: HttpConnection) -> bytes:
    got = b""
    while not got.endswith(b"\r\n0\r\n\r\n"):
        got += await wire._reader.read(1 << 16)
    return got


async def test_records_of_direct_chats_are_whole(home: ToyGateway, chat_door: Doorway, direct_models: list[str]):
    wire = await chat_door.wire()
    await wire.send(build_request(HELLO))
    head = await wire.head()
    id = next(line for line in head.split(b"\r\n") if line.startswith(b"x-request-id")).split(b": ")[1].decode()

    end_record = await home.ended(id)

    assert direct_models == [TEXT]
    assert (end_record.status, end_record.answer.text, len(end_record.hops)) == ("done", "You said hello [5] ", 1)
    assert msgspec.to_builtins(end_record.answer)["finish_reason"] == "stop"
