"""The speech of a cut answer matches its transcript exactly.

Rule: ``message.audio.transcript`` is the transcript of the audio (OpenAI, Chat Completions, ``audio.transcript``).
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.talker import TalkRunner, TalkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import world
from omnibus_models.world import tone_synth
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core

NAME, VOICE = "qwen2_5_omni", "Chelsie"
SPEECH = ("prompt", "layout", "rows")
CHECKPOINT = world.checkpoint_directory(NAME)
SENTENCE = "two red circles on blue"


@pytest.fixture
async def think_runner() -> AsyncIterator[ThinkRunner]:
    runner = ThinkRunner(make_core(CHECKPOINT, NAME, slots=2))
    await runner.load()
    yield runner
    await runner.close()


@pytest.fixture
async def talk_runner() -> AsyncIterator[TalkRunner]:
    runner = TalkRunner("talker", NAME, CHECKPOINT, "cpu", "float32", TalkSettings(slots=3, context=512))
    await runner.load()
    yield runner
    await runner.close()


@pytest.fixture(params=["apart", "together"])
async def halves(request: pytest.FixtureRequest) -> AsyncIterator[Halves]:
    near = request.param == "together"
    first = make_core(CHECKPOINT, NAME)
    runners = Halves(PrefillRunner(first), DecodeRunner(first if near else make_core(CHECKPOINT, NAME)), near)
    await runners.prefill.load()
    await runners.decode.load()
    yield runners
    await runners.prefill.close()
    await runners.decode.close()


def build_job(**params: Any) -> MemoryJob:
    messages = [{"role": "user", "content": f"Say {SENTENCE}"}]
    return MemoryJob({"messages": messages, "voice": VOICE, "params": params}, wants=("text", *SPEECH))


async def run_talker(talking: TalkRunner, thought: MemoryJob, decode_job: MemoryJob | None = None) -> list[int]:
    prompt_outputs = {name: thought.outputs[name] for name in ("prompt", "layout")}
    rows = (decode_job or thought).outputs["rows"]
    talk_job = MemoryJob({**prompt_outputs, "rows": rows, "voice": VOICE, "params": {"max_codes": 200}})
    return (await finish_job(talking, talk_job)).codes


@pytest.mark.parametrize("limit", [*range(1, 7), None])
async def test_each_word_before_max_tokens_is_spoken(
    think_runner: ThinkRunner, talk_runner: TalkRunner, limit: int | None
) -> None:
    words = SENTENCE.split()[:limit]

    thought = await finish_job(think_runner, build_job(max_tokens=limit))

    assert (thought.text.split(), thought.end("text")["usage"]["completion_tokens"]) == (words, min(limit or 6, 6))
    assert thought.end("rows") == {"finish": "length" if limit and limit < 6 else "stop"}
    assert await run_talker(talk_runner, thought) == tone_synth.speech_codes(" ".join(words))


@pytest.mark.parametrize("stop", [" red", " circles", "circles", " on", " blue"])
async def test_each_word_before_a_stop_string_is_spoken(
    think_runner: ThinkRunner, talk_runner: TalkRunner, stop: str
) -> None:
    words = SENTENCE.partition(stop)[0].split()

    thought = await finish_job(think_runner, build_job(stop=[stop]))

    assert (thought.text.split(), thought.end("rows")) == (words, {"finish": "stop"})
    assert await run_talker(talk_runner, thought) == tone_synth.speech_codes(" ".join(words))


@pytest.mark.parametrize("stop", ["wo", "ed", "rcles on", "ue"])
async def test_a_word_that_a_stop_string_cuts_is_spoken_as_it_is_written(think_runner: ThinkRunner, stop: str) -> None:
    stopped_job = await finish_job(think_runner, build_job(stop=[stop]))
    spelled_job = await finish_job(think_runner, build_job(say=stopped_job.text))

    assert stopped_job.text == SENTENCE.partition(stop)[0]
    np.testing.assert_allclose(stopped_job.whole("rows"), spelled_job.whole("rows"), atol=1e-4)


@pytest.mark.parametrize("params", [{"max_tokens": 1}, {"max_tokens": 3}, {"stop": ["ed"]}, {"stop": ["rcles on"]}, {}])
async def test_halves_of_a_thinker_give_the_rows_of_a_whole_one(
    think_runner: ThinkRunner, halves: Halves, params: dict[str, Any]
) -> None:
    whole = await finish_job(think_runner, build_job(**params))

    first, second = halves.jobs(build_job(**params), *SPEECH)
    await asyncio.gather(finish_job(halves.prefill, first), finish_job(halves.decode, second))

    assert (second.text, second.end("text")) == (whole.text, whole.end("text"))
    np.testing.assert_allclose(second.whole("rows"), whole.whole("rows"), atol=1e-4)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, {"stop": ["rcles on"]}, {"stop": [" on"]}])
@pytest.mark.parametrize("known_count", [1, 2, 3, 4])
async def test_an_answer_that_goes_on_on_another_executor_is_spoken_whole(
    think_runner: ThinkRunner, halves: Halves, params: dict[str, Any], known_count: int
) -> None:
    whole = await finish_job(think_runner, build_job(**params))
    ids = whole.ids[:known_count]

    again = build_job(**params)
    again._resumes = {"text": {"ids": ids}}
    await finish_job(think_runner, again)
    first, second = halves.jobs(build_job(**params), *SPEECH)
    first._resumes = second._resumes = {"text": {"ids": ids}}
    await asyncio.gather(finish_job(halves.prefill, first), finish_job(halves.decode, second))

    for one in (again, second):
        assert (one.text, one.end("text")) == (whole.text, whole.end("text"))
        np.testing.assert_allclose(one.whole("rows"), whole.whole("rows"), atol=1e-4)


async def test_cut_answers_in_company_have_the_rows_of_each_alone(think_runner: ThinkRunner) -> None:
    settings: list[dict[str, Any]] = [
        {"stop": ["ed"]},
        {"max_tokens": 2},
        {},
        {"stop": ["rcles on"]},
        {"max_tokens": 1},
    ]
    alone = [await finish_job(think_runner, build_job(**params)) for params in settings]
    together = [build_job(**params) for params in settings]

    await asyncio.gather(*(finish_job(think_runner, one) for one in together))

    for one, other in zip(together, alone, strict=True):
        assert (one.text, one.end("text")) == (other.text, other.end("text"))
        np.testing.assert_allclose(one.whole("rows"), other.whole("rows"), atol=1e-4)
    assert think_runner.stats()["used"] == 0


async def test_an_answer_that_fills_the_context_is_spoken_whole() -> None:
    small = ThinkRunner(make_core(CHECKPOINT, NAME, context=24))
    await small.load()

    thought = await finish_job(small, build_job(ignore_eos=True))
    await small.close()

    usage = thought.end("text")["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 24
    assert len(thought.whole("rows")) == usage["completion_tokens"]
