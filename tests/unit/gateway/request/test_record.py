"""Records: everything that a replay needs in full mode, no user content in digest mode."""

import asyncio
import base64
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.errors import NotFound
from omnibus.executor.runner import Job
from omnibus.recording import records
from omnibus_gateway.request import record
from tests.unit.gateway.house import (
    OMNI,
    PNG,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    start_toy_gateway,
)
from tests.unit.sidecar.node import wait_until

SECRET, STOP = "Kartoffelsalat", "Zwiebelkuchen"
ASKED: dict[str, Any] = {"content": [make_text_part(SECRET), make_image_part()], "stop": [STOP], "seed": 5}


async def read_bodies(home: ToyGateway, id: str) -> list[bytes]:
    await home.ended(id)
    return [record.data for record in await home.bus.read_records(f"{subjects.ROOT}.inv.*.{id}")]


async def test_in_full_mode_the_invocation_is_recorded_as_it_was_sent(home: ToyGateway):
    await home.all_of(VL)
    task_bodies: list[bytes] = []
    await home.bus.subscribe("omnibus.task.*.*", lambda delivery: task_bodies.append(delivery.data))

    response = await home.ask(**ASKED)

    begin, _ = await read_bodies(home, response.headers["x-request-id"])
    assert begin in task_bodies
    thinker = graph.decode_invocation(begin).nodes[1]
    assert thinker.inputs["messages"][0]["content"][0]["text"] == SECRET
    assert thinker.inputs["params"]["stop"] == [STOP]


async def test_the_end_says_what_the_client_got(home: ToyGateway):
    await home.all_of(VL)

    response = await home.ask(**ASKED)

    end_record = await home.ended(response.headers["x-request-id"])
    answer_text = read_chat_answer(response)
    assert (end_record.status, end_record.attempts, end_record.problem) == ("done", 1, None)
    assert (end_record.path, end_record.answer.text) == (response.headers["x-omnibus-path"], answer_text)
    assert end_record.answer.text_sha256 == sha256(answer_text.encode()).hexdigest()
    assert end_record.answer.finish_reason == "stop"
    assert end_record.answer.usage["image_tokens"] == 1


async def test_the_sound_of_an_answer_is_kept_by_its_hash(home: ToyGateway):
    await home.all_of(OMNI)

    response = await home.ask(OMNI, "hi", modalities=["text", "audio"], audio={"voice": "Ethan", "format": "pcm16"})

    end_record = await home.ended(response.headers["x-request-id"])
    sound = base64.b64decode(response.json()["choices"][0]["message"]["audio"]["data"])
    assert end_record.answer.audio_sha256 == sha256(sound).hexdigest()
    assert end_record.answer.audio_seconds == len(sound) / 2 / 24000
    assert await home.keep.get(end_record.answer.audio_sha256) == sound


async def test_media_are_kept_by_their_hash(home: ToyGateway):
    await home.all_of(VL)

    await home.ask(**ASKED)

    assert await home.keep.get(sha256(PNG).hexdigest()) == PNG


@pytest.mark.parametrize("model", [VL, OMNI])
async def test_in_digest_mode_no_content_is_recorded_anywhere(tmp_path: Path, model: str):
    async with start_toy_gateway(tmp_path, record="digest") as home:
        await home.all_of(model)
        everything: list[bytes] = []
        await home.bus.subscribe(subjects.RECORDS, lambda delivery: everything.append(delivery.data))

        response = await home.ask(model, **ASKED)
        long = await home.ask(model, " ".join([SECRET] * 3000))
        stream_response = await home.ask(model, **ASKED, stream=True)
        for each in (response, long, stream_response):
            await home.ended(each.headers["x-request-id"])

        assert SECRET in read_chat_answer(response)
        await wait_until(lambda: len(everything) == 6)
        recorded_bytes = b"".join(everything)
        for content in (
            SECRET.encode(),
            STOP.encode(),
            base64.b64encode(PNG)[:40],
            PNG[:40],
            read_chat_answer(response).encode(),
        ):
            assert content not in recorded_bytes
        assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()] == []


async def test_in_digest_mode_sizes_and_digests_remain(tmp_path: Path):
    async with start_toy_gateway(tmp_path, record="digest") as home:
        await home.all_of(VL)

        response = await home.ask(**ASKED)

        invocation, _ = await home.records.find(response.headers["x-request-id"])
        end_record = await home.ended(response.headers["x-request-id"])
        media = invocation.nodes[0].inputs["media"]
        assert media == {
            "$digest": sha256(PNG).hexdigest(),
            "modality": "image",
            "mime": "image/png",
            "sha256": sha256(PNG).hexdigest(),
            "nbytes": len(PNG),
        }
        messages = invocation.nodes[1].inputs["messages"]
        assert messages["nbytes"] > len(SECRET)
        assert len(messages["$digest"]) == 64
        assert invocation.nodes[1].inputs["items"] == [graph.make_ref(0, "embedding")]
        assert end_record.answer.text == ""
        assert end_record.answer.text_sha256 == sha256(read_chat_answer(response).encode()).hexdigest()


async def test_equal_content_has_equal_digests(tmp_path: Path):
    async with start_toy_gateway(tmp_path, record="digest") as home:
        await home.all_of(VL)

        answers = [await home.ask(content=content) for content in ("one", "one", "two")]

        invocations = [(await home.records.find(each.headers["x-request-id"]))[0] for each in answers]
        digests = [invocation.nodes[0].inputs["messages"]["$digest"] for invocation in invocations]
        assert digests[0] == digests[1] != digests[2]


async def test_a_long_answer_is_shortened_in_the_record_and_not_in_its_digest(home: ToyGateway):
    await home.all_of(VL)
    long = " ".join(f"w{number}" for number in range(5000))

    response = await home.ask(content=long, seed=5)

    end_record = await home.ended(response.headers["x-request-id"])
    assert len(end_record.answer.text) == 16_000
    assert end_record.answer.text_sha256 == sha256(read_chat_answer(response).encode()).hexdigest()


async def test_an_invocation_that_was_never_recorded_is_not_found(home: ToyGateway):
    with pytest.raises(NotFound, match="no record of invocation g-0-9"):
        await home.records.find("g-0-9")


async def test_an_invocation_that_has_not_ended_has_no_end(home: ToyGateway):
    await home.all_of(VL)
    response = await home.ask()
    invocation, _ = await home.records.find(response.headers["x-request-id"])
    again = msgspec.structs.replace(invocation, id="gw-9-9")
    home.bus.publish_record(subjects.record_subject("chat", again.id), graph.encode_invocation(again), again.id)

    assert await home.records.find("gw-9-9") == (again, None)


async def test_words_of_a_user_never_look_like_an_end(home: ToyGateway):
    await home.all_of(VL)

    response = await home.ask(content='"kind":"end" {"kind":"end"}')

    invocation, end_record = await home.records.find(response.headers["x-request-id"])
    assert invocation.nodes[0].inputs["messages"][0]["content"] == '"kind":"end" {"kind":"end"}'
    assert end_record is not None


async def test_what_ends_soon_is_one_message_that_says_both(tmp_path: Path):
    async with start_toy_gateway(tmp_path, hold_seconds=60.0) as home:
        await home.all_of(VL)
        response = await home.ask(**ASKED)

        (whole,) = await read_bodies(home, response.headers["x-request-id"])
        record = await home.records.find(response.headers["x-request-id"])

    began, end_body = records.split_records(whole)
    assert record == (graph.decode_invocation(began), records.decode_end(end_body))
    assert records.decode_message(whole) == record
    assert (record.ended.status, record.invocation.seed) == ("done", 5)  # type: ignore[union-attr]


async def count_records(home: ToyGateway) -> int:
    return len(await home.bus.read_records(f"{subjects.ROOT}.inv.>"))


async def test_records_of_what_ends_soon_are_published_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "COLLECT_SECONDS", 60.0)
    monkeypatch.setattr(record, "MAX_COLLECTED", 3)
    async with start_toy_gateway(tmp_path, hold_seconds=60.0) as home:
        await home.all_of(VL)
        counts = []
        for _ in range(4):
            await home.ask(**ASKED)
            await home.emptied()
            counts.append(await count_records(home))
        home.records.close()
        counts.append(await count_records(home))

    assert counts == [0, 0, 3, 3, 4]


async def test_who_looks_for_a_record_finds_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with start_toy_gateway(tmp_path, hold_seconds=60.0) as home:
        await home.all_of(VL)
        there = await home.ask(**ASKED)
        elsewhere = await records.find_record(home.bus, there.headers["x-request-id"])
        monkeypatch.setattr(record, "COLLECT_SECONDS", 60.0)
        here = await home.ask(**ASKED)
        own = await home.records.find(here.headers["x-request-id"])

    assert elsewhere.ended is not None
    assert own.ended is not None


async def test_what_lasts_longer_is_recorded_before_its_end(tmp_path: Path):
    go = asyncio.Event()

    async def wait_and_close(job: Job) -> None:
        await go.wait()
        job.close("text", {"finish_reason": "stop", "usage": {}})

    async with start_toy_gateway(tmp_path, hold_seconds=0.05) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=wait_and_close)
        asking = asyncio.ensure_future(home.ask())

        async def is_recorded() -> bool:
            return bool(await home.bus.read_records(f"{subjects.ROOT}.inv.>"))

        await wait_until(is_recorded)
        (begin,) = await home.bus.read_records(f"{subjects.ROOT}.inv.>")
        go.set()
        id = (await asking).headers["x-request-id"]

        assert graph.decode_invocation(begin.data).id == id
        assert [records.is_end(each) for each in await read_bodies(home, id)] == [False, True]


async def test_what_is_held_back_is_recorded_when_the_gateway_closes(tmp_path: Path):
    async with start_toy_gateway(tmp_path, hold_seconds=60.0) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=wait_forever)
        asking = asyncio.ensure_future(home.ask())
        await wait_until(lambda: home.dispatcher.inflight_count == 1)

        home.records.close()

        assert len(await home.bus.read_records(f"{subjects.ROOT}.inv.>")) == 1
        asking.cancel()


async def wait_forever(job: Job) -> None:
    await asyncio.Event().wait()


async def test_what_does_not_fit_into_one_message_is_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "MAX_WHOLE_BYTES", 100)
    async with start_toy_gateway(tmp_path, hold_seconds=60.0) as home:
        await home.all_of(VL)

        response = await home.ask()

        assert [records.is_end(each) for each in await read_bodies(home, response.headers["x-request-id"])] == [
            False,
            True,
        ]
