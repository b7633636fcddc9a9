"""LLaVA-1.5's language model in vLLM: plain positions, CLIP rows as images."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_llm.vllm.runner import VllmRunner
from omnibus_models import tiny
from omnibus_models.contract import MediaEncoder
from omnibus_models.families import load_family
from tests.e2e.families.plain import QUESTIONS, TOKENS
from tests.e2e.questions import Question
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job
from tests.unit.models.split import encode_files
from tests.vllm.conftest import IN_PROCESS, encode_items, start_transformers, start_vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("llava", tmp_path_factory.mktemp("models") / "llava", wide=True)


@pytest.fixture(scope="module")
def vision(llava: Path) -> MediaEncoder:
    return load_family("llava").load("vision", llava)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(llava: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm("llava", llava, batch=8) as new_runner:
        yield new_runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(llava: Path) -> AsyncIterator[ThinkRunner]:
    async with start_transformers("llava", llava) as new_reference:
        yield new_reference


def make_items(vision: MediaEncoder, question: Question) -> list[Item]:
    return encode_items(encode_files([vision], [kind for kind, _ in question.parts if kind != "text"], question.media))


@pytest.mark.cell("vllm", "llava", "tokens", shape="L")
async def test_it_says_what_transformers_says(vision: MediaEncoder, runner: VllmRunner, reference: ThinkRunner) -> None:
    def make_jobs() -> list[MemoryJob]:
        return [make_chat_job(one.plain, make_items(vision, one), max_tokens=TOKENS) for one in QUESTIONS.values()]

    own_jobs, other = make_jobs(), make_jobs()
    await asyncio.gather(*(finish_job(runner, one) for one in own_jobs))
    await asyncio.gather(*(finish_job(reference, one) for one in other))

    assert [one.ids for one in own_jobs] == [one.ids for one in other]
    assert [one.text for one in own_jobs] == [one.text for one in other]
    assert len({tuple(one.ids) for one in own_jobs}) == len(QUESTIONS)


async def test_a_malformed_embedding_is_refused_and_the_engine_hears_nothing_of_it(
    vision: MediaEncoder, runner: VllmRunner
) -> None:
    question = QUESTIONS["image"]
    [item] = make_items(vision, question)
    token_count = runner.stats()["prompt_tokens"]

    with pytest.raises(BadRequest):
        await finish_job(runner, make_chat_job(question.plain, [item._replace(array=item.array[:-1])]))

    assert runner.stats()["prompt_tokens"] == token_count
