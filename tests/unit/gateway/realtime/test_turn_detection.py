"""Turns that the gateway detects in audio."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnibus.metrics.collectors import REGISTRY
from omnibus_gateway.openai.realtime.session import MuLawFormat, PcmFormat, SemanticVad, ServerVad
from omnibus_gateway.realtime.turn_detection import SpeechEdge, TurnDetector
from tests.unit.gateway.house import TEXT, House, house
from tests.unit.gateway.realtime.test_responses_by_voice import Endless, listening
from tests.unit.gateway.realtime_house import Caller, calls, types

RATE = 24000
INTERRUPTED = {"model": TEXT, "reason": "turn_detected"}


def pcm(*parts: tuple[float, float], rate: int = RATE) -> bytes:
    """Return 16-bit samples of tones with little noise; ``parts`` are (loudness, seconds)."""
    random = np.random.default_rng(0)
    made = [np.sin(np.arange(int(seconds * rate)) * 440 * 2 * np.pi / rate) * loudness for loudness, seconds in parts]
    samples = np.concatenate(made)
    return ((samples + random.normal(0, 0.0003, len(samples))) * 32767).clip(-32768, 32767).astype("<i2").tobytes()


def edges(detector: TurnDetector, data: bytes, size: int = 1000) -> list[SpeechEdge]:
    return [
        edge
        for at in range(0, len(data), size)
        for edge in detector.find_edges(detector.classify_audio(data[at : at + size]))
    ]


def test_speech_begins_with_its_padding_and_ends_with_its_silence():
    sound = pcm((0, 1.0), (0.3, 0.8), (0, 0.3), (0.3, 0.5), (0, 1.0))
    begun, ended = edges(TurnDetector(ServerVad(), PcmFormat(), 0), sound)

    assert begun == SpeechEdge(True, 700)  # 1000 less the padding
    assert ended.begins is False
    assert 3080 <= ended.at_ms <= 3140  # 2600 and 500 of silence; the pause of 300 ms ends nothing
    assert edges(TurnDetector(ServerVad(), PcmFormat(), 0), sound, size=48_000) == [begun, ended]


def test_positions_count_all_audio_of_the_session():
    sound = pcm((0, 0.5), (0.3, 0.5), (0, 0.7))
    [begun, _] = edges(TurnDetector(ServerVad(prefix_padding_ms=0), PcmFormat(), 60_000), sound)

    assert begun.at_ms == 60_500


def test_a_click_and_the_noise_of_a_room_are_no_speech():
    assert edges(TurnDetector(ServerVad(), PcmFormat(), 0), pcm((0, 0.5), (0.5, 0.02), (0, 1.0))) == []
    random = np.random.default_rng(1)
    louder = np.concatenate([np.linspace(0.0005, 0.01, 10 * RATE), np.full(5 * RATE, 0.01)])
    noise = (random.normal(0, 1, len(louder)) * louder * 32767).astype("<i2").tobytes()
    assert edges(TurnDetector(ServerVad(threshold=1.0), PcmFormat(), 0), noise) == []


@pytest.mark.parametrize(("eagerness", "silence"), [("low", 1500), ("auto", 800), ("high", 400)])
def test_the_less_eager_the_longer_the_silence(eagerness: Any, silence: int):
    found = edges(TurnDetector(SemanticVad(eagerness=eagerness), PcmFormat(), 0), pcm((0.3, 1.0), (0, 2.0)))

    assert 1000 + silence <= found[1].at_ms <= 1060 + silence


def test_telephone_audio_is_heard_too():
    code = bytes([0xFF]) * 4000 + bytes([0x90, 0x10] * 2000) + bytes([0xFF]) * 8000  # silence, a loud hum, silence
    [begun, ended] = edges(TurnDetector(ServerVad(prefix_padding_ms=0), MuLawFormat(), 0), code, size=160)

    assert (begun.at_ms, ended.at_ms) == (500, 1500)


async def append(caller: Caller, *parts: tuple[float, float]) -> None:
    data = pcm(*parts)
    for at in range(0, len(data), 9600):
        await caller.send("input_audio_buffer.append", audio=base64.b64encode(data[at : at + 9600]).decode())


async def test_a_turn_is_committed_and_answered_without_a_word_of_the_client(caller: Caller):
    detection = caller.events[0]["session"]["audio"]["input"]["turn_detection"]
    await append(caller, (0, 0.6), (0.3, 0.5), (0, 0.7))
    events = await caller.until("response.done")
    started, stopped, committed = events[:3]
    shown = await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=started["item_id"])

    assert detection["type"] == "server_vad"
    assert types(events)[:6] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    assert started["item_id"] == stopped["item_id"] == committed["item_id"]
    assert started["audio_start_ms"] == 300
    sound = base64.b64decode(shown["item"]["content"][0]["audio"])
    assert len(sound) == (stopped["audio_end_ms"] - 300) * 48
    assert events[-1]["response"]["status"] == "completed"


async def test_speech_stops_the_response_under_way_before_its_next_step(tmp_path: Path):
    thinker, before = Endless(), REGISTRY.get_sample_value("omnibus_realtime_interruptions_total", INTERRUPTED) or 0
    async with house(tmp_path) as home:
        await listening(home, TEXT, thinker)
        async with calls(home, TEXT) as caller:
            await caller.update(audio={"input": {"turn_detection": {"type": "server_vad", "create_response": False}}})
            await caller.say("go on")
            await caller.send("response.create")
            await caller.until("response.output_text.delta")
            await append(caller, (0.3, 0.3))
            events = await caller.until("response.done")
            assert thinker.stopped.is_set()
            await append(caller, (0, 0.7))
            assert types(await caller.until("conversation.item.done"))[-1] == "conversation.item.done"
        await home.emptied()

    assert types(events)[0] == "input_audio_buffer.speech_started"
    assert REGISTRY.get_sample_value("omnibus_realtime_interruptions_total", INTERRUPTED) == before + 1
    details = events[-1]["response"]["status_details"]
    assert (events[-1]["response"]["status"], details["reason"]) == ("cancelled", "turn_detected")


async def test_a_client_that_does_not_want_to_be_interrupted_is_answered_afterwards(home: House):
    async with calls(home) as caller:
        how = {"type": "semantic_vad", "eagerness": "high", "interrupt_response": False}
        shown = await caller.update(audio={"input": {"turn_detection": how}})
        await caller.say("one two three")
        await caller.send("response.create")
        await append(caller, (0.3, 0.3), (0, 0.6))
        first = (await caller.until("response.done"))[-1]["response"]
        second = (await caller.until("response.done"))[-1]["response"]

    assert shown["audio"]["input"]["turn_detection"]["eagerness"] == "high"
    assert (first["status"], second["status"]) == ("completed", "completed")


async def test_without_detection_nothing_happens_until_the_client_says_so(caller: Caller):
    await caller.update(audio={"input": {"turn_detection": None}})
    await append(caller, (0.3, 0.5), (0, 1.0))
    events = [await caller.ask("input_audio_buffer.commit", "conversation.item.done")]
    assert types(events) == ["conversation.item.done"]
    assert not [each for each in caller.events if "speech" in each["type"]]
