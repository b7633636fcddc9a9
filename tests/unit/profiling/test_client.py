"""One streamed chat request: its body, and the times and sizes of its answer."""

import asyncio
import struct

import pytest

from omnibus.errors import NotFound, Overloaded, StageFailed, StageUnavailable
from omnibus.profiling.client import Client
from tests.unit.profiling.server import (
    END,
    HEAD,
    USAGE,
    make_audio_event,
    make_chunk,
    make_event,
    send_whole,
    serve_script,
)


async def send_bodies(script, *bodies: bytes, path: str = ""):
    async with asyncio.timeout(10), serve_script(script) as port, Client(port) as client:
        return [await client.send_chat(body, path) for body in bodies or (b"{}",)]


async def test_the_body_and_the_path_are_sent_and_the_connection_is_kept():
    requests = []

    async def record_request(head, body, send):
        requests.append((head, body))
        await send_whole(send, make_event(content="a"))

    await send_bodies(record_request, b"one", b"two", path="E>L")

    assert [body for _, body in requests] == [b"one", b"two"]
    assert all(b"x-omnibus-path: E>L\r\n" in head for head, _ in requests)


async def test_tokens_are_timed_and_the_usage_is_read():
    async def send_tokens(head, body, send):
        await send(HEAD + make_chunk(make_event(role="assistant", content="")))
        await send(make_chunk(make_event(content="a")))
        await asyncio.sleep(0.02)
        await send(make_chunk(make_event(content="b") + END[:10]) + make_chunk(END[10:]) + b"0\r\n\r\n")

    [answer] = await send_bodies(send_tokens)

    assert 0 < answer.first_token < answer.done
    assert len(answer.gaps) == 1
    assert answer.gaps[0] >= 0.015
    assert answer.usage == USAGE
    assert (answer.first_audio, answer.speech, answer.real_time) == (0, 0, 0)


async def test_seconds_of_speech_follow_from_the_rate_in_the_sound():
    header = b"RIFF" + bytes(20) + struct.pack("<I", 8000) + bytes(16)

    async def send_speech(head, body, send):
        await send(HEAD + make_chunk(make_audio_event(header + bytes(2 * 8000))))
        await asyncio.sleep(0.02)
        await send(make_chunk(make_audio_event(bytes(2 * 4000)) + END) + b"0\r\n\r\n")

    [answer] = await send_bodies(send_speech)

    assert answer.speech == 1.5
    assert answer.spoken == 0.5
    # The last piece arrived with the end; the machine determines the time since the first one.
    assert answer.real_time == pytest.approx((answer.done - answer.first_audio) / 0.5, abs=1e-6)
    assert 0 < answer.first_audio < answer.done


def make_refusal(status: int, code: str) -> bytes:
    body = b'{"error": {"message": "no", "code": "%b"}}' % code.encode()
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(404, "not_found", NotFound), (429, "overloaded", Overloaded), (502, "stage_failed", StageFailed)],
)
async def test_an_error_of_the_gateway_keeps_its_type(status, code, kind):
    async def send_refusal(head, body, send):
        await send(make_refusal(status, code))

    with pytest.raises(kind, match="no"):
        await send_bodies(send_refusal)


async def test_an_error_in_the_midst_of_the_stream_is_raised():
    async def send_error(head, body, send):
        await send(
            HEAD
            + make_chunk(make_event(content="a"))
            + make_chunk(b'data: {"error": {"message": "lost", "code": "stage_failed"}}\n\n')
        )

    with pytest.raises(StageFailed, match="lost"):
        await send_bodies(send_error)


@pytest.mark.parametrize(
    "response_part", [HEAD + make_chunk(make_event(content="a")) + b"0\r\n\r\n", HEAD + b"zz\r\n", b"nonsense\r\n\r\n"]
)
async def test_an_answer_that_breaks_off_is_an_error(response_part):
    async def send_part(head, body, send):
        await send(response_part)

    with pytest.raises(StageUnavailable, match="broke off"):
        await send_bodies(send_part)


async def test_nobody_who_listens_is_an_error():
    async with serve_script(send_whole) as port:
        pass

    with pytest.raises(StageUnavailable):
        await Client(port).send_chat(b"{}")
