"""Rows with deeper levels through the engine: in shares, in batches with text, and in halves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnibus.executor.runner import Item
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.e2e.questions import VL_QUESTIONS, Question, make_image, make_question, make_video
from tests.oracles import qwen3_vl as oracle
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.llm.runners.test_thinker import make_chat_job
from tests.unit.models.split import encode_files

TOKENS = 16
QUESTIONS = [
    *VL_QUESTIONS.values(),
    make_question(make_image(4), make_video(3), "and", make_image(5, 120, 200), "describe"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="module")
def vision(checkpoint: Path) -> Any:
    return load_family("qwen3_vl").load("vision", checkpoint)


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> list[list[int]]:
    return [oracle.generate_answer(checkpoint, one.plain, one.media, TOKENS)[0] for one in QUESTIONS]


def make_job(vision: Any, question: Question) -> MemoryJob:
    kinds = [kind for kind, _ in question.parts if kind != "text"]
    items = [Item(dict(one.meta), one.embeds.numpy()) for one in encode_files([vision], kinds, question.media)]
    return make_chat_job(question.plain, items, max_tokens=TOKENS, ignore_eos=False)


@pytest.mark.numeric
@pytest.mark.parametrize("share", [1, 5, 64, 4096])
async def test_prompts_in_shares_give_the_answers_of_the_whole_model(
    checkpoint: Path, vision: Any, answers: list[list[int]], share: int
) -> None:
    runner = ThinkRunner(make_core(checkpoint, "qwen3_vl", share=share))
    await runner.load()
    jobs = [make_job(vision, question) for question in QUESTIONS]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))
    await runner.close()

    assert [one.ids for one in jobs] == answers


@pytest.mark.numeric
@pytest.mark.parametrize("near", [False, True], ids=["apart", "together"])
async def test_halves_give_the_answers_of_the_whole_model(
    checkpoint: Path, vision: Any, answers: list[list[int]], near: bool
) -> None:
    first = make_core(checkpoint, "qwen3_vl", share=7)
    second = first if near else make_core(checkpoint, "qwen3_vl")
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near)
    await halves.prefill.load()
    await halves.decode.load()

    decode_jobs = await asyncio.gather(*(halves.answer(make_job(vision, question)) for question in QUESTIONS))
    await halves.prefill.close()
    await halves.decode.close()

    assert [one.ids for one in decode_jobs] == answers
