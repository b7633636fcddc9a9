"""A text-to-speech model on a running system: the samples of the library, whole and in pieces, in every format."""

import base64
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from omnibus_models import tiny
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.vl.test_records import run_command
from tests.unit.encoding.test_audio import decode_audio
from tests.unit.llm.runners.speaking import SENTENCES, TEXT, speak_by_vits
from tests.unit.models import test_text_to_speech as whole
from tests.unit.models.speech_checkpoints import VOICES, write_checkpoint

pytestmark = pytest.mark.e2e

MODEL, RATE = "text-to-speech-tiny", 16_000
WISH: dict[str, Any] = {
    "model": MODEL,
    "input": TEXT,
    "voice": "1",
    "response_format": "pcm",
    "extra_body": {"seed": 5},
}
#: Samples have 16 bits.
CLOSE = 1e-4 + 1 / 32768


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("text_to_speech", tmp_path_factory.mktemp("checkpoints") / "text_to_speech")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A model that streams codes, and one whose vocoder is another checkpoint."""
    paths = {name: tmp_path_factory.mktemp(name) for name in ("csm", "speecht5")}
    for name, path in paths.items():
        write_checkpoint(name, path)
    return paths


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, others: Mapping[str, Path]) -> Iterator[System]:
    models = {MODEL: declare_model("text_to_speech", checkpoint)}
    for name, path in others.items():
        models[name] = declare_model("text_to_speech", path)
    with start_system(tmp_path_factory.mktemp("speaking"), models) as new_system:
        yield new_system


def read_samples(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768


@pytest.mark.numeric
@pytest.mark.cell("transformers", "text_to_speech", "waveform", shape="T>V")
@pytest.mark.cell("transformers", "text_to_speech", "waveform", shape="TV")
@pytest.mark.parametrize("path", ["T>V", "TV"])
async def test_samples_are_those_of_the_library(system: System, checkpoint: Path, path: str):
    await system.becomes_ready()
    async with system.client() as client:
        answer = await client.audio.speech.create(**WISH, extra_headers={"x-omnibus-path": path})
        fast = await client.audio.speech.create(**WISH, speed=2.0, extra_headers={"x-omnibus-path": path})

    for response, speed in ((answer, 1.0), (fast, 2.0)):
        expected = speak_by_vits(checkpoint, SENTENCES, 1, 5, speed)
        samples = read_samples(response.content)
        assert len(samples) == len(expected)
        assert float(np.abs(samples - expected).max()) < CLOSE
    assert float(np.abs(expected).max()) > 0.1
    await system.ledger_is_empty()


@pytest.mark.numeric
@pytest.mark.parametrize("path", ["T>V", "TV"])
@pytest.mark.parametrize(("model", "voice", "pieces"), [("csm", "1", 5), ("speecht5", VOICES[1], 1)])
async def test_other_models_have_the_samples_of_the_library(
    system: System, others: Mapping[str, Path], model: str, voice: str, pieces: int, path: str
):
    await system.becomes_ready()
    wish = {**WISH, "model": model, "input": whole.TEXT, "voice": voice, "extra_body": {"seed": whole.SEED}}
    received = []
    async with system.client() as client:
        create = client.audio.speech.with_streaming_response.create
        async with create(**wish, stream_format="sse", extra_headers={"x-omnibus-path": path}) as response:
            async for line in response.iter_lines():
                event = json.loads(line.removeprefix("data: ")) if line else {}
                received += [base64.b64decode(event["audio"])] if event.get("type") == "speech.audio.delta" else []

    expected = whole.speak_whole(model, others[model]).detach().numpy()
    samples = read_samples(b"".join(received))
    assert len(received) >= pieces
    assert len(samples) == len(expected)
    assert float(np.abs(samples - expected).max()) < CLOSE
    await system.ledger_is_empty()


async def test_a_stream_has_a_piece_for_each_sentence_and_is_replayed(system: System):
    await system.becomes_ready()
    async with system.client() as client:
        pieces = []
        async with client.audio.speech.with_streaming_response.create(**WISH, stream_format="sse") as response:
            id = response.headers["x-request-id"]
            async for line in response.iter_lines():
                pieces += [line] if "speech.audio.delta" in line else []
                done = line if "speech.audio.done" in line else ""
                usage = done or None
                if usage:
                    assert '"input_tokens":' in usage
    code, replay = await run_command(system, "replay", id)

    assert len(pieces) == len(SENTENCES)
    assert (code, "identical to the recorded answer" in replay) == (0, True), replay
    await system.ledger_is_empty()


@pytest.mark.numeric
@pytest.mark.parametrize("option", ["T", "V"])
async def test_speech_goes_on_where_its_executor_dies(system: System, option: str):
    await system.becomes_ready()
    wish = {**WISH, "input": "The small cat sat on the mat. " * 130}
    async with system.client() as client:
        whole_answer = await client.audio.speech.create(**wish, extra_headers={"x-omnibus-path": "TV"})
        pids, received = await system.whole(), b""
        create = client.audio.speech.with_streaming_response.create
        async with create(**wish, extra_headers={"x-omnibus-path": "T>V"}) as response:
            async for data in response.iter_bytes():
                if not received:
                    os.kill(pids[f"{MODEL}-{option}-0"], signal.SIGKILL)
                received += data

    assert len(received) == len(whole_answer.content)
    assert float(np.abs(read_samples(received) - read_samples(whole_answer.content)).max()) < CLOSE
    await system.ledger_is_empty()


@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "opus"])
async def test_every_format_has_the_whole_speech(system: System, checkpoint: Path, format: Any):
    await system.becomes_ready()
    async with system.client() as client:
        answer = await client.audio.speech.create(**{**WISH, "response_format": format, "voice": "ash"})

    samples, rate = decode_audio(answer.content)
    seconds = len(speak_by_vits(checkpoint, SENTENCES, 1, 5)) / RATE
    assert len(samples) / rate == pytest.approx(seconds, abs=0.1)
    await system.ledger_is_empty()


@pytest.mark.parametrize(
    ("wish", "param", "words"),
    [
        ({"voice": "nobody"}, "voice", "use one of 0, 1, 2"),
        ({"instructions": "Whisper."}, "instructions", "omit"),
        ({"input": "123 ..."}, "input", "any character"),
        ({"extra_body": {"temperature": 0.5}}, "temperature", "omit"),
    ],
)
async def test_what_the_model_cannot_do_is_refused_by_name(system: System, wish: Any, param: str, words: str):
    await system.becomes_ready()
    async with system.client() as client:
        with pytest.raises(openai.BadRequestError, match=words) as raised:
            await client.audio.speech.create(**{**WISH, **wish})

    assert raised.value.param == param
    await system.ledger_is_empty()


async def test_the_model_says_what_it_does(system: System):
    await system.becomes_ready()
    async with system.client() as client:
        model: Any = await client.models.retrieve(MODEL)
        with pytest.raises(openai.BadRequestError, match="not a chat model"):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])

    assert (model.input_modalities, model.output_modalities) == (["text"], ["audio"])
