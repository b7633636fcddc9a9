"""A thinker that speaks, in vLLM: the same tokens, and the same rows for its talker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_llm.vllm.runner import VllmRunner
from omnibus_models.families import load_family
from tests.e2e.questions import OMNI_QUESTIONS, Question, make_audio, make_image, make_question, make_video
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models.split import encode_files
from tests.vllm.conftest import IN_PROCESS, encode_items, engine_core, list_descriptors, start_transformers, start_vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

QUESTIONS = {
    **OMNI_QUESTIONS,
    "everything": make_question(
        make_video(3), "and", make_audio(0.7), make_image(3, 120, 200), "describe", make_image(4)
    ),
}
SPEECH = ("prompt", "layout", "rows")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(omni: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm("qwen2_5_omni", omni) as new_runner:
        yield new_runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(omni: Path) -> AsyncIterator[ThinkRunner]:
    async with start_transformers("qwen2_5_omni", omni) as new_reference:
        yield new_reference


@pytest.fixture(scope="module")
def encoders(omni: Path) -> list[Any]:
    return [load_family("qwen2_5_omni").load(component, omni) for component in ("vision", "audio")]


def make_job(question: Question, encoders: list[Any], *, voice: str | None = None, **params: Any) -> MemoryJob:
    kinds = [kind for kind, _ in question.parts if kind != "text"]
    inputs = {
        "messages": question.plain,
        "items": encode_items(encode_files(encoders, kinds, question.media)),
        "params": {"max_tokens": 24, "ignore_eos": True, **params},
    }
    return MemoryJob(inputs | ({"voice": voice} if voice else {}), SPEECH if voice else ())


@pytest.mark.cell("vllm", "qwen2_5_omni", "tokens", shape="Th")
@pytest.mark.parametrize("name", QUESTIONS)
async def test_it_says_what_transformers_says(
    runner: VllmRunner, reference: ThinkRunner, encoders: list[Any], name: str
) -> None:
    own_job, other = make_job(QUESTIONS[name], encoders), make_job(QUESTIONS[name], encoders)

    await finish_job(runner, own_job)
    await finish_job(reference, other)

    assert own_job.ids == other.ids
    assert (own_job.text, own_job.end("text")) == (other.text, other.end("text"))


@pytest.mark.parametrize("voice", [None, "Ethan"])
async def test_a_prompt_whose_sound_goes_on_is_prefilled_from_there_on(
    runner: VllmRunner, reference: ThinkRunner, encoders: list[Any], voice: str | None
) -> None:
    """A prefill-only request generates no tokens, and the next one continues it.

    The next one's talker gets the rows of the prefill as well.
    """
    question = make_question("listen", make_audio(6.0))
    request, other, ahead = (make_job(question, encoders, voice=voice) for _ in range(3))
    [sound] = request.inputs["items"]
    rows = 100  # of 4 s, after which its user continues
    ahead._inputs["items"] = [Item({**sound.data, "n_tokens": rows, "audio_len": 4 * rows}, sound.array[:rows])]
    ahead._inputs["params"] = {**ahead.inputs["params"], "prefill_only": True}
    ahead._wants = ()  # its outputs have no reader

    await finish_job(runner, ahead)
    await finish_job(runner, request)
    await finish_job(reference, other)

    assert ahead.ids == []
    assert request.ids == other.ids
    if voice:
        _assert_same_rows(request, other)
    usage = request.end("text")["usage"]
    assert rows / 2 < usage.pop("cached_tokens") <= usage["prompt_tokens"] - rows / 4
    assert usage == other.end("text")["usage"]


@pytest.mark.cell("vllm", "qwen2_5_omni", "rows", shape="Th")
@pytest.mark.parametrize("name", QUESTIONS)
async def test_its_talker_gets_the_same_rows(
    runner: VllmRunner, reference: ThinkRunner, encoders: list[Any], name: str
) -> None:
    own_job, other = (make_job(QUESTIONS[name], encoders, voice="Ethan") for _ in range(2))

    await finish_job(runner, own_job)
    await finish_job(reference, other)

    assert own_job.ids == other.ids
    _assert_same_rows(own_job, other)
    assert own_job.end("rows") == other.end("rows")


#: Parameters of answers that are cut, and how much of a whole answer is their stop string.
CUTS = {
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "a stop string": {"stop": slice(9, 12)},
    "a stop string in the first token": {"stop": slice(1, 3)},
    "all of the context": {"max_tokens": None},
}


def cut_params(text: str, name: str) -> dict[str, Any]:
    """Parameters of the answer cut as ``name`` describes; ``text`` is the whole one."""
    return {key: [text[value]] if isinstance(value, slice) else value for key, value in CUTS[name].items()}


def end_of(answer: MemoryJob) -> tuple[str, int]:
    """Finish reason and tokens.

    The cached part of its prompt is left out, because it depends on earlier answers.
    """
    end = answer.end("text")
    return end["finish_reason"], end["usage"]["completion_tokens"]


@pytest.mark.parametrize("name", CUTS)
async def test_an_answer_that_is_cut_gives_its_talker_all_of_its_text(
    runner: VllmRunner, reference: ThinkRunner, encoders: list[Any], name: str
) -> None:
    question = QUESTIONS["image and audio"]
    whole = await finish_job(reference, make_job(question, encoders, voice="Ethan"))
    own_job, other = (make_job(question, encoders, voice="Ethan", **cut_params(whole.text, name)) for _ in range(2))

    await finish_job(runner, own_job)
    await finish_job(reference, other)

    assert (own_job.text, end_of(own_job)) == (other.text, end_of(other))
    assert own_job.end("rows") == other.end("rows")
    assert len(own_job.whole("rows")) > 0
    _assert_same_rows(own_job, other)


async def test_rows_come_while_tokens_are_made(runner: VllmRunner, encoders: list[Any]) -> None:
    speech_job = await finish_job(
        runner, make_job(QUESTIONS["image and audio"], encoders, voice="Chelsie", max_tokens=100)
    )

    chunks = [item.array for item in speech_job.outputs["rows"].items if item.array is not None]
    assert sum(map(len, chunks)) == 100
    assert len(chunks) > 2  # how many a busy process finds at a time is chance


async def test_a_long_prompt_in_several_steps_gives_all_its_rows(
    omni: Path, runner: VllmRunner, reference: ThinkRunner, encoders: list[Any]
) -> None:
    question = make_question(" ".join(["the small cat sleeps on a warm red mat"] * 30), make_image(5), "describe")
    silent, *jobs = (make_job(question, encoders, voice=voice) for voice in (None, *["Ethan"] * 4))

    await finish_job(runner, silent)  # its rows are not cached, so spoken answers do not reuse its blocks
    await finish_job(runner, jobs[0])
    await asyncio.gather(*(finish_job(runner, one) for one in jobs[1:-1]))  # in one step, with rows that are kept
    await finish_job(reference, jobs[-1])

    for one in jobs[:-1]:
        _assert_same_rows(one, jobs[-1])
    prompt = jobs[0].end("text")["usage"]["prompt_tokens"]
    cached_counts = [one.end("text")["usage"].get("cached_tokens", 0) for one in jobs[:-1]]
    assert cached_counts[0] < prompt / 2 < prompt - 64 <= cached_counts[1] == cached_counts[2] < prompt


async def test_the_next_turn_of_a_spoken_conversation_begins_behind_the_answer(
    runner: VllmRunner, reference: ThinkRunner, encoders: list[Any]
) -> None:
    question = make_question(make_audio(2.0), " ".join(["the small cat sleeps on a warm red mat"] * 8))
    first = await finish_job(runner, make_job(question, encoders, voice="Ethan", max_tokens=64))
    answer_message = {"role": "assistant", "content": first.text}
    turns = [make_job(question, encoders, voice="Chelsie") for _ in range(2)]
    for one in turns:
        one._inputs["messages"] = [*question.plain, answer_message, {"role": "user", "content": "and what then?"}]

    await finish_job(runner, turns[0])
    await finish_job(reference, turns[1])

    assert turns[0].ids == turns[1].ids
    _assert_same_rows(*turns)
    usage = turns[0].end("text")["usage"]
    assert usage["cached_tokens"] >= first.end("text")["usage"]["prompt_tokens"] - 32  # what fills a block


async def test_a_pipeline_says_and_speaks_the_same(
    omni: Path,
    runner: VllmRunner,
    reference: ThinkRunner,
    encoders: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first stage reads embeddings, and the last one writes rows."""
    monkeypatch.setenv("OMNIBUS_VLLM_PIPELINE_PARALLEL", "2")
    question = QUESTIONS["everything"]
    own_job, again, other = (make_job(question, encoders, voice="Ethan") for _ in range(3))
    silent, unheard = (make_job(QUESTIONS["image"], encoders) for _ in range(2))

    async with start_vllm("qwen2_5_omni", omni) as split:
        await asyncio.gather(finish_job(split, own_job), finish_job(split, silent))
        await finish_job(split, again)  # with rows that are kept
        stats = split.stats()
    await asyncio.gather(finish_job(reference, other), finish_job(reference, unheard))

    assert (own_job.ids, again.ids, silent.ids) == (other.ids, other.ids, unheard.ids)
    for one in (own_job, again):
        _assert_same_rows(one, other)
    assert again.end("text")["usage"]["cached_tokens"] > 0
    assert stats["kv_bytes_per_token"] == runner.stats()["kv_bytes_per_token"]


def _assert_same_rows(own_job: MemoryJob, other: MemoryJob) -> None:
    """Check that a talker gets equal rows from both, up to rounding."""
    assert np.array_equal(own_job.array("layout"), other.array("layout"))
    np.testing.assert_allclose(own_job.array("prompt"), other.array("prompt"), rtol=0, atol=1e-4)
    np.testing.assert_allclose(own_job.whole("rows"), other.whole("rows"), rtol=0, atol=1e-4)


async def test_neither_process_keeps_memory_of_requests_that_are_over(runner: VllmRunner, encoders: list[Any]) -> None:
    await finish_job(runner, make_job(QUESTIONS["image and audio"], encoders, voice="Ethan"))

    await finish_job(runner, make_job(QUESTIONS["text"], encoders))

    assert list_descriptors() == []
    assert list_descriptors(engine_core(psutil.Process().children(recursive=True)).pid) == []


async def test_an_unknown_voice_is_refused(runner: VllmRunner, encoders: list[Any]) -> None:
    with pytest.raises(BadRequest, match="Chelsie, Ethan"):
        await finish_job(runner, make_job(QUESTIONS["text"], encoders, voice="Nobody"))

    assert list_descriptors() == []
