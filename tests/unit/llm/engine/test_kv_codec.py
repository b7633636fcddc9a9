"""A cache's transfer from prefill to decode: its timing, its place, and rejection of invalid ones."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import ArenaFull, Fatal, ProtocolError, StageUnavailable
from omnibus.executor.runner import Item
from omnibus_llm.engine import slot_cache as kv_codec
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_models.contract import Thinker
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.llm.runners.test_thinker import answer_alone, make_chat_job, make_mixed_jobs, make_text_chat

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


async def test_a_cache_travels_as_one_array_and_is_given_back(halves: Halves) -> None:
    one = await halves.answer(make_chat_job(make_text_chat(4)))

    [(first, second)] = halves.made
    if halves.near:
        assert first.outputs["cache"].items == []
        assert second.read == []
    else:
        length = one.end("text")["usage"]["prompt_tokens"]
        assert first.array("cache").shape == (2, 2, 2, length, 16)
        assert second.read == ["cache"]


async def test_no_cache_is_sent_for_an_answer_that_ends_with_its_first_token(halves: Halves) -> None:
    one = await halves.answer(make_chat_job(make_text_chat(4), max_tokens=1))

    [(first, _)] = halves.made
    assert len(one.ids) == 1
    assert first.outputs["cache"].items == []


async def test_the_first_token_is_sent_before_there_is_a_slot_and_the_cache_is_asked_for_after(vl: Path) -> None:
    halves = Halves(PrefillRunner(make_core(vl)), DecodeRunner(make_core(vl, slots=1)), near=False)
    await asyncio.gather(halves.prefill.load(), halves.decode.load())
    _, occupant = halves.jobs(make_chat_job(make_text_chat(1), max_tokens=400))
    first, second = halves.jobs(make_chat_job(make_text_chat(2), max_tokens=4))
    running = [
        asyncio.create_task(finish_job(runner, one))
        for pair in halves.made
        for runner, one in zip((halves.prefill, halves.decode), pair, strict=True)
    ]

    await occupant.outputs["text"].until(3)
    await second.outputs["text"].until(1)
    input_names = second.asked.copy()
    await asyncio.gather(*running)

    assert len(first.outputs["cache"].items) == 1
    assert input_names == ["start"]
    assert second.asked == ["start", "cache"]
    assert len(second.ids) == 4
    await asyncio.gather(halves.prefill.close(), halves.decode.close())


@pytest.mark.parametrize(
    ("about", "array"),
    [
        ({"dtype": "float32"}, np.zeros((2, 2, 2, 4, 16), np.float32)),
        ({"dtype": "float32"}, np.zeros((3, 2, 2, 5, 16), np.float32)),
        ({"dtype": "float64"}, np.zeros((2, 2, 2, 5, 16), np.float64)),
        ({"dtype": "bfloat16"}, np.zeros((2, 2, 2, 5, 16), np.float32)),
        ({}, None),
    ],
)
async def test_a_cache_of_another_model_is_refused_and_the_slot_is_free(
    halves: Halves, about: dict[str, Any], array: np.ndarray | None
) -> None:
    start = {"length": 5, "rope_delta": 0, "first_token": 3, "seed": 1, "prompt_tokens": 5}

    with pytest.raises(ProtocolError, match="must run one model"):
        await finish_job(
            halves.decode, MemoryJob({"start": start, "cache": Item(about, array), "params": {"max_tokens": 4}})
        )

    assert halves.decode.stats()["used"] == 0
    assert len((await halves.answer(make_chat_job(make_text_chat(2), max_tokens=5))).ids) == 5


async def test_a_cache_of_nan_fails_only_its_own_request(halves: Halves, thinker: Thinker) -> None:
    start = {"length": 5, "rope_delta": 0, "first_token": 3, "seed": 1, "prompt_tokens": 5}
    poison = Item({"dtype": "float32"}, np.full((2, 2, 2, 5, 16), np.nan, np.float32))
    bad = MemoryJob({"start": start, "cache": poison, "params": {"max_tokens": 4, "ignore_eos": True}})
    good = make_mixed_jobs(4)

    results = await asyncio.gather(
        finish_job(halves.decode, bad), *(halves.answer(one) for one in good), return_exceptions=True
    )
    after = await halves.answer(make_chat_job(make_text_chat(7)))

    assert isinstance(results[0], Fatal)
    assert [one.ids for one in results[1:]] == [answer_alone(thinker, one) for one in good]
    assert after.ids == answer_alone(thinker, make_chat_job(make_text_chat(7)))


class CrowdedArenaJob(MemoryJob):
    """A job in a node whose arena has no room at first."""

    refused = 0

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        if output == "cache" and self.refused < 3:
            self.refused += 1
            await asyncio.sleep(0)
            raise ArenaFull("no room")
        await super().put(output, data, array)


async def test_a_full_arena_is_waited_for(vl: Path) -> None:
    prefill = PrefillRunner(make_core(vl))
    await prefill.load()
    one = CrowdedArenaJob(make_chat_job(make_text_chat(3))._inputs, wants=("cache", "start"))

    await finish_job(prefill, one)

    assert one.refused == 3
    assert one.array("cache").ndim == 5
    await prefill.close()


class Shut(MemoryJob):
    """A job whose cache is not taken until ``gate`` opens."""

    gate: asyncio.Event

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await self.gate.wait()
        await super().put(output, data, array)


async def test_caches_that_wait_to_leave_keep_nobody_from_a_slot(vl: Path) -> None:
    shared_core = make_core(vl, slots=1)
    prefill, decode = PrefillRunner(shared_core), DecodeRunner(shared_core)
    elsewhere = PrefillRunner(make_core(vl, decodes=False))
    await asyncio.gather(prefill.load(), decode.load(), elsewhere.load())
    stuck = Shut(make_chat_job(make_text_chat(3))._inputs, wants=("cache", "start"))
    stuck.gate = asyncio.Event()
    leaving = asyncio.create_task(finish_job(prefill, stuck))

    answer = await Halves(elsewhere, decode, near=False).answer(make_chat_job(make_text_chat(4), max_tokens=6))
    stuck.gate.set()
    await leaving

    assert len(answer.ids) == 6
    assert len(stuck.outputs["cache"].items) == 1
    await asyncio.gather(prefill.close(), decode.close(), elsewhere.close())


async def test_no_memory_is_taken_for_slots_where_nothing_decodes(vl: Path, thinker: Thinker) -> None:
    halves = Halves(PrefillRunner(make_core(vl, decodes=False)), DecodeRunner(make_core(vl)), near=False)
    await asyncio.gather(halves.prefill.load(), halves.decode.load())

    answer = await halves.answer(make_chat_job(make_text_chat(4)))

    assert answer.ids == answer_alone(thinker, make_chat_job(make_text_chat(4)))
    assert halves.prefill._core.engine._steps._cache._keys == []
    await asyncio.gather(halves.prefill.close(), halves.decode.close())


async def test_closing_fails_what_waits_for_a_slot(vl: Path) -> None:
    halves = Halves(PrefillRunner(make_core(vl)), DecodeRunner(make_core(vl, slots=1)), near=False)
    await asyncio.gather(halves.prefill.load(), halves.decode.load())
    pairs = [
        halves.jobs(make_chat_job(make_text_chat(1), max_tokens=400)),
        halves.jobs(make_chat_job(make_text_chat(2))),
    ]
    await asyncio.gather(*(finish_job(halves.prefill, first) for first, _ in pairs))
    running = [asyncio.create_task(finish_job(halves.decode, second)) for _, second in pairs]
    for _, second in pairs:
        await second.outputs["text"].until(1)

    await halves.decode.close()
    results = await asyncio.gather(*running, return_exceptions=True)

    assert [type(result) for result in results] == [StageUnavailable, StageUnavailable]
    await halves.prefill.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_packed_cache_is_the_same_bit_for_bit(dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(1)
    layers = [tuple(torch.randn(2, 7, 4, generator=numbers).to(dtype) for _ in range(2)) for _ in range(3)]

    about, packed_cache = kv_codec.pack_cache(layers)
    back = kv_codec.unpack_cache(about, packed_cache, 7, kv_codec.CacheLayout(3, 2, 4))

    assert packed_cache.dtype.name in ("float32", "float16", "int16")
    for pair, other in zip(layers, back, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(pair, other, strict=True))
