"""Stored spoken answers: later turns name one by its id, at any gateway, until it expires."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx
import pytest

from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import SpokenAnswer, Store
from omnibus_gateway.media import spoken_answers
from omnibus_gateway.media.files import FileStore
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.house import (
    OMNI,
    ToyGateway,
    read_chat_answer,
    read_error_body,
    read_sse_events,
    start_toy_gateway,
)
from tests.unit.sidecar.node import wait_until

SPOKEN: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}, "seed": 5}


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    valkey_store = Store(StoreSettings(url=valkey_url, prefix="spoken"))
    yield valkey_store
    await valkey_store.close()


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, store) as gateway:
        await gateway.all_of(OMNI)
        yield gateway


async def request_speech(home: ToyGateway, **more: Any) -> dict[str, Any]:
    response = await home.ask(OMNI, "hello", **{**SPOKEN, **more})
    assert response.status_code == 200, response.text
    audio: dict[str, Any] = response.json()["choices"][0]["message"]["audio"]
    return audio


async def ask_again(home: ToyGateway, id: str, content: Any = None) -> httpx.Response:
    """Send another turn after the answer ``id``. The toy repeats its last message, so the answer comes first."""
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": content, "audio": {"id": id}},
    ]
    return await home.http.post("/v1/chat/completions", json={"model": OMNI, "messages": turns, "seed": 5})


async def test_a_later_turn_names_an_answer_by_its_id(home: ToyGateway):
    audio = await request_speech(home)

    response = await ask_again(home, audio["id"])

    assert audio["transcript"] == "You said hello [5] "
    assert read_chat_answer(response) == "You said You said hello [5] [5] "  # the toy repeats the last turn


async def test_a_streamed_answer_can_be_named_as_well(home: ToyGateway):
    response = await home.ask(OMNI, "hello", stream=True, **SPOKEN)
    deltas = [chunk["choices"][0]["delta"] for chunk in read_sse_events(response)[:-1]]
    [id] = [delta["audio"]["id"] for delta in deltas if "id" in delta.get("audio", {})]
    [expires] = [delta["audio"]["expires_at"] for delta in deltas if "expires_at" in delta.get("audio", {})]

    assert read_chat_answer(await ask_again(home, id)) == "You said You said hello [5] [5] "
    assert 3500 < expires - time.time() <= 3600


async def test_content_counts_more_than_an_id(home: ToyGateway):
    assert read_chat_answer(await ask_again(home, "audio_unknown", "something else")) == "You said something else [5] "


async def test_another_gateway_knows_it_too(home: ToyGateway, store: Store, tmp_path: Path):
    audio = await request_speech(home)
    (tmp_path / "other").mkdir()

    async with start_toy_gateway(tmp_path / "other", store) as other:
        await other.all_of(OMNI)
        response = await ask_again(other, audio["id"])

    assert read_chat_answer(response) == "You said You said hello [5] [5] "


@pytest.mark.parametrize("format", ["wav", "mp3", "pcm16"])
async def test_the_sound_is_a_file_of_that_id(home: ToyGateway, format: str):
    audio = await request_speech(home, audio={"voice": "alloy", "format": format})

    response = await home.http.get(f"/v1/files/{audio['id']}/content")

    assert response.content == base64.b64decode(audio["data"])


async def test_an_unknown_id_is_refused_with_its_place(home: ToyGateway):
    response = await ask_again(home, "audio_" + "0" * 48)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "messages[1].audio.id")


async def test_one_that_has_expired_is_refused(home: ToyGateway, store: Store):
    await store.put_spoken_answers({"audio_old": SpokenAnswer("old", time.time() - 1)}, 60)

    response = await ask_again(home, "audio_old")

    assert (response.status_code, read_error_body(response)["param"]) == (400, "messages[1].audio.id")


async def test_without_a_store_answers_are_spoken_but_not_kept(tmp_path: Path):
    dead_store = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
    async with start_toy_gateway(tmp_path, dead_store) as alone:
        await alone.all_of(OMNI)
        audio = await request_speech(alone)
        response = await ask_again(alone, audio["id"])

    assert audio["transcript"] == "You said hello [5] "
    assert response.status_code == 503
    await dead_store.close()


async def test_what_was_said_to_one_tenant_is_unknown_to_another(home: ToyGateway):
    with acting_as(Tenant("a")):
        audio = await request_speech(home)
        assert (await ask_again(home, audio["id"])).status_code == 200

    with acting_as(Tenant("b")):
        response = await ask_again(home, audio["id"])

    assert (response.status_code, read_error_body(response)["param"]) == (400, "messages[1].audio.id")


class RecordingAnswerStore(Store):
    """A store that records its writes and waits until released."""

    def __init__(self, url: str) -> None:
        super().__init__(StoreSettings(url=url, prefix=f"spoken-{token_hex(4)}"))
        self.writes: list[list[str]] = []
        self.allowed = asyncio.Event()

    async def put_spoken_answers(self, answers: Mapping[str, SpokenAnswer], seconds: float) -> None:
        self.writes.append(list(answers))
        await self.allowed.wait()
        await super().put_spoken_answers(answers, seconds)


@pytest.fixture
async def recording_store(valkey_url: str) -> AsyncIterator[RecordingAnswerStore]:
    store = RecordingAnswerStore(valkey_url)
    yield store
    await store.close()


def make_ids(count: int) -> list[str]:
    return [f"audio_{number:048x}" for number in range(count)]


async def test_what_waits_is_written_together_and_nobody_goes_on_before(
    recording_store: RecordingAnswerStore, tmp_path: Path
):
    files = FileStore(GatewaySettings(media_dir=str(tmp_path)))
    answers, [first, *other_ids] = SpokenAnswers(recording_store, files, 60), make_ids(9)
    keeping = [asyncio.create_task(answers.store_answer(id, "hello", b"sound", "wav")) for id in [first]]
    await wait_until(lambda: recording_store.writes == [[first]])
    keeping += [asyncio.create_task(answers.store_answer(id, "hello", b"sound", "wav")) for id in other_ids]
    await asyncio.sleep(0)
    assert not any(task.done() for task in keeping)

    recording_store.allowed.set()
    await asyncio.gather(*keeping)

    assert recording_store.writes == [[first], other_ids]
    assert set(await recording_store.spoken_answers(make_ids(9))) == set(make_ids(9))
    assert [(await files.read(id))[1] for id in make_ids(9)] == [b"sound"] * 9
    files.close()


async def test_answers_that_come_one_by_one_wait_for_no_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spoken_answers, "WRITE_INTERVAL_SECONDS", 3600.0)
    files = FileStore(GatewaySettings(media_dir=str(tmp_path)))
    answers, ids = SpokenAnswers(store, files, 60), make_ids(2)

    for id in ids:
        await answers.store_answer(id, "hello", b"sound", "wav")

    assert set(await store.spoken_answers(ids)) == set(ids)
    files.close()


async def test_a_store_that_hangs_holds_nobody_up_and_answers_are_kept_later(
    recording_store: RecordingAnswerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spoken_answers, "STORE_WAIT_SECONDS", 0.01)
    files = FileStore(GatewaySettings(media_dir=str(tmp_path)))
    answers, [first, second] = SpokenAnswers(recording_store, files, 60), make_ids(2)

    for id in (first, second):
        await answers.store_answer(id, "hello", b"sound", "wav")

    assert await recording_store.spoken_answers([first, second]) == {}
    recording_store.allowed.set()
    await wait_until(lambda: recording_store.writes == [[first], [second]])
    await until_kept(recording_store, [first, second])
    files.close()


async def until_kept(store: Store, ids: list[str]) -> None:
    async def has_answers() -> bool:
        return set(await store.spoken_answers(ids)) == set(ids)

    await wait_until(has_answers)


async def test_what_cannot_be_a_file_is_kept_as_text(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files = FileStore(GatewaySettings(media_dir=str(tmp_path), file_largest=3))

    await SpokenAnswers(store, files, 60).store_answer(make_ids(1)[0], "hello", b"sound", "wav")

    assert (await store.spoken_answers(make_ids(1)))[make_ids(1)[0]].transcript == "hello"
    assert "is not kept: the file has 5 bytes" in caplog.text
    files.close()
