"""Audio encoded while its user speaks: for the encoder's cache only, and only while it is idle."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.executor.runner import Job
from omnibus.metrics.collectors import REGISTRY
from omnibus.plan import PriceList
from omnibus.recording.dead_letters import list_dead_letters
from omnibus_gateway.openai.realtime.session import PcmFormat
from omnibus_gateway.realtime.config import to_wav
from tests.unit.gateway.house import OMNI, ToyGateway, build_chat_body, write_chat_words
from tests.unit.gateway.realtime.test_early_answers import (
    CountingThinker,
    Ears,
    diff_outcomes,
    read_outcomes,
    start_hearing_gateway,
)
from tests.unit.gateway.realtime.test_turn_detection import make_pcm, send_tones
from tests.unit.gateway.realtime_house import RealtimeCaller, open_realtime_call
from tests.unit.gateway.wires import PATIENCE
from tests.unit.sidecar.node import wait_until

HEADER = 44
PUSH_TO_TALK = {"input": {"turn_detection": None}}


class Keeping(Ears):
    """An encoder that reports a cache; it waits while ``held``."""

    keeps = True

    def __init__(self, *, held: bool = False) -> None:
        super().__init__()
        self.begun = self.stopped = 0
        self.free = asyncio.Event()
        if not held:
            self.free.set()

    async def __call__(self, job: Job) -> None:
        self.begun += 1
        try:
            await self.free.wait()
            await super().__call__(job)
        except BaseException:
            self.stopped += 1
            raise

    @property
    def seconds(self) -> list[float]:
        """The length of each audio clip received."""
        return [round((len(sound) - HEADER) / 48_000, 1) for sound in self.heard]


async def speak_slowly(caller: RealtimeCaller, ears: Keeping, seconds: int) -> None:
    """Speak no faster than the audio is encoded."""
    await send_tones(caller, (0, 0.6), (0.3, 0.5))
    for second in range(seconds):
        clip_count = len(ears.heard)
        await send_tones(caller, (0.3, 1.0))
        if second % 2:
            await wait_until(lambda known=clip_count: len(ears.heard) > known)


async def test_what_is_said_is_encoded_window_by_window_and_is_how_the_turn_begins(tmp_path: Path):
    ears, before = Keeping(), read_outcomes()
    async with start_hearing_gateway(tmp_path, CountingThinker(), ears) as home, open_realtime_call(home) as caller:
        await speak_slowly(caller, ears, 6)
        assert ears.seconds == [2.1, 4.1, 6.1]
        await wait_until(lambda: home.dispatcher.inflight_count == 0)
        assert home.loads.inflight == 0
        assert not any(slot.came for slot in home.loads._slots.values())  # not counted as a request
        await send_tones(caller, (0, 0.8))
        events = await caller.until("response.done")
        await home.emptied()

    *ahead, turn = ears.heard
    assert events[-1]["response"]["status"] == "completed"
    assert all(turn[HEADER:].startswith(each[HEADER:]) for each in ahead)
    assert diff_outcomes(before) == {"used": 1}


async def test_a_client_that_finds_turns_itself_has_what_it_sends_encoded(tmp_path: Path):
    ears = Keeping()
    async with start_hearing_gateway(tmp_path, CountingThinker(), ears) as home, open_realtime_call(home) as caller:
        await caller.update(audio=PUSH_TO_TALK)
        await send_tones(caller, (0.3, 2.2))
        await wait_until(lambda: len(ears.heard) == 1)
        await send_tones(caller, (0.3, 2.2))
        await wait_until(lambda: len(ears.heard) == 2)
        await caller.send("input_audio_buffer.commit")
        await caller.until("conversation.item.done")
        await caller.respond()
        await home.emptied()

    assert ears.seconds == [2.1, 4.1, 4.4]


async def test_what_is_encoded_ahead_has_a_record_without_a_price_and_no_dead_letter(tmp_path: Path):
    ears = Keeping(held=True)
    async with start_hearing_gateway(tmp_path, CountingThinker(), ears) as home, open_realtime_call(home) as caller:
        await send_tones(caller, (0, 0.6), (0.3, 3.0))
        await wait_until(lambda: ears.begun == 1)
        [running] = home.dispatcher._running.values()
        assert home.router.plan is not None
        home.router.plan = msgspec.structs.replace(home.router.plan, prices=PriceList("EUR", {"cpu": 3.6}))
        await send_tones(caller, (0, 0.4))  # its user has stopped
        await wait_until(lambda: ears.stopped == 1)
        ears.free.set()
        record = await home.ended(running.id)
        letters = await list_dead_letters(home.bus, 1)
        await send_tones(caller, (0, 0.5))
        await caller.until("response.done")
        await home.emptied()

    assert record.status == "cancelled"
    assert record.usage is not None
    assert record.usage.money is msgspec.UNSET
    assert letters == []


class PrefillThinker(CountingThinker):
    """A thinker with a prompt cache. It records the audio of its prefill-only prompts."""

    keeps_prompts = True

    def __init__(self, *, held: bool = False) -> None:
        super().__init__(held=held)
        self.prefilled: list[dict[str, Any]] = []
        self.talks = asyncio.Event()  # answers wait for it
        self.talks.set()

    async def __call__(self, job: Job) -> None:
        if not job.inputs["params"].get("prefill_only"):
            self.begun += not self.talks.is_set()
            await self.talks.wait()
            await write_chat_words(job)
            return
        self.prefilled.append({**job.inputs, "items": len(await job.value("items"))})
        await super().__call__(job)


def read_ahead() -> tuple[float, float]:
    """Return the counts of prompts prefilled early and of audio encoded alone."""
    labels = [{"model": OMNI, "outcome": outcome} for outcome in ("prefilled", "encoded")]
    first, second = (REGISTRY.get_sample_value("omnibus_realtime_early_total", each) or 0.0 for each in labels)
    return first, second


async def test_the_conversation_so_far_is_prefilled_with_each_window(tmp_path: Path):
    ears, thinker, before = Keeping(), PrefillThinker(), read_ahead()
    async with start_hearing_gateway(tmp_path, thinker, ears) as home, open_realtime_call(home) as caller:
        await caller.update(instructions="Be short.")
        await caller.say("hello")
        await speak_slowly(caller, ears, 4)
        await wait_until(lambda: home.dispatcher.inflight_count == 0)
        assert not any(slot.came for slot in home.loads._slots.values())  # not counted as a request
        await send_tones(caller, (0, 0.8))
        events = await caller.until("response.done")
        await home.emptied()
    prefill_count, encoding_count = (now - then for now, then in zip(read_ahead(), before, strict=True))

    assert events[-1]["response"]["status"] == "completed"
    assert ears.seconds[:2] == [2.1, 4.1]
    assert (prefill_count, encoding_count) == (2, 0)
    assert [each["items"] for each in thinker.prefilled] == [1, 1]
    roles = [message["role"] for message in thinker.prefilled[0]["messages"]]
    assert roles == ["system", "user", "user"]
    keys = {each["params"]["cache_key"] for each in thinker.prefilled}
    assert len(keys) == 1
    assert all(each["voice"] for each in thinker.prefilled)  # a talker will follow


async def test_what_is_prefilled_ahead_is_not_billed_and_ends_with_the_speech(tmp_path: Path):
    ears, thinker = Keeping(), PrefillThinker(held=True)
    async with start_hearing_gateway(tmp_path, thinker, ears) as home, open_realtime_call(home) as caller:
        await send_tones(caller, (0, 0.6), (0.3, 3.0))
        await wait_until(lambda: thinker.begun == 1)
        [running] = home.dispatcher._running.values()
        assert home.router.plan is not None
        home.router.plan = msgspec.structs.replace(home.router.plan, prices=PriceList("EUR", {"cpu": 3.6}))
        await send_tones(caller, (0, 0.4))  # its user has stopped
        await wait_until(lambda: thinker.stopped == 1)
        record = await home.ended(running.id)
        letters = await list_dead_letters(home.bus, 1)
        await send_tones(caller, (0, 0.5))
        events = await caller.until("response.done")
        await home.emptied()

    assert events[-1]["response"]["status"] == "completed"
    assert record.status == "cancelled"
    assert record.usage is not None
    assert record.usage.money is msgspec.UNSET
    assert letters == []


async def test_a_thinker_with_others_work_is_not_held_up_but_the_encoder_works_ahead(tmp_path: Path):
    ears, thinker, before = Keeping(), PrefillThinker(), read_ahead()
    thinker.talks.clear()
    async with start_hearing_gateway(tmp_path, thinker, ears, credits=2) as home, open_realtime_call(home) as caller:
        other = asyncio.create_task(home.http.post("/v1/chat/completions", json=build_chat_body(OMNI, "hello")))
        await wait_until(lambda: thinker.begun == 1)
        await send_tones(caller, (0, 0.6), (0.3, 3.0))
        await wait_until(lambda: read_ahead()[1] > before[1])
        thinker.talks.set()
        assert (await asyncio.wait_for(other, PATIENCE)).status_code == 200
        await home.emptied()

    assert (read_ahead()[0] - before[0], thinker.prefilled) == (0, [])


async def test_images_that_would_be_fetched_again_are_not_read_ahead(tmp_path: Path):
    ears, thinker, before = Keeping(), PrefillThinker(), read_ahead()
    async with start_hearing_gateway(tmp_path, thinker, ears) as home, open_realtime_call(home) as caller:
        content = [{"type": "input_image", "image_url": "https://example.invalid/a.png"}]
        item = {"type": "message", "role": "user", "content": content}
        await caller.ask("conversation.item.create", "conversation.item.done", item=item)
        await send_tones(caller, (0, 0.6), (0.3, 3.0))
        await wait_until(lambda: read_ahead()[1] > before[1])
        assert thinker.prefilled == []
        await home.emptied()


async def test_a_session_that_ends_leaves_no_encoding_behind(tmp_path: Path):
    ears = Keeping(held=True)
    async with start_hearing_gateway(tmp_path, CountingThinker(), ears) as home:
        async with open_realtime_call(home) as caller:
            await send_tones(caller, (0, 0.6), (0.3, 3.0))
            await wait_until(lambda: ears.begun == 1)
        await wait_until(lambda: ears.stopped == 1)
        await home.emptied()


async def answer_of(home: ToyGateway, caller: RealtimeCaller) -> dict[str, Any]:
    await send_tones(caller, (0, 0.6), (0.3, 4.5), (0, 0.8))
    response: dict[str, Any] = (await caller.until("response.done"))[-1]["response"]
    await home.emptied()
    return response


@pytest.mark.parametrize("why", ["off", "keeps nothing"])
async def test_nothing_is_encoded_ahead_that_nobody_would_find_again(tmp_path: Path, why: str):
    ears = Ears() if why == "keeps nothing" else Keeping()
    async with (
        start_hearing_gateway(tmp_path, CountingThinker(), ears, realtime_early=why != "off") as home,
        open_realtime_call(home) as caller,
    ):
        response = await answer_of(home, caller)

    assert (response["status"], len(ears.heard)) == ("completed", 1)


async def test_nothing_is_encoded_ahead_where_the_encoder_has_others_work(tmp_path: Path):
    ears = Keeping(held=True)
    async with (
        start_hearing_gateway(tmp_path, CountingThinker(), ears, credits=2) as home,
        open_realtime_call(home) as caller,
    ):
        file = base64.b64encode(to_wav(make_pcm((0.3, 1.0)), PcmFormat())).decode()
        sound = {"type": "input_audio", "input_audio": {"data": file, "format": "wav"}}
        other = asyncio.create_task(home.http.post("/v1/chat/completions", json=build_chat_body(OMNI, [sound])))
        await wait_until(lambda: ears.begun == 1)
        await send_tones(caller, (0, 0.6), (0.3, 3.0))
        await caller.update(seed=1)  # the reply follows all earlier work
        assert ears.begun == 1
        ears.free.set()
        assert (await asyncio.wait_for(other, PATIENCE)).status_code == 200
        await home.emptied()
