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
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.runners.test_thinker import job
from tests.unit.models.split import encode
from tests.vllm.conftest import IN_PROCESS, sent, transformers, vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("llava", tmp_path_factory.mktemp("models") / "llava", wide=True)


@pytest.fixture(scope="module")
def vision(llava: Path) -> MediaEncoder:
    return load_family("llava").load("vision", llava)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(llava: Path) -> AsyncIterator[VllmRunner]:
    async with vllm("llava", llava, batch=8) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(llava: Path) -> AsyncIterator[ThinkRunner]:
    async with transformers("llava", llava) as made:
        yield made


def items(vision: MediaEncoder, question: Question) -> list[Item]:
    return sent(encode([vision], [kind for kind, _ in question.parts if kind != "text"], question.media))


@pytest.mark.cell("vllm", "llava", "tokens", shape="L")
async def test_it_says_what_transformers_says(vision: MediaEncoder, runner: VllmRunner, reference: ThinkRunner) -> None:
    def jobs() -> list[MemoryJob]:
        return [job(one.plain, items(vision, one), max_tokens=TOKENS) for one in QUESTIONS.values()]

    mine, other = jobs(), jobs()
    await asyncio.gather(*(run(runner, one) for one in mine))
    await asyncio.gather(*(run(reference, one) for one in other))

    assert [one.ids for one in mine] == [one.ids for one in other]
    assert [one.text for one in mine] == [one.text for one in other]
    assert len({tuple(one.ids) for one in mine}) == len(QUESTIONS)


async def test_a_malformed_embedding_is_refused_and_the_engine_hears_nothing_of_it(
    vision: MediaEncoder, runner: VllmRunner
) -> None:
    question = QUESTIONS["image"]
    [item] = items(vision, question)
    heard = runner.stats()["prompt_tokens"]

    with pytest.raises(BadRequest):
        await run(runner, job(question.plain, [item._replace(array=item.array[:-1])]))

    assert runner.stats()["prompt_tokens"] == heard
