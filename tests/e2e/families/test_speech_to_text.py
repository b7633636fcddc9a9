"""A recognizer on a running system: the text of the library, in every format of the routes, whole and streamed."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus_models import tiny
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.vl.test_records import run_command
from tests.unit.llm.runners.recognition import make_speech, transcribe_by_library, write_wav

pytestmark = pytest.mark.e2e

MODEL = "speech-to-text-tiny"
LONG = make_speech(7.3)
WISH: dict[str, Any] = {"model": MODEL, "file": ("a.wav", write_wav(LONG))}
_SRT_TIMES = re.compile(r"(\d\d):(\d\d):(\d\d),(\d{3}) --> (\d\d):(\d\d):(\d\d),(\d{3})")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("speech_to_text", tmp_path_factory.mktemp("checkpoints") / "speech_to_text")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    models = {MODEL: declare_model("speech_to_text", checkpoint)}
    with start_system(tmp_path_factory.mktemp("recognition"), models) as new_system:
        yield new_system


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> str:
    return "".join(window.text for window in transcribe_by_library(checkpoint, LONG, language="en")).lstrip()


@pytest.mark.numeric
@pytest.mark.cell("transformers", "speech_to_text", "tokens", shape="E>L")
@pytest.mark.cell("transformers", "speech_to_text", "tokens", shape="EL")
@pytest.mark.parametrize("path", ["E>L", "EL"])
async def test_a_long_recording_has_the_text_of_the_library(system: System, expected: str, path: str):
    await system.becomes_ready()
    async with system.client() as client:
        answer = await client.audio.transcriptions.create(**WISH, language="en", extra_headers={"x-omnibus-path": path})

    assert answer.text == expected
    assert answer.usage.type == "tokens"
    await system.ledger_is_empty()


@pytest.mark.numeric
async def test_a_stream_and_its_replay_have_the_same_text(system: System, expected: str):
    await system.becomes_ready()
    async with system.client() as client:
        raw = await client.audio.transcriptions.with_raw_response.create(**WISH, language="en", stream=True)
        events = [event async for event in raw.parse()]
    code, replay = await run_command(system, "replay", raw.headers["x-request-id"])

    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == events[-1].text == expected
    assert events[-1].type == "transcript.text.done"
    assert events[-1].usage.input_token_details.audio_tokens == 500
    assert (code, "identical to the recorded answer" in replay) == (0, True), replay
    await system.ledger_is_empty()


@pytest.mark.numeric
async def test_segments_have_the_same_times_in_all_formats(system: System, checkpoint: Path):
    await system.becomes_ready()
    async with system.client() as client:
        verbose: Any = await client.audio.transcriptions.create(
            **WISH, response_format="verbose_json", timestamp_granularities=["segment", "word"]
        )
        srt: Any = await client.audio.transcriptions.create(**WISH, response_format="srt")
        vtt: Any = await client.audio.transcriptions.create(**WISH, response_format="vtt")
        text: Any = await client.audio.transcriptions.create(**WISH, response_format="text")

    windows = transcribe_by_library(checkpoint, LONG, timestamps=True)
    assert verbose.text == "".join(window.text for window in windows).lstrip()
    assert (verbose.language, verbose.duration) == ("german", pytest.approx(7.3))
    assert [segment.id for segment in verbose.segments] == [*range(len(verbose.segments))]
    assert len(verbose.segments) > len(windows)
    assert verbose.segments[-1].end <= 7.3
    assert " ".join(word.word for word in verbose.words) == verbose.text.strip()
    times = [tuple(map(float, match)) for match in _SRT_TIMES.findall(srt)]
    seconds = [(h * 3600 + m * 60 + s + ms / 1000, h2 * 3600 + m2 * 60 + s2 + ms2 / 1000)
               for h, m, s, ms, h2, m2, s2, ms2 in times]  # fmt: skip
    assert seconds == [(pytest.approx(each.start), pytest.approx(each.end)) for each in verbose.segments]
    assert vtt.startswith("WEBVTT\n\n")
    assert vtt.count(" --> ") == len(seconds)
    assert text
    await system.ledger_is_empty()


@pytest.mark.numeric
async def test_a_stream_goes_on_where_its_executor_dies(system: System):
    await system.becomes_ready()
    wish = {**WISH, "file": ("a.wav", write_wav(make_speech(80))), "language": "fr", "response_format": "json"}
    async with system.client() as client:
        whole = await client.audio.transcriptions.create(**wish, extra_headers={"x-omnibus-path": "EL"})
        stream = await client.audio.transcriptions.create(**wish, stream=True, extra_headers={"x-omnibus-path": "E>L"})
        pids = await system.whole()
        events = []
        async for event in stream:
            events.append(event)
            if len(events) == 5:
                os.kill(pids[f"{MODEL}-L-0"], signal.SIGKILL)

    assert len(events) > 20
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == whole.text
    await system.ledger_is_empty()


async def test_a_translation_has_the_shape_of_the_client(system: System, checkpoint: Path):
    await system.becomes_ready()
    async with system.client() as client:
        answer = await client.audio.translations.create(**WISH)
        verbose: Any = await client.audio.translations.create(**WISH, response_format="verbose_json")

    windows = transcribe_by_library(checkpoint, LONG, task="translate")
    assert answer.text == "".join(window.text for window in windows).lstrip()
    assert answer.model_extra == {}
    assert (verbose.language, len(verbose.segments) > 0) == ("english", True)
    await system.ledger_is_empty()
