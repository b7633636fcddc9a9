"""Answers started early, in silence that may end a turn: the same result, invisible until then, dropped cleanly."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from omnibus.metrics.collectors import REGISTRY
from omnibus.plan import PriceList
from omnibus_gateway.openai.realtime.session import PcmFormat, ServerVad
from omnibus_gateway.realtime import service
from omnibus_gateway.realtime.input_turns import TurnDetector
from tests.unit.gateway.house import OMNI, ToyGateway, build_chat_body, start_toy_gateway, write_chat_words
from tests.unit.gateway.realtime.test_turn_detection import collect_edges, make_pcm, send_tones
from tests.unit.gateway.realtime_doors import Doors
from tests.unit.gateway.realtime_house import RealtimeCaller, join_deltas, list_types, open_realtime_call, sound_of
from tests.unit.gateway.wires import PATIENCE
from tests.unit.sidecar.node import wait_until

#: Seconds of GPUs that a dropped answer took.
THOUGHT = 2.0


class CountingThinker:
    """The toy thinker, with counts of starts and stops; it waits while ``held``."""

    def __init__(self, *, held: bool = False) -> None:
        self.begun = self.stopped = 0
        self.free = asyncio.Event()
        if not held:
            self.free.set()

    async def __call__(self, job: Job) -> None:
        self.begun += 1
        current_clock().seconds += THOUGHT
        try:
            await self.free.wait()
            await write_chat_words(job)
        except BaseException:
            self.stopped += 1
            raise


class Ears:
    """An encoder that records its audio."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def __call__(self, job: Job) -> None:
        sound = (await job.value("media")).array
        self.heard.append(sound.tobytes())
        await job.put("embedding", {"tokens": 1}, np.full((1, 4), sound.sum() % 1000, np.float32))


@asynccontextmanager
async def start_hearing_gateway(
    directory: Path, thinker: Any, ears: Any, credits: int = 64, **changes: Any
) -> AsyncIterator[ToyGateway]:
    directory.mkdir(exist_ok=True)
    async with start_toy_gateway(directory, **changes) as home:
        home.serve(OMNI)
        assert home.router.plan is not None
        for option, spec in home.router.plan.models[OMNI].options.items():
            await home.executor(OMNI, option, *spec.components, credits=credits, thinker=thinker, audio=ears)
        yield home


def read_outcomes() -> dict[str, float]:
    """Return the count of early answers by outcome."""
    names = "used", "dropped", "refused"
    labels = {name: {"model": OMNI, "outcome": name} for name in names}
    return {name: REGISTRY.get_sample_value("omnibus_realtime_early_total", labels[name]) or 0.0 for name in names}


def diff_outcomes(before: dict[str, float]) -> dict[str, float]:
    return {name: count - before[name] for name, count in read_outcomes().items() if count != before[name]}


async def wait_for_outcomes(before: dict[str, float], **wanted: int) -> None:
    """Wait until early answers have the ``wanted`` outcomes."""
    await wait_until(lambda: diff_outcomes(before) == wanted)


async def begin_silence(caller: RealtimeCaller) -> None:
    """Send a turn, and silence that may end it."""
    await send_tones(caller, (0, 0.6), (0.3, 0.5), (0, 0.3))


def test_a_pause_is_known_before_it_ends_the_turn_and_at_the_same_moment():
    detector = TurnDetector(ServerVad(), PcmFormat(), 0)
    collect_edges(detector, make_pcm((0, 1.0), (0.3, 0.8), (0, 0.1)))
    early = detector.pause_ms
    collect_edges(detector, make_pcm((0, 0.16)))
    pause = detector.pause_ms
    collect_edges(detector, make_pcm((0, 0.1)))
    later = detector.pause_ms
    [edge] = collect_edges(detector, make_pcm((0, 0.3)))

    assert early is None
    assert pause == later == edge.cutoff_ms == edge.at_ms - 300
    assert detector.pause_ms is None

    hasty = TurnDetector(ServerVad(silence_duration_ms=100), PcmFormat(), 0)
    [_, edge] = collect_edges(hasty, make_pcm((0.3, 0.8), (0, 0.5)))
    assert edge.cutoff_ms == edge.at_ms  # no silence is left to begin in


async def hold_turn(directory: Path, early: bool) -> tuple[list[dict[str, Any]], list[bytes], list[str]]:
    """Return the events and the audio of a turn. Also returns the events before the silence ended."""
    thinker, ears = CountingThinker(), Ears()
    async with (
        start_hearing_gateway(directory, thinker, ears, realtime_early=early) as home,
        open_realtime_call(home) as caller,
    ):
        await caller.update(seed=5)
        await begin_silence(caller)
        start_events = await caller.until("input_audio_buffer.speech_started")
        if early:
            await wait_until(lambda: thinker.begun == 1)
            await wait_until(lambda: home.dispatcher.inflight_count == 1)
        event_types = list_types(caller.events[2:])  # after the session's own
        await send_tones(caller, (0, 0.4))
        events = [*start_events, *await caller.until("response.done")]
        assert thinker.begun == 1
        await home.emptied()
    return events, ears.heard, event_types


async def test_an_answer_that_was_begun_early_is_the_one_that_there_is_without(tmp_path: Path):
    before = read_outcomes()
    plain, audio_clips, _ = await hold_turn(tmp_path / "plain", early=False)
    assert diff_outcomes(before) == {}
    early, heard_early, event_types = await hold_turn(tmp_path / "early", early=True)

    assert diff_outcomes(before) == {"used": 1}
    assert audio_clips == heard_early
    text = "response.output_audio_transcript.delta"
    assert join_deltas(early, text) == join_deltas(plain, text)
    assert join_deltas(early, text).startswith("You said")
    assert sound_of(early) == sound_of(plain) != b""
    final_types = [name for name in list_types(early) if not name.endswith(".delta")]
    assert final_types == [name for name in list_types(plain) if not name.endswith(".delta")]
    assert event_types == ["session.updated", "input_audio_buffer.speech_started"]
    assert early[-1]["response"]["usage"] == plain[-1]["response"]["usage"]
    assert len(audio_clips[0]) - 44 < 48 * 1100  # the end of the silence is not encoded; 300 + 500 + 200 ms are


async def test_an_answer_is_dropped_when_its_user_goes_on_speaking(tmp_path: Path):
    thinker, before = CountingThinker(held=True), read_outcomes()
    async with start_hearing_gateway(tmp_path, thinker, Ears()) as home, open_realtime_call(home) as caller:
        assert home.router.plan is not None
        home.router.plan = msgspec.structs.replace(home.router.plan, prices=PriceList("EUR", {"cpu": 3.6}))
        await begin_silence(caller)
        await wait_until(lambda: thinker.begun == 1)
        [invocation_id] = [each.id for each in home.dispatcher._running.values()]
        await send_tones(caller, (0.3, 0.2))
        await wait_until(lambda: thinker.stopped == 1)
        await wait_for_outcomes(before, dropped=1)
        await wait_until(lambda: home.dispatcher.inflight_count == 0)
        thinker.free.set()
        await send_tones(caller, (0, 0.3))
        await wait_until(lambda: thinker.begun == 2)
        await send_tones(caller, (0, 0.4))
        events = await caller.until("response.done")
        record = await home.ended(invocation_id)
        await home.emptied()

    assert diff_outcomes(before) == {"dropped": 1, "used": 1}
    assert (
        list_types(events).count("input_audio_buffer.speech_started")
        == list_types(events).count("response.created")
        == 1
    )
    assert events[-1]["response"]["status"] == "completed"
    assert record.status == "cancelled"
    assert record.usage is not None
    assert record.usage.money is msgspec.UNSET


async def test_an_answer_counts_against_the_limits_of_its_key_once_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    thinker, counts = CountingThinker(), {"now": 0, "all": 0}

    @contextmanager
    def hold_limit() -> Iterator[None]:
        counts["now"] += 1
        counts["all"] += 1
        yield
        counts["now"] -= 1

    monkeypatch.setattr(service, "response_limit", lambda _: hold_limit)
    async with start_hearing_gateway(tmp_path, thinker, Ears()) as home, open_realtime_call(home) as caller:
        await begin_silence(caller)
        await wait_until(lambda: thinker.begun == 1)
        assert counts == {"now": 0, "all": 0}
        await send_tones(caller, (0.3, 0.2), (0, 0.3))
        await wait_until(lambda: thinker.begun == 2)
        await send_tones(caller, (0, 0.4))
        await caller.until("response.done")
        await home.emptied()

    assert counts == {"now": 0, "all": 1}


async def test_what_the_client_changes_meanwhile_is_answered(tmp_path: Path):
    thinker, before = CountingThinker(), read_outcomes()
    async with start_hearing_gateway(tmp_path, thinker, Ears()) as home, open_realtime_call(home) as caller:
        await begin_silence(caller)
        await wait_until(lambda: thinker.begun == 1)
        await caller.say("mark this")
        await wait_for_outcomes(before, dropped=1)
        await send_tones(caller, (0, 0.4))
        await caller.until("response.done")
        await home.emptied()

    assert diff_outcomes(before) == {"dropped": 1}  # one pause has only one early answer
    assert thinker.begun == 2


async def test_a_client_that_leaves_ends_what_was_begun_early(tmp_path: Path):
    thinker, before = CountingThinker(held=True), read_outcomes()
    async with start_hearing_gateway(tmp_path, thinker, Ears()) as home:
        async with open_realtime_call(home) as caller:
            await begin_silence(caller)
            await wait_until(lambda: thinker.begun == 1)
        await wait_until(lambda: thinker.stopped == 1)
        await wait_for_outcomes(before, dropped=1)
        await home.emptied()


async def test_nothing_is_begun_early_where_executors_have_work(tmp_path: Path):
    thinker, before = CountingThinker(held=True), read_outcomes()
    async with start_hearing_gateway(tmp_path, thinker, Ears(), credits=2) as home, open_realtime_call(home) as caller:
        other = asyncio.create_task(home.http.post("/v1/chat/completions", json=build_chat_body(OMNI, "hello")))
        await wait_until(lambda: thinker.begun == 1)
        await begin_silence(caller)
        await wait_for_outcomes(before, refused=1)
        thinker.free.set()
        assert (await asyncio.wait_for(other, PATIENCE)).status_code == 200
        await send_tones(caller, (0, 0.4))
        events = await caller.until("response.done")
        await home.emptied()

    assert diff_outcomes(before) == {"refused": 1}
    assert (events[-1]["response"]["status"], thinker.begun) == ("completed", 2)


@pytest.mark.parametrize(
    "change",
    [{"create_response": False}, {"silence_duration_ms": 200}],
    ids=["no response", "no silence left"],
)
async def test_nothing_is_begun_early_that_would_not_be_answered_later(tmp_path: Path, change: dict[str, Any]):
    thinker, before = CountingThinker(), read_outcomes()
    async with start_hearing_gateway(tmp_path, thinker, Ears()) as home, open_realtime_call(home) as caller:
        await caller.update(audio={"input": {"turn_detection": {"type": "server_vad", **change}}})
        await send_tones(caller, (0, 0.6), (0.3, 0.5), (0, 0.16))
        await send_tones(caller, (0, 0.4))
        await caller.until("conversation.item.done")
        if "create_response" not in change:
            await caller.until("response.done")
        await home.emptied()

    assert diff_outcomes(before) == {}


async def test_an_answer_that_was_begun_early_is_not_in_the_log_of_its_session(doors: Doors):
    thinker, before = CountingThinker(), read_outcomes()
    await doors.serve(OMNI, thinker=thinker)
    async with doors.opened() as caller:
        await begin_silence(caller)
        await caller.until("input_audio_buffer.speech_started")
        await wait_until(lambda: thinker.begun == 1)
        caller.socket.transport.abort()
    await wait_for_outcomes(before, dropped=1)

    async with doors.resumed(caller) as rest:
        resume_event = (await rest.until("session.resumed"))[-1]
        sound = make_pcm((0, 0.6), (0.3, 0.5), (0, 0.3))
        again = base64.b64encode(sound[resume_event["input_audio_bytes"] :]).decode()
        await rest.send("input_audio_buffer.append", audio=again)
        await send_tones(rest, (0, 0.8))
        events = await rest.until("response.done")
        item = next(each["item_id"] for each in events if each["type"] == "input_audio_buffer.committed")
        item_event = await rest.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=item)

    assert resume_event["active_responses"] == []
    assert list_types(events).count("response.created") == 1
    assert events[-1]["response"]["status"] == "completed"
    assert item_event["item"]["content"][0]["audio"]
    await doors.first.emptied()


async def test_an_answer_that_was_begun_early_goes_on_at_another_gateway(doors: Doors):
    thinker, ears, before = CountingThinker(held=True), Ears(), read_outcomes()
    await doors.serve(OMNI, thinker=thinker, audio=ears)
    async with doors.opened() as caller:
        await caller.update(seed=3)
        await begin_silence(caller)
        await wait_until(lambda: thinker.begun == 1)
        await send_tones(caller, (0, 0.4))
        await caller.until("response.created")
        caller.socket.transport.abort()
    async with doors.resumed(caller) as rest:
        await wait_until(lambda: thinker.begun == 2)
        thinker.free.set()
        events = await rest.until("response.done")

    assert diff_outcomes(before) == {"used": 1}
    assert len(set(ears.heard)) == 1  # both heard the turn up to the same moment
    assert events[-1]["response"]["status"] == "completed"
    await doors.first.emptied()
