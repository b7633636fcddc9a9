"""Turns that the gateway detects in audio."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnibus.metrics.collectors import REGISTRY
from omnibus_gateway.openai.realtime.session import MuLawFormat, PcmFormat, SemanticVad, ServerVad
from omnibus_gateway.realtime.input_turns import SpeechEdge, TurnDetector
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime.test_responses_by_voice import Endless, serve_thinker
from tests.unit.gateway.realtime_house import RealtimeCaller, list_types, open_realtime_call

RATE = 24000
INTERRUPTED = {"model": TEXT, "reason": "turn_detected"}


def make_pcm(*parts: tuple[float, float], rate: int = RATE) -> bytes:
    """Return 16-bit samples of tones with little noise; ``parts`` are (loudness, seconds)."""
    random = np.random.default_rng(0)
    tones = [np.sin(np.arange(int(seconds * rate)) * 440 * 2 * np.pi / rate) * loudness for loudness, seconds in parts]
    samples = np.concatenate(tones)
    return ((samples + random.normal(0, 0.0003, len(samples))) * 32767).clip(-32768, 32767).astype("<i2").tobytes()


def collect_edges(detector: TurnDetector, data: bytes, size: int = 1000) -> list[SpeechEdge]:
    return [
        edge
        for at in range(0, len(data), size)
        for edge in detector.find_edges(detector.classify_audio(data[at : at + size]))
    ]


def test_speech_begins_with_its_padding_and_ends_with_its_silence():
    sound = make_pcm((0, 1.0), (0.3, 0.8), (0, 0.3), (0.3, 0.5), (0, 1.0))
    start_edge, end_edge = collect_edges(TurnDetector(ServerVad(), PcmFormat(), 0), sound)

    assert start_edge == SpeechEdge(True, 700)  # 1000 less the padding
    assert end_edge.begins is False
    assert 3080 <= end_edge.at_ms <= 3140  # 2600 and 500 of silence; the pause of 300 ms ends nothing
    assert collect_edges(TurnDetector(ServerVad(), PcmFormat(), 0), sound, size=48_000) == [start_edge, end_edge]


def test_positions_count_all_audio_of_the_session():
    sound = make_pcm((0, 0.5), (0.3, 0.5), (0, 0.7))
    [start_edge, _] = collect_edges(TurnDetector(ServerVad(prefix_padding_ms=0), PcmFormat(), 60_000), sound)

    assert start_edge.at_ms == 60_500


def test_a_click_and_the_noise_of_a_room_are_no_speech():
    assert collect_edges(TurnDetector(ServerVad(), PcmFormat(), 0), make_pcm((0, 0.5), (0.5, 0.02), (0, 1.0))) == []
    random = np.random.default_rng(1)
    louder = np.concatenate([np.linspace(0.0005, 0.01, 10 * RATE), np.full(5 * RATE, 0.01)])
    noise = (random.normal(0, 1, len(louder)) * louder * 32767).astype("<i2").tobytes()
    assert collect_edges(TurnDetector(ServerVad(threshold=1.0), PcmFormat(), 0), noise) == []


@pytest.mark.parametrize(("eagerness", "silence"), [("low", 1500), ("auto", 800), ("high", 400)])
def test_the_less_eager_the_longer_the_silence(eagerness: Any, silence: int):
    speech_edges = collect_edges(
        TurnDetector(SemanticVad(eagerness=eagerness), PcmFormat(), 0), make_pcm((0.3, 1.0), (0, 2.0))
    )

    assert 1000 + silence <= speech_edges[1].at_ms <= 1060 + silence


def test_telephone_audio_is_heard_too():
    code = bytes([0xFF]) * 4000 + bytes([0x90, 0x10] * 2000) + bytes([0xFF]) * 8000  # silence, a loud hum, silence
    [start_edge, end_edge] = collect_edges(
        TurnDetector(ServerVad(prefix_padding_ms=0), MuLawFormat(), 0), code, size=160
    )

    assert (start_edge.at_ms, end_edge.at_ms) == (500, 1500)


async def send_tones(caller: RealtimeCaller, *parts: tuple[float, float]) -> None:
    data = make_pcm(*parts)
    for at in range(0, len(data), 9600):
        await caller.send("input_audio_buffer.append", audio=base64.b64encode(data[at : at + 9600]).decode())


async def test_a_turn_is_committed_and_answered_without_a_word_of_the_client(caller: RealtimeCaller):
    detection = caller.events[0]["session"]["audio"]["input"]["turn_detection"]
    await send_tones(caller, (0, 0.6), (0.3, 0.5), (0, 0.7))
    events = await caller.until("response.done")
    start_event, stop_event, commit_event = events[:3]
    item_event = await caller.ask(
        "conversation.item.retrieve", "conversation.item.retrieved", item_id=start_event["item_id"]
    )

    assert detection["type"] == "server_vad"
    assert list_types(events)[:6] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    assert start_event["item_id"] == stop_event["item_id"] == commit_event["item_id"]
    assert start_event["audio_start_ms"] == 300
    sound = base64.b64decode(item_event["item"]["content"][0]["audio"])
    assert len(sound) == (stop_event["audio_end_ms"] - 300) * 48
    assert events[-1]["response"]["status"] == "completed"


async def test_speech_stops_the_response_under_way_before_its_next_step(tmp_path: Path):
    thinker, before = Endless(), REGISTRY.get_sample_value("omnibus_realtime_interruptions_total", INTERRUPTED) or 0
    async with start_toy_gateway(tmp_path) as home:
        await serve_thinker(home, TEXT, thinker)
        async with open_realtime_call(home, TEXT) as caller:
            await caller.update(audio={"input": {"turn_detection": {"type": "server_vad", "create_response": False}}})
            await caller.say("go on")
            await caller.send("response.create")
            await caller.until("response.output_text.delta")
            await send_tones(caller, (0.3, 0.3))
            events = await caller.until("response.done")
            assert thinker.stopped.is_set()
            await send_tones(caller, (0, 0.7))
            assert list_types(await caller.until("conversation.item.done"))[-1] == "conversation.item.done"
        await home.emptied()

    assert list_types(events)[0] == "input_audio_buffer.speech_started"
    assert REGISTRY.get_sample_value("omnibus_realtime_interruptions_total", INTERRUPTED) == before + 1
    details = events[-1]["response"]["status_details"]
    assert (events[-1]["response"]["status"], details["reason"]) == ("cancelled", "turn_detected")


async def test_a_client_that_does_not_want_to_be_interrupted_is_answered_afterwards(home: ToyGateway):
    async with open_realtime_call(home) as caller:
        how = {"type": "semantic_vad", "eagerness": "high", "interrupt_response": False}
        session = await caller.update(audio={"input": {"turn_detection": how}})
        await caller.say("one two three")
        await caller.send("response.create")
        await send_tones(caller, (0.3, 0.3), (0, 0.6))
        first = (await caller.until("response.done"))[-1]["response"]
        second = (await caller.until("response.done"))[-1]["response"]

    assert session["audio"]["input"]["turn_detection"]["eagerness"] == "high"
    assert (first["status"], second["status"]) == ("completed", "completed")


async def test_without_detection_nothing_happens_until_the_client_says_so(caller: RealtimeCaller):
    await caller.update(audio={"input": {"turn_detection": None}})
    await send_tones(caller, (0.3, 0.5), (0, 1.0))
    events = [await caller.ask("input_audio_buffer.commit", "conversation.item.done")]
    assert list_types(events) == ["conversation.item.done"]
    assert not [each for each in caller.events if "speech" in each["type"]]
