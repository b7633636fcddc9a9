"""Text-only models in vLLM answer like the library's ``generate``.

They run whole and in halves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from omnibus.errors import BadRequest
from omnibus_llm.vllm.runner import VllmRunner
from tests.oracles import language as oracle
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat
from tests.vllm.conftest import IN_PROCESS, list_descriptors, start_vllm
from tests.vllm.halves import Three, start_three

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 24
BLOCK_TOKENS = 32  # of the KV cache on a CPU
FAMILIES = [pytest.param(name, marks=pytest.mark.cell("vllm", name, "tokens")) for name in ("qwen2", "qwen3")]
CHATS = [
    *(make_text_chat(number) for number in range(10)),
    [{"role": "user", "content": "the small cat sleeps on a warm red mat " * 30}],  # several steps
    [*make_text_chat(3), {"role": "assistant", "content": "a red mat."}, *make_text_chat(5)],
]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(family: str, build: Callable[[str], Path]) -> Path:
    return build(family)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(family: str, checkpoint: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm(family, checkpoint, batch=8) as new_runner:
        yield new_runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(family: str, checkpoint: Path) -> AsyncIterator[Three]:
    async with start_three(family, checkpoint) as new_engines:
        yield new_engines


def make_jobs() -> list[MemoryJob]:
    return [make_chat_job(chat, max_tokens=TOKENS, ignore_eos=False) for chat in CHATS]


def read_answers(answers: list[MemoryJob]) -> list[tuple[list[int], str]]:
    return [(one.ids, one.text) for one in answers]


@pytest.mark.parametrize("shape", ["L"])
async def test_a_whole_one_says_what_generate_says(runner: VllmRunner, checkpoint: Path, shape: str) -> None:
    requests = make_jobs()

    await asyncio.gather(*(finish_job(runner, one) for one in requests))

    assert read_answers(requests) == [oracle.generate_answer(checkpoint, chat, TOKENS) for chat in CHATS]
    with pytest.raises(BadRequest, match="use text"):
        await finish_job(runner, make_chat_job([{"role": "user", "content": [{"type": "image"}]}]))


@pytest.mark.parametrize("shape", ["P>D", "PD"])
async def test_halves_say_what_generate_says(engines: Three, checkpoint: Path, shape: str) -> None:
    halves = engines.halves(near=shape == "PD")

    answers = await asyncio.gather(*(halves.answer(one) for one in make_jobs()))

    assert read_answers(answers) == [oracle.generate_answer(checkpoint, chat, TOKENS) for chat in CHATS]
    await engines.until_idle()
    assert list_descriptors() == []


@pytest.mark.parametrize("shape", ["L"])
async def test_several_answers_to_one_prompt_find_it_in_the_prefix_cache(runner: VllmRunner, shape: str) -> None:
    prompt = [{"role": "user", "content": "the quick brown fox jumps over a warm red mat and sleeps " * 12}]
    before = runner.stats()["prefix_hits"]
    requests = [make_chat_job(prompt, max_tokens=8, temperature=1.0, seed=seed) for seed in range(4)]

    await asyncio.gather(*(finish_job(runner, one) for one in requests))

    length = requests[0].outputs["text"].items[-1].data["usage"]["prompt_tokens"]
    assert runner.stats()["prefix_hits"] - before >= 3 * (length - 2 * BLOCK_TOKENS)
    alone = make_chat_job(prompt, max_tokens=8, temperature=1.0, seed=2)
    await finish_job(runner, alone)
    assert alone.ids == requests[2].ids
    assert len({tuple(one.ids) for one in requests}) > 1
