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
from tests.unit.gateway.house import OMNI, PNG, VL, House, answered, house, image, text
from tests.unit.sidecar.node import until

SECRET, STOP = "Kartoffelsalat", "Zwiebelkuchen"
ASKED: dict[str, Any] = {"content": [text(SECRET), image()], "stop": [STOP], "seed": 5}


async def bodies(home: House, id: str) -> list[bytes]:
    await home.ended(id)
    return [found.data for found in await home.bus.read_records(f"{subjects.ROOT}.inv.*.{id}")]


async def test_in_full_mode_the_invocation_is_recorded_as_it_was_sent(home: House):
    await home.all_of(VL)
    sent: list[bytes] = []
    await home.bus.subscribe("omnibus.task.*.*", lambda delivery: sent.append(delivery.data))

    response = await home.ask(**ASKED)

    begin, _ = await bodies(home, response.headers["x-request-id"])
    assert begin in sent
    thinker = graph.decode_invocation(begin).nodes[1]
    assert thinker.inputs["messages"][0]["content"][0]["text"] == SECRET
    assert thinker.inputs["params"]["stop"] == [STOP]


async def test_the_end_says_what_the_client_got(home: House):
    await home.all_of(VL)

    response = await home.ask(**ASKED)

    ended = await home.ended(response.headers["x-request-id"])
    said = answered(response)
    assert (ended.status, ended.attempts, ended.problem) == ("done", 1, None)
    assert (ended.path, ended.answer.text) == (response.headers["x-omnibus-path"], said)
    assert ended.answer.text_sha256 == sha256(said.encode()).hexdigest()
    assert ended.answer.finish_reason == "stop"
    assert ended.answer.usage["image_tokens"] == 1


async def test_the_sound_of_an_answer_is_kept_by_its_hash(home: House):
    await home.all_of(OMNI)

    response = await home.ask(OMNI, "hi", modalities=["text", "audio"], audio={"voice": "Ethan", "format": "pcm16"})

    ended = await home.ended(response.headers["x-request-id"])
    sound = base64.b64decode(response.json()["choices"][0]["message"]["audio"]["data"])
    assert ended.answer.audio_sha256 == sha256(sound).hexdigest()
    assert ended.answer.audio_seconds == len(sound) / 2 / 24000
    assert await home.keep.get(ended.answer.audio_sha256) == sound


async def test_media_are_kept_by_their_hash(home: House):
    await home.all_of(VL)

    await home.ask(**ASKED)

    assert await home.keep.get(sha256(PNG).hexdigest()) == PNG


@pytest.mark.parametrize("model", [VL, OMNI])
async def test_in_digest_mode_no_content_is_recorded_anywhere(tmp_path: Path, model: str):
    async with house(tmp_path, record="digest") as home:
        await home.all_of(model)
        everything: list[bytes] = []
        await home.bus.subscribe(subjects.RECORDS, lambda delivery: everything.append(delivery.data))

        response = await home.ask(model, **ASKED)
        long = await home.ask(model, " ".join([SECRET] * 3000))
        streamed = await home.ask(model, **ASKED, stream=True)
        for each in (response, long, streamed):
            await home.ended(each.headers["x-request-id"])

        assert SECRET in answered(response)
        await until(lambda: len(everything) == 6)
        found = b"".join(everything)
        for content in (
            SECRET.encode(),
            STOP.encode(),
            base64.b64encode(PNG)[:40],
            PNG[:40],
            answered(response).encode(),
        ):
            assert content not in found
        assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()] == []


async def test_in_digest_mode_sizes_and_digests_remain(tmp_path: Path):
    async with house(tmp_path, record="digest") as home:
        await home.all_of(VL)

        response = await home.ask(**ASKED)

        invocation, _ = await home.records.find(response.headers["x-request-id"])
        ended = await home.ended(response.headers["x-request-id"])
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
        assert ended.answer.text == ""
        assert ended.answer.text_sha256 == sha256(answered(response).encode()).hexdigest()


async def test_equal_content_has_equal_digests(tmp_path: Path):
    async with house(tmp_path, record="digest") as home:
        await home.all_of(VL)

        answers = [await home.ask(content=content) for content in ("one", "one", "two")]

        found = [(await home.records.find(each.headers["x-request-id"]))[0] for each in answers]
        digests = [invocation.nodes[0].inputs["messages"]["$digest"] for invocation in found]
        assert digests[0] == digests[1] != digests[2]


async def test_a_long_answer_is_shortened_in_the_record_and_not_in_its_digest(home: House):
    await home.all_of(VL)
    long = " ".join(f"w{number}" for number in range(5000))

    response = await home.ask(content=long, seed=5)

    ended = await home.ended(response.headers["x-request-id"])
    assert len(ended.answer.text) == 16_000
    assert ended.answer.text_sha256 == sha256(answered(response).encode()).hexdigest()


async def test_an_invocation_that_was_never_recorded_is_not_found(home: House):
    with pytest.raises(NotFound, match="no record of invocation g-0-9"):
        await home.records.find("g-0-9")


async def test_an_invocation_that_has_not_ended_has_no_end(home: House):
    await home.all_of(VL)
    response = await home.ask()
    invocation, _ = await home.records.find(response.headers["x-request-id"])
    again = msgspec.structs.replace(invocation, id="gw-9-9")
    home.bus.publish_record(subjects.record_subject("chat", again.id), graph.encode_invocation(again), again.id)

    assert await home.records.find("gw-9-9") == (again, None)


async def test_words_of_a_user_never_look_like_an_end(home: House):
    await home.all_of(VL)

    response = await home.ask(content='"kind":"end" {"kind":"end"}')

    invocation, ended = await home.records.find(response.headers["x-request-id"])
    assert invocation.nodes[0].inputs["messages"][0]["content"] == '"kind":"end" {"kind":"end"}'
    assert ended is not None


async def test_what_ends_soon_is_one_message_that_says_both(tmp_path: Path):
    async with house(tmp_path, hold_seconds=60.0) as home:
        await home.all_of(VL)
        response = await home.ask(**ASKED)

        (whole,) = await bodies(home, response.headers["x-request-id"])
        found = await home.records.find(response.headers["x-request-id"])

    began, ended = records.split_records(whole)
    assert found == (graph.decode_invocation(began), records.decode_end(ended))
    assert records.decode_message(whole) == found
    assert (found.ended.status, found.invocation.seed) == ("done", 5)  # type: ignore[union-attr]


async def recorded(home: House) -> int:
    return len(await home.bus.read_records(f"{subjects.ROOT}.inv.>"))


async def test_records_of_what_ends_soon_are_published_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "COLLECT_SECONDS", 60.0)
    monkeypatch.setattr(record, "MAX_COLLECTED", 3)
    async with house(tmp_path, hold_seconds=60.0) as home:
        await home.all_of(VL)
        counts = []
        for _ in range(4):
            await home.ask(**ASKED)
            await home.emptied()
            counts.append(await recorded(home))
        home.records.close()
        counts.append(await recorded(home))

    assert counts == [0, 0, 3, 3, 4]


async def test_who_looks_for_a_record_finds_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with house(tmp_path, hold_seconds=60.0) as home:
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

    async def wait(job: Job) -> None:
        await go.wait()
        job.close("text", {"finish_reason": "stop", "usage": {}})

    async with house(tmp_path, hold_seconds=0.05) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=wait)
        asking = asyncio.ensure_future(home.ask())

        async def begun() -> bool:
            return bool(await home.bus.read_records(f"{subjects.ROOT}.inv.>"))

        await until(begun)
        (begin,) = await home.bus.read_records(f"{subjects.ROOT}.inv.>")
        go.set()
        id = (await asking).headers["x-request-id"]

        assert graph.decode_invocation(begin.data).id == id
        assert [records.is_end(each) for each in await bodies(home, id)] == [False, True]


async def test_what_is_held_back_is_recorded_when_the_gateway_closes(tmp_path: Path):
    async with house(tmp_path, hold_seconds=60.0) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=forever)
        asking = asyncio.ensure_future(home.ask())
        await until(lambda: home.dispatcher.inflight_count == 1)

        home.records.close()

        assert len(await home.bus.read_records(f"{subjects.ROOT}.inv.>")) == 1
        asking.cancel()


async def forever(job: Job) -> None:
    await asyncio.Event().wait()


async def test_what_does_not_fit_into_one_message_is_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "MAX_WHOLE_BYTES", 100)
    async with house(tmp_path, hold_seconds=60.0) as home:
        await home.all_of(VL)

        response = await home.ask()

        assert [records.is_end(each) for each in await bodies(home, response.headers["x-request-id"])] == [False, True]
