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
from tests.unit.gateway.house import OMNI, House, answered, error, events, house
from tests.unit.sidecar.node import until

SPOKEN: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}, "seed": 5}


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    made = Store(StoreSettings(url=valkey_url, prefix="spoken"))
    yield made
    await made.close()


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[House]:
    async with house(tmp_path, store) as made:
        await made.all_of(OMNI)
        yield made


async def spoken(home: House, **more: Any) -> dict[str, Any]:
    response = await home.ask(OMNI, "hello", **{**SPOKEN, **more})
    assert response.status_code == 200, response.text
    audio: dict[str, Any] = response.json()["choices"][0]["message"]["audio"]
    return audio


async def ask_again(home: House, id: str, content: Any = None) -> httpx.Response:
    """Send another turn after the answer ``id``. The toy repeats its last message, so the answer comes first."""
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": content, "audio": {"id": id}},
    ]
    return await home.http.post("/v1/chat/completions", json={"model": OMNI, "messages": turns, "seed": 5})


async def test_a_later_turn_names_an_answer_by_its_id(home: House):
    audio = await spoken(home)

    response = await ask_again(home, audio["id"])

    assert audio["transcript"] == "You said hello [5] "
    assert answered(response) == "You said You said hello [5] [5] "  # the toy repeats the last turn


async def test_a_streamed_answer_can_be_named_as_well(home: House):
    response = await home.ask(OMNI, "hello", stream=True, **SPOKEN)
    deltas = [chunk["choices"][0]["delta"] for chunk in events(response)[:-1]]
    [id] = [delta["audio"]["id"] for delta in deltas if "id" in delta.get("audio", {})]
    [expires] = [delta["audio"]["expires_at"] for delta in deltas if "expires_at" in delta.get("audio", {})]

    assert answered(await ask_again(home, id)) == "You said You said hello [5] [5] "
    assert 3500 < expires - time.time() <= 3600


async def test_content_counts_more_than_an_id(home: House):
    assert answered(await ask_again(home, "audio_unknown", "something else")) == "You said something else [5] "


async def test_another_gateway_knows_it_too(home: House, store: Store, tmp_path: Path):
    audio = await spoken(home)
    (tmp_path / "other").mkdir()

    async with house(tmp_path / "other", store) as other:
        await other.all_of(OMNI)
        response = await ask_again(other, audio["id"])

    assert answered(response) == "You said You said hello [5] [5] "


@pytest.mark.parametrize("format", ["wav", "mp3", "pcm16"])
async def test_the_sound_is_a_file_of_that_id(home: House, format: str):
    audio = await spoken(home, audio={"voice": "alloy", "format": format})

    response = await home.http.get(f"/v1/files/{audio['id']}/content")

    assert response.content == base64.b64decode(audio["data"])


async def test_an_unknown_id_is_refused_with_its_place(home: House):
    response = await ask_again(home, "audio_" + "0" * 48)

    assert (response.status_code, error(response)["param"]) == (400, "messages[1].audio.id")


async def test_one_that_has_expired_is_refused(home: House, store: Store):
    await store.put_spoken_answers({"audio_old": SpokenAnswer("old", time.time() - 1)}, 60)

    response = await ask_again(home, "audio_old")

    assert (response.status_code, error(response)["param"]) == (400, "messages[1].audio.id")


async def test_without_a_store_answers_are_spoken_but_not_kept(tmp_path: Path):
    gone = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
    async with house(tmp_path, gone) as alone:
        await alone.all_of(OMNI)
        audio = await spoken(alone)
        response = await ask_again(alone, audio["id"])

    assert audio["transcript"] == "You said hello [5] "
    assert response.status_code == 503
    await gone.close()


async def test_what_was_said_to_one_tenant_is_unknown_to_another(home: House):
    with acting_as(Tenant("a")):
        audio = await spoken(home)
        assert (await ask_again(home, audio["id"])).status_code == 200

    with acting_as(Tenant("b")):
        refused = await ask_again(home, audio["id"])

    assert (refused.status_code, error(refused)["param"]) == (400, "messages[1].audio.id")


class Noting(Store):
    """A store that records its writes and waits until released."""

    def __init__(self, url: str) -> None:
        super().__init__(StoreSettings(url=url, prefix=f"spoken-{token_hex(4)}"))
        self.writes: list[list[str]] = []
        self.allowed = asyncio.Event()

    async def put_spoken_answers(self, said: Mapping[str, SpokenAnswer], seconds: float) -> None:
        self.writes.append(list(said))
        await self.allowed.wait()
        await super().put_spoken_answers(said, seconds)


@pytest.fixture
async def noting(valkey_url: str) -> AsyncIterator[Noting]:
    made = Noting(valkey_url)
    yield made
    await made.close()


def names(count: int) -> list[str]:
    return [f"audio_{number:048x}" for number in range(count)]


async def test_what_waits_is_written_together_and_nobody_goes_on_before(noting: Noting, tmp_path: Path):
    files = FileStore(GatewaySettings(media_dir=str(tmp_path)))
    spoken, [first, *others] = SpokenAnswers(noting, files, 60), names(9)
    keeping = [asyncio.create_task(spoken.store_answer(id, "hello", b"sound", "wav")) for id in [first]]
    await until(lambda: noting.writes == [[first]])
    keeping += [asyncio.create_task(spoken.store_answer(id, "hello", b"sound", "wav")) for id in others]
    await asyncio.sleep(0)
    assert not any(task.done() for task in keeping)

    noting.allowed.set()
    await asyncio.gather(*keeping)

    assert noting.writes == [[first], others]
    assert set(await noting.spoken_answers(names(9))) == set(names(9))
    assert [(await files.read(id))[1] for id in names(9)] == [b"sound"] * 9
    files.close()


async def test_answers_that_come_one_by_one_wait_for_no_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spoken_answers, "WRITE_INTERVAL_SECONDS", 3600.0)
    files = FileStore(GatewaySettings(media_dir=str(tmp_path)))
    spoken, ids = SpokenAnswers(store, files, 60), names(2)

    for id in ids:
        await spoken.store_answer(id, "hello", b"sound", "wav")

    assert set(await store.spoken_answers(ids)) == set(ids)
    files.close()


async def test_a_store_that_hangs_holds_nobody_up_and_answers_are_kept_later(
    noting: Noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spoken_answers, "STORE_WAIT_SECONDS", 0.01)
    files = FileStore(GatewaySettings(media_dir=str(tmp_path)))
    spoken, [first, second] = SpokenAnswers(noting, files, 60), names(2)

    for id in (first, second):
        await spoken.store_answer(id, "hello", b"sound", "wav")

    assert await noting.spoken_answers([first, second]) == {}
    noting.allowed.set()
    await until(lambda: noting.writes == [[first], [second]])
    await until_kept(noting, [first, second])
    files.close()


async def until_kept(store: Store, ids: list[str]) -> None:
    async def kept() -> bool:
        return set(await store.spoken_answers(ids)) == set(ids)

    await until(kept)


async def test_what_cannot_be_a_file_is_kept_as_text(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files = FileStore(GatewaySettings(media_dir=str(tmp_path), file_largest=3))

    await SpokenAnswers(store, files, 60).store_answer(names(1)[0], "hello", b"sound", "wav")

    assert (await store.spoken_answers(names(1)))[names(1)[0]].transcript == "hello"
    assert "is not kept: the file has 5 bytes" in caplog.text
    files.close()
