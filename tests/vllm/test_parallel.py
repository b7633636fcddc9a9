"""Language model halves with several workers read each other's cache."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from transformers import Qwen3Config, Qwen3ForCausalLM

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import registry as engines
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.tiny import _language
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat
from tests.vllm.conftest import CONTEXT, IN_PROCESS, start_transformers

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

#: Degrees of prefill and decode. With two in both, the cache goes through shared memory all the same.
DEGREES = [(2, 1), (1, 2), (2, 2)]

Runners = dict[int, tuple[Any, Any]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with two heads of keys and values, one per worker."""
    directory = tmp_path_factory.mktemp("two-heads")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    _language.write(Qwen3ForCausalLM, Qwen3Config, directory, 0, True, **heads)
    return directory


def make_text_jobs() -> list[MemoryJob]:
    return [make_chat_job(make_text_chat(number), max_tokens=3 + 2 * number) for number in range(8)]


def make_halves(checkpoint: Path, degree: int) -> tuple[Any, Any]:
    """Prefill and decode in one engine with several workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIBUS_VLLM_TENSOR_PARALLEL", str(degree))
        settings = ExecutorSettings(
            id=f"tp{degree}", family="qwen3", checkpoint=str(checkpoint), context=CONTEXT, batch=8
        )
        return engines.vllm("prefill", settings), engines.vllm("decode", settings)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runners(checkpoint: Path) -> AsyncIterator[Runners]:
    """Halves by the degree of their engine."""
    halves = {degree: make_halves(checkpoint, degree) for degree in (1, 2)}
    async with AsyncExitStack() as stack:
        for pair in halves.values():
            for runner in pair:
                stack.push_async_callback(runner.close)
                await runner.load()
        yield halves


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(checkpoint: Path) -> AsyncIterator[ThinkRunner]:
    async with start_transformers("qwen3", checkpoint) as whole:
        yield whole


@pytest.mark.parametrize(("prefill", "decode"), DEGREES)
async def test_halves_of_any_degree_say_what_transformers_says(
    runners: Runners, reference: ThinkRunner, prefill: int, decode: int
) -> None:
    halves, jobs, wholes = (
        Halves(runners[prefill][0], runners[decode][1], near=False),
        make_text_jobs(),
        make_text_jobs(),
    )

    answers = await asyncio.gather(*(halves.answer(one) for one in jobs))
    await asyncio.gather(*(finish_job(reference, one) for one in wholes))

    assert [one.ids for one in answers] == [one.ids for one in wholes]


@pytest.mark.parametrize(("prefill", "decode"), DEGREES)
async def test_sampled_answers_go_on_where_prefill_was(runners: Runners, prefill: int, decode: int) -> None:
    def make_request() -> MemoryJob:
        return make_chat_job(make_text_chat(40), max_tokens=16, temperature=1.0, top_p=0.9, seed=5)

    near = await Halves(*runners[1], near=True).answer(make_request())
    far = await Halves(runners[prefill][0], runners[decode][1], near=False).answer(make_request())

    assert far.ids == near.ids


async def test_each_worker_has_a_part_of_the_weights_and_caches_travel_with_all_heads(runners: Runners) -> None:
    whole, split = (runners[degree][0]._core.engine for degree in (1, 2))

    assert split.layout._replace(blocks=0) == whole.layout._replace(blocks=0)
    assert split.stats()["kv_bytes_per_token"] == whole.stats()["kv_bytes_per_token"]


async def test_heads_that_cannot_be_divided_are_refused_before_workers_start(checkpoint: Path) -> None:
    prefill, _ = make_halves(checkpoint, 3)

    with pytest.raises(BadRequest, match="cannot be split over 3 GPUs"):
        await prefill.load()
    await prefill.close()


async def test_workers_with_the_same_head_read_it_and_one_of_them_writes_it() -> None:
    from omnibus_llm.vllm.v032.kv_connector import HeadShard  # imports vLLM, which not each environment has

    assert [HeadShard.of_rank(8, rank, 4) for rank in (0, 3)] == [HeadShard(8, 0, 2), HeadShard(8, 6, 2)]
    assert [HeadShard.of_rank(2, rank, 4) for rank in range(4)] == [
        HeadShard(2, 0, 1),
        HeadShard(2, 0, 1, writes=False),
        HeadShard(2, 1, 1),
        HeadShard(2, 1, 1, writes=False),
    ]
