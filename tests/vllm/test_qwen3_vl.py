"""Qwen3-VL in vLLM: rows with deeper levels, and videos with rows in several places."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from omnibus.errors import BadRequest
from omnibus_llm.vllm.runner import VllmRunner
from omnibus_models.contract import Encoded
from omnibus_models.families import load_family
from tests.e2e.questions import VL_QUESTIONS, Question, make_image, make_question, make_video
from tests.oracles import qwen3_vl as oracle
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.conftest import decode_greedily
from tests.unit.llm.runners.test_thinker import make_chat_job
from tests.unit.models.split import encode_files
from tests.vllm.conftest import IN_PROCESS, encode_items, list_descriptors, start_vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 24
QUESTIONS = {
    **VL_QUESTIONS,
    # Longer than a step: the second part of its rows is taken from the same items.
    "more than a step": make_question(
        make_image(4, 250, 250), make_video(8, 5), "and", make_image(5, 120, 200), "describe"
    ),
}


@pytest.fixture(scope="module")
def checkpoint(build: Callable[[str], Path]) -> Path:
    return build("qwen3_vl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(checkpoint: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm("qwen3_vl", checkpoint, batch=8) as new_runner:
        yield new_runner


@pytest.fixture(scope="module")
def vision(checkpoint: Path) -> Any:
    return load_family("qwen3_vl").load("vision", checkpoint)


def make_request(vision: Any, question: Question) -> MemoryJob:
    kinds = [kind for kind, _ in question.parts if kind != "text"]
    items = encode_items(encode_files([vision], kinds, question.media))
    return make_chat_job(question.plain, items, max_tokens=TOKENS, ignore_eos=False)


async def test_it_holds_the_language_model_alone(runner: VllmRunner, checkpoint: Path) -> None:
    # On a CPU some weights are packed for its kernels and count as parameters no more.
    assert 0 < runner.stats()["parameters"] <= load_family("qwen3_vl").load("thinker", checkpoint).parameters


@pytest.mark.cell("vllm", "qwen3_vl", "tokens", shape="L")
@pytest.mark.parametrize("name", QUESTIONS)
async def test_it_says_what_the_whole_model_says(runner: VllmRunner, checkpoint: Path, vision: Any, name: str) -> None:
    question = QUESTIONS[name]
    ids, text = oracle.generate_answer(checkpoint, question.plain, question.media, TOKENS)

    answer = await finish_job(runner, make_request(vision, question))

    assert (answer.ids, answer.text) == (ids, text)


@pytest.mark.cell("vllm", "qwen3_vl", "tokens", shape="L")
async def test_requests_at_once_each_get_their_own_answer(runner: VllmRunner, checkpoint: Path, vision: Any) -> None:
    questions = [make_question(make_image(seed % 5), make_video(1 + seed % 3, seed), "describe") for seed in range(8)]
    questions += [
        make_question(make_image(seed), "describe the image") if seed % 3 else make_question(f"{seed} cats")
        for seed in range(12)
    ]
    reference = [oracle.generate_answer(checkpoint, one.plain, one.media, TOKENS)[0] for one in questions]
    jobs = [make_request(vision, question) for question in questions]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    assert [one.ids for one in jobs] == reference
    assert list_descriptors() == []


async def test_equal_embeddings_at_other_seconds_are_another_video(
    runner: VllmRunner, checkpoint: Path, vision: Any
) -> None:
    early = make_request(vision, VL_QUESTIONS["video"])
    [item] = early.inputs["items"]
    late = make_chat_job(VL_QUESTIONS["video"].plain, [item._replace(data={**item.data, "seconds": [100.5, 200.5]})])

    await finish_job(runner, early)
    await finish_job(runner, late)

    assert early.ids[:16] != late.ids[:16]


@pytest.mark.cell("vllm", "qwen3_vl", "tokens", shape="L")
async def test_frames_that_are_equal_are_read_once_and_seen_each(
    runner: VllmRunner, checkpoint: Path, vision: Any
) -> None:
    question = make_question(make_video(3), make_video(3), "describe")
    items = make_request(vision, question).inputs["items"]
    still = [item._replace(array=np.tile(item.array[:4], (item.data["grid_thw"][0], 1))) for item in items]
    thinker = load_family("qwen3_vl").load("thinker", checkpoint)
    media = [Encoded(torch.from_numpy(item.array), item.data) for item in still]
    reference = decode_greedily(thinker, thinker.assemble_prefill(thinker.prompt(question.plain), media), TOKENS)

    answer = await finish_job(runner, make_chat_job(question.plain, still, max_tokens=TOKENS))

    assert answer.ids == reference


async def test_rows_without_their_deeper_levels_are_refused_and_the_engine_hears_nothing(
    runner: VllmRunner, vision: Any
) -> None:
    token_count = runner.stats()["prompt_tokens"]
    [item] = make_request(vision, VL_QUESTIONS["image"]).inputs["items"]
    plain = item._replace(array=np.ascontiguousarray(item.array[:, :64]))

    with pytest.raises(BadRequest, match="192"):
        await finish_job(runner, make_chat_job(VL_QUESTIONS["image"].plain, [plain]))

    assert runner.stats()["prompt_tokens"] == token_count
    assert list_descriptors() == []
