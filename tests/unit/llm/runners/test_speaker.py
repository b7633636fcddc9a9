"""The engine of text-to-speech models: sentences, streams of codes, seeds, and requests that end early."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Runner
from omnibus_models import tiny
from tests.unit.encoder.test_sentence_runner import run_component
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.speaking import SENTENCES, TEXT, speak_by_vits
from tests.unit.models.speech_checkpoints import write_checkpoint
from tests.unit.models.test_text_to_speech import speak_whole


class SpeechParts(NamedTuple):
    """The runners of both components."""

    speaker: Runner
    vocoder: Runner

    async def speak(self, text: Any, voice: str = "", seed: int = 5, **params: Any) -> tuple[MemoryJob, MemoryJob]:
        """Return the jobs of both: the vocoder reads while the speaker writes."""
        spoken = MemoryJob({"text": text, "voice": voice, "params": params}, wants=("calls",), seed=seed)
        heard = MemoryJob({"calls": spoken.outputs["calls"]}, wants=("audio",))
        await asyncio.gather(finish_job(self.speaker, spoken), finish_job(self.vocoder, heard))
        return spoken, heard


@pytest.fixture(scope="module")
def vits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("text_to_speech", tmp_path_factory.mktemp("checkpoint") / "vits")


async def open_parts(stack: AsyncExitStack, checkpoint: Path) -> SpeechParts:
    names = ("speaker", "vocoder")
    return SpeechParts(
        *[await stack.enter_async_context(run_component(each, "text_to_speech", checkpoint)) for each in names]
    )


@pytest.fixture
async def parts(vits: Path) -> AsyncIterator[SpeechParts]:
    async with AsyncExitStack() as stack:
        yield await open_parts(stack, vits)


def read_samples(job: MemoryJob) -> np.ndarray:
    return np.concatenate([item.array for item in job.outputs["audio"].items if item.array is not None])


@pytest.mark.numeric
async def test_each_sentence_has_the_samples_of_the_library(parts: SpeechParts, vits: Path):
    (spoken, heard), (_, again), (_, other) = await asyncio.gather(
        parts.speak(TEXT, "2", speed=2.0), parts.speak(TEXT, "2", seed=9, speed=2.0), parts.speak(TEXT, "2", seed=5)
    )

    expected = speak_by_vits(vits, SENTENCES, 2, 5, 2.0)
    assert np.abs(read_samples(heard) - expected).max() < 1e-4
    pieces = [item for item in heard.outputs["audio"].items if item.array is not None]
    assert [item.data["speed"] for item in pieces] == [2.0] * len(SENTENCES)
    assert {item.data["rate"] for item in pieces} == {16_000}
    assert not np.array_equal(read_samples(again)[:1000], expected[:1000])
    assert len(read_samples(other)) > len(expected)
    assert heard.end("audio")["samples"] == len(expected)
    assert heard.end("audio")["usage"]["prompt_tokens"] > len("".join(SENTENCES))
    assert spoken.end("calls")["usage"] == heard.end("audio")["usage"]


async def test_bad_requests_name_what_is_wrong(parts: SpeechParts):
    for wish, param in (
        ({"text": TEXT, "voice": "7"}, "voice"),
        ({"text": TEXT, "speed": 9.0}, "speed"),
        ({"text": TEXT, "max_tokens": 5}, "max_tokens"),
        ({"text": TEXT, "loudness": 5}, "loudness"),
        ({"text": 7}, "text"),
    ):
        named = {name: value for name, value in wish.items() if name not in ("text", "voice")}
        job = MemoryJob({"text": wish["text"], "voice": wish.get("voice", ""), "params": named}, wants=("calls",))
        with pytest.raises(BadRequest) as raised:
            await finish_job(parts.speaker, job)
        assert raised.value.param == param
    with pytest.raises(BadRequest, match="same model"):
        await finish_job(parts.vocoder, MemoryJob({"calls": _feed(Item({}, np.zeros(4, np.uint8)))}, wants=("audio",)))


def _feed(item: Item) -> Any:
    job = MemoryJob({})
    job.outputs["calls"].feed(item, last=True)
    return job.outputs["calls"]


@pytest.mark.numeric
async def test_codes_are_heard_while_they_are_generated(tmp_path: Path):
    from tests.unit.models import test_text_to_speech as whole

    write_checkpoint("csm", tmp_path)
    expected = speak_whole("csm", tmp_path).numpy()
    async with AsyncExitStack() as stack:
        parts = await open_parts(stack, tmp_path)
        spoken, heard = await parts.speak(whole.TEXT, "1", seed=whole.SEED)
        _, greedy = await parts.speak(whole.TEXT, "1", temperature=0.0, max_tokens=3)
        task = asyncio.create_task(parts.speak(whole.TEXT, "1", max_tokens=500))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        _, after = await asyncio.wait_for(parts.speak(whole.TEXT, "1", temperature=0.0, max_tokens=3), 5.0)

    sizes = [len(item.array) for item in heard.outputs["audio"].items if item.array is not None]
    assert len(sizes) > 4
    assert np.abs(read_samples(heard) - expected).max() < 1e-4
    assert len(spoken.outputs["calls"].items) > len(sizes)
    assert len(read_samples(greedy)) == 3 * 1920
    assert np.array_equal(read_samples(after), read_samples(greedy))
