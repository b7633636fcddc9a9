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
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.runners.test_thinker import job, text
from tests.vllm.conftest import IN_PROCESS, descriptors, vllm
from tests.vllm.halves import Three, three

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 24
BLOCK_TOKENS = 32  # of the KV cache on a CPU
FAMILIES = [pytest.param(name, marks=pytest.mark.cell("vllm", name, "tokens")) for name in ("qwen2", "qwen3")]
CHATS = [
    *(text(number) for number in range(10)),
    [{"role": "user", "content": "the small cat sleeps on a warm red mat " * 30}],  # several steps
    [*text(3), {"role": "assistant", "content": "a red mat."}, *text(5)],
]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(family: str, build: Callable[[str], Path]) -> Path:
    return build(family)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(family: str, checkpoint: Path) -> AsyncIterator[VllmRunner]:
    async with vllm(family, checkpoint, batch=8) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(family: str, checkpoint: Path) -> AsyncIterator[Three]:
    async with three(family, checkpoint) as made:
        yield made


def jobs() -> list[MemoryJob]:
    return [job(chat, max_tokens=TOKENS, ignore_eos=False) for chat in CHATS]


def said(answers: list[MemoryJob]) -> list[tuple[list[int], str]]:
    return [(one.ids, one.text) for one in answers]


@pytest.mark.parametrize("shape", ["L"])
async def test_a_whole_one_says_what_generate_says(runner: VllmRunner, checkpoint: Path, shape: str) -> None:
    asked = jobs()

    await asyncio.gather(*(run(runner, one) for one in asked))

    assert said(asked) == [oracle.answer(checkpoint, chat, TOKENS) for chat in CHATS]
    with pytest.raises(BadRequest, match="use text"):
        await run(runner, job([{"role": "user", "content": [{"type": "image"}]}]))


@pytest.mark.parametrize("shape", ["P>D", "PD"])
async def test_halves_say_what_generate_says(engines: Three, checkpoint: Path, shape: str) -> None:
    halves = engines.halves(near=shape == "PD")

    answers = await asyncio.gather(*(halves.answer(one) for one in jobs()))

    assert said(answers) == [oracle.answer(checkpoint, chat, TOKENS) for chat in CHATS]
    await engines.until_idle()
    assert descriptors() == []


@pytest.mark.parametrize("shape", ["L"])
async def test_several_answers_to_one_prompt_find_it_in_the_prefix_cache(runner: VllmRunner, shape: str) -> None:
    prompt = [{"role": "user", "content": "the quick brown fox jumps over a warm red mat and sleeps " * 12}]
    before = runner.stats()["prefix_hits"]
    asked = [job(prompt, max_tokens=8, temperature=1.0, seed=seed) for seed in range(4)]

    await asyncio.gather(*(run(runner, one) for one in asked))

    length = asked[0].outputs["text"].items[-1].data["usage"]["prompt_tokens"]
    assert runner.stats()["prefix_hits"] - before >= 3 * (length - 2 * BLOCK_TOKENS)
    alone = job(prompt, max_tokens=8, temperature=1.0, seed=2)
    await run(runner, alone)
    assert alone.ids == asked[2].ids
    assert len({tuple(one.ids) for one in asked}) > 1
