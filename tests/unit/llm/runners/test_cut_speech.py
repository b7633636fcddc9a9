"""The speech of an answer that is cut says its transcript: all of it, and nothing else.

Rule: ``message.audio.transcript`` is the transcript of the audio (OpenAI, Chat Completions, ``audio.transcript``).
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from omnibus_models import world
from omnibus_models.world import tone_synth
from services.llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from services.llm.runners.talker import TalkRunner, TalkSettings
from services.llm.runners.thinker import ThinkRunner
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.halves import Halves, core

NAME, VOICE = "qwen2_5_omni", "Chelsie"
SPEECH = ("prompt", "layout", "rows")
CHECKPOINT = world.checkpoint_directory(NAME)
SENTENCE = "two red circles on blue"


@pytest.fixture
async def thinking() -> AsyncIterator[ThinkRunner]:
    made = ThinkRunner(core(CHECKPOINT, NAME, slots=2))
    await made.load()
    yield made
    await made.close()


@pytest.fixture
async def talking() -> AsyncIterator[TalkRunner]:
    made = TalkRunner("talker", NAME, CHECKPOINT, "cpu", "float32", TalkSettings(slots=3, context=512))
    await made.load()
    yield made
    await made.close()


@pytest.fixture(params=["apart", "together"])
async def halves(request: pytest.FixtureRequest) -> AsyncIterator[Halves]:
    near = request.param == "together"
    first = core(CHECKPOINT, NAME)
    made = Halves(PrefillRunner(first), DecodeRunner(first if near else core(CHECKPOINT, NAME)), near)
    await made.prefill.load()
    await made.decode.load()
    yield made
    await made.prefill.close()
    await made.decode.close()


def build_job(**params: Any) -> MemoryJob:
    messages = [{"role": "user", "content": f"Say {SENTENCE}"}]
    return MemoryJob({"messages": messages, "voice": VOICE, "params": params}, wants=("text", *SPEECH))


async def speak(talking: TalkRunner, thought: MemoryJob, decoded: MemoryJob | None = None) -> list[int]:
    given = {name: thought.outputs[name] for name in ("prompt", "layout")}
    rows = (decoded or thought).outputs["rows"]
    told = MemoryJob({**given, "rows": rows, "voice": VOICE, "params": {"max_codes": 200}})
    return (await run(talking, told)).codes


@pytest.mark.parametrize("limit", [*range(1, 7), None])
async def test_each_word_before_max_tokens_is_spoken(
    thinking: ThinkRunner, talking: TalkRunner, limit: int | None
) -> None:
    words = SENTENCE.split()[:limit]

    thought = await run(thinking, build_job(max_tokens=limit))

    assert (thought.text.split(), thought.end("text")["usage"]["completion_tokens"]) == (words, min(limit or 6, 6))
    assert thought.end("rows") == {"finish": "length" if limit and limit < 6 else "stop"}
    assert await speak(talking, thought) == tone_synth.speech_codes(" ".join(words))
