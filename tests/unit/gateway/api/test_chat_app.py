"""The chat app from request to answer, with executors that do arithmetic."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.bus.messages import Hop
from omnibus.executor.runner import Job
from omnibus.graph import HANDLE
from omnibus_gateway.openai.parse import parse_chat
from tests.unit.encoding.test_audio import decode_audio
from tests.unit.gateway.house import (
    OMNI,
    PNG,
    TEXT,
    VL,
    ToyGateway,
    build_chat_body,
    make_image_part,
    make_text_part,
    read_chat_answer,
    read_error_body,
    read_sse_events,
    start_toy_gateway,
)
from tests.unit.sidecar.node import wait_until

pytestmark = pytest.mark.usefixtures("either_way")

SEED = 5


async def find_invocation(home: ToyGateway, response: httpx.Response) -> graph.Invocation:
    invocation, _ = await home.records.find(response.headers["x-request-id"])
    return invocation


async def test_a_text_is_answered(home: ToyGateway):
    await home.all_of(VL)

    response = await home.ask(content="how are you", seed=SEED)

    assert read_chat_answer(response) == "You said how are you [5] "
    body = response.json()
    assert (body["object"], body["model"]) == ("chat.completion", VL)
    assert body["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 6)
    assert body["system_fingerprint"] == "epoch-1"
    await home.emptied()


@pytest.mark.parametrize("path", ["E>L", "EL"])
async def test_an_image_is_seen_on_every_path(home: ToyGateway, path: str):
    await home.all_of(VL)

    response = await home.ask(content=[make_text_part("look"), make_image_part()], seed=SEED, path=path)

    image_sum = 4 * (1 + len(PNG) // 1024) * (sum(PNG) % 1000)  # the toy encoder's output
    assert read_chat_answer(response) == f"You said look saw {image_sum} [5] "
    assert response.headers["x-omnibus-path"] == path
    await home.emptied()


async def test_paths_are_taken_by_their_shares(home: ToyGateway):
    await home.all_of(VL)

    answers = [await home.ask(content=[make_image_part(), make_text_part("x")], seed=SEED) for _ in range(20)]

    paths = [answer.headers["x-omnibus-path"] for answer in answers]
    assert 13 <= paths.count("E>L") <= 15
    assert len({read_chat_answer(answer) for answer in answers}) == 1
    await home.emptied()


async def test_a_stream_says_the_same_piece_by_piece(home: ToyGateway):
    await home.all_of(VL)
    whole = await home.ask(content="to be or not", seed=SEED)

    stream_response = await home.ask(
        content="to be or not", seed=SEED, stream=True, stream_options={"include_usage": True}
    )

    *chunks, usage, end_mark = read_sse_events(stream_response)
    assert stream_response.headers["content-type"] == "text/event-stream; charset=utf-8"
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(pieces) == read_chat_answer(whole)
    assert len([piece for piece in pieces if piece]) == 7
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == 7
    assert end_mark == "[DONE]"
    await home.emptied()


async def test_long_messages_travel_by_handle_and_short_ones_inline(home: ToyGateway):
    await home.all_of(VL)
    long = " ".join(f"w{number}" for number in range(5000))

    short, large = await home.ask(content="hi"), await home.ask(content=long, seed=SEED)

    assert read_chat_answer(large) == f"You said {long} [5] "
    assert isinstance((await find_invocation(home, short)).nodes[0].inputs["messages"], list)
    messages = (await find_invocation(home, large)).nodes[0].inputs["messages"]
    assert (HANDLE in messages, messages["modality"], messages["mime"]) == (True, "text", "application/json")
    await home.emptied()


@pytest.mark.parametrize("path", ["Th>Ta>V", "M"])
async def test_a_speaking_model_speaks(home: ToyGateway, path: str):
    await home.all_of(OMNI)

    response = await home.ask(
        OMNI, "hi", path=path, seed=SEED, modalities=["text", "audio"], audio={"voice": "Chelsie", "format": "pcm16"}
    )

    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    sound = np.frombuffer(base64.b64decode(message["audio"]["data"]), "<i2")
    assert message["audio"]["transcript"] == "You said hi [5] "
    assert len(sound) == 4 * 240
    assert sound[-1] == round(3 / 100 * 32767)
    await home.emptied()


async def test_speech_streams_with_its_text(home: ToyGateway):
    await home.all_of(OMNI)

    response = await home.ask(
        OMNI, "hi", stream=True, modalities=["text", "audio"], audio={"voice": "alloy", "format": "pcm16"}
    )

    *chunks, end_mark = read_sse_events(response)
    audio = [chunk["choices"][0]["delta"].get("audio") or {} for chunk in chunks if chunk["choices"]]
    assert len(b"".join(base64.b64decode(each.get("data", "")) for each in audio)) == 4 * 240 * 2
    assert end_mark == "[DONE]"
    await home.emptied()


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac"])
async def test_speech_comes_in_every_format_whole_and_streamed(home: ToyGateway, format: str):
    await home.all_of(OMNI)
    speech_options = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": format}}

    whole = await home.ask(OMNI, "a b c d e f", **speech_options)
    stream_response = await home.ask(OMNI, "a b c d e f", stream=True, **speech_options)

    deltas = [
        chunk["choices"][0]["delta"].get("audio") or {}
        for chunk in read_sse_events(stream_response)[:-1]
        if chunk["choices"]
    ]
    for file in (
        base64.b64decode(whole.json()["choices"][0]["message"]["audio"]["data"]),
        b"".join(base64.b64decode(each.get("data", "")) for each in deltas),
    ):
        samples, rate = decode_audio(file)
        assert len(samples) / rate == pytest.approx(9 * 240 / 24000, abs=0.05)
        assert np.abs(samples).max() == pytest.approx(0.08, abs=0.02)
    await home.emptied()


async def test_the_seed_is_the_clients_or_follows_from_the_id(home: ToyGateway):
    await home.all_of(VL)

    seeded, own, other = [await home.ask(**more) for more in ({"seed": 11}, {}, {})]

    seeds = [(await find_invocation(home, response)).seed for response in (seeded, own, other)]
    assert seeds[0] == 11
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


async def test_recorded_calls_can_be_checked_against_their_digests(home: ToyGateway):
    await home.all_of(VL)

    invocation = await find_invocation(
        home, await home.ask(content=[make_image_part(), make_text_part("look")], stop=["x"])
    )

    for node in graph.decode_invocation(graph.encode_invocation(invocation)).nodes:
        assert graph.call_digest(node.task, node.inputs) == node.digest


async def test_requests_at_once_do_not_mix(home: ToyGateway):
    await home.all_of(VL)

    answers = await asyncio.gather(*(home.ask(content=f"number {number}", seed=number) for number in range(30)))

    assert [read_chat_answer(answer) for answer in answers] == [f"You said number {n} [{n % 97}] " for n in range(30)]
    await home.emptied()


async def test_all_times_are_in_the_record(home: ToyGateway):
    await home.all_of(VL)
    response = await home.ask(content=[make_image_part(), make_text_part("look")], path="E>L")

    end_record = await home.ended(response.headers["x-request-id"])

    assert [hop.node for hop in end_record.hops] == [0, 1]
    assert all(isinstance(hop, Hop) and hop.taken <= hop.end for hop in end_record.hops)
    assert end_record.created <= end_record.first <= end_record.finished


# Rejections


SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
REFUSED: dict[str, tuple[dict[str, Any], int, str, str | None]] = {
    "model": ({"model": "gpt"}, 404, "not_found", "model"),
    "modality": ({"content": [SOUND]}, 400, "", None),
    "speech": (
        {"modalities": ["text", "audio"], "audio": {"voice": "x", "format": "wav"}}, 400, "bad_request", "modalities",
    ),
    "path": ({"path": "L>E"}, 400, "bad_request", "x-omnibus-path"),
    "image": ({"content": [make_image_part(b"no picture")]}, 400, "bad_media", "messages[0].content[0].image_url.url"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "status", "code", "param"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_served_is_refused_and_leaves_nothing(
    home: ToyGateway, changes: dict[str, Any], status: int, code: str, param: str | None
):
    await home.all_of(VL)

    response = await home.ask(**changes)

    assert response.status_code == status, response.text
    assert read_error_body(response)["code"] in (code, "bad_media", "bad_request")
    assert param in (None, read_error_body(response)["param"])
    await home.emptied()
    assert home.bus._records == {}


async def test_a_model_without_encoders_is_asked_in_text(home: ToyGateway):
    await home.all_of(TEXT)

    response = await home.ask(TEXT, content=[make_text_part("how are"), make_text_part("you")], seed=SEED)

    assert read_chat_answer(response) == "You said how are you [5] "
    assert response.headers["x-omnibus-path"] == "L"
    await home.emptied()


@pytest.mark.parametrize("where", ["https://127.0.0.1/a.png", "data:image/png;base64,@@@@"])
async def test_media_that_a_model_does_not_take_are_refused_before_they_are_looked_at(home: ToyGateway, where: str):
    await home.all_of(TEXT)
    picture = {"type": "image_url", "image_url": {"url": where}}

    response = await home.ask(TEXT, content=[make_text_part("look"), picture])

    details = read_error_body(response)
    assert (response.status_code, details["code"], details["param"]) == (400, "bad_request", "messages")
    assert "takes no image input (it takes: text only)" in details["message"]
    await home.emptied()


async def test_an_unknown_voice_names_those_that_there_are(home: ToyGateway):
    await home.all_of(OMNI)

    response = await home.ask(OMNI, modalities=["text", "audio"], audio={"voice": "Hugo", "format": "wav"})

    assert read_error_body(response)["param"] == "audio.voice"
    assert "Chelsie, Ethan" in read_error_body(response)["message"]


async def test_before_the_first_plan_a_client_is_told_to_come_back(home: ToyGateway):
    assert (await home.ask()).status_code == 503


async def test_without_executors_the_stage_is_named(home: ToyGateway):
    home.serve(VL)

    response = await home.ask(content=[make_image_part(), make_text_part("look")])

    assert (response.status_code, read_error_body(response)["code"]) == (503, "stage_unavailable")
    assert read_error_body(response)["stage"] in ("vision", "thinker")
    await home.emptied()


async def test_above_the_limit_the_answer_is_429_with_a_time(tmp_path: Path):
    async with start_toy_gateway(tmp_path, max_inflight=0) as home:
        await home.all_of(VL)

        response = await home.ask()

        assert (response.status_code, read_error_body(response)["code"]) == (429, "overloaded")
        assert int(response.headers["retry-after"]) >= 1


async def test_a_name_that_clients_made_up_never_becomes_a_metric(tmp_path: Path):
    async with start_toy_gateway(tmp_path, max_inflight=0) as home:
        home.serve(VL)

        assert (await home.ask("made-up-at-the-limit")).status_code == 404

        assert "made-up-at-the-limit" not in (await home.http.get("/metrics")).text


# Failures


async def test_a_request_past_its_deadline_is_504(tmp_path: Path):
    async def wait_forever(job: Job) -> None:
        await asyncio.Event().wait()

    async with start_toy_gateway(tmp_path, deadline=0.2) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=wait_forever)

        response = await home.ask()

        assert (response.status_code, read_error_body(response)["code"]) == (504, "deadline_exceeded")
        assert (await home.ended(read_error_body(response)["request_id"])).status == "expired"
        await home.emptied()


async def fail_midway(job: Job) -> None:
    await job.send("text", {"text": "half "})
    raise RuntimeError("out of order")


async def test_a_stage_that_breaks_is_502_and_named(home: ToyGateway):
    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", thinker=fail_midway)

    response = await home.ask()

    assert response.status_code == 502
    assert (read_error_body(response)["stage"], read_error_body(response)["executor"]) == ("thinker", "toy-vl-EL-0")
    end_record = await home.ended(read_error_body(response)["request_id"])
    assert (end_record.status, end_record.problem is not None and end_record.problem.code) == ("failed", "stage_failed")
    await home.emptied()


async def test_a_stream_that_breaks_says_so_in_the_stream(home: ToyGateway):
    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", thinker=fail_midway)

    response = await home.ask(stream=True)

    chunks = read_sse_events(response)
    assert chunks[1]["choices"][0]["delta"]["content"] == "half "
    assert chunks[-1]["error"]["code"] == "stage_failed"
    await home.emptied()


async def test_the_end_of_a_request_is_told_once(home: ToyGateway):
    await home.all_of(VL)
    ends: list[str] = []
    await home.bus.subscribe(
        subjects.end_subject("*"), lambda delivery: ends.append(json.loads(delivery.data)["status"])
    )

    await home.ask()
    await wait_until(lambda: bool(ends))
    await home.emptied()

    assert ends == ["done"]


def test_a_question_of_the_tests_is_a_good_request():
    assert parse_chat(json.dumps(build_chat_body(VL, "hi")).encode()).model == VL


async def test_what_is_too_long_for_the_bus_travels_through_shared_memory(home: ToyGateway):
    await home.all_of(VL)

    answer = await home.ask(stop="s" * 1_000_000)

    assert answer.status_code == 200, answer.text
    await home.emptied()
