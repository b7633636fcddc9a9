"""Images with bidirectional attention and images with cross-attention: alone, in shares, batched, in halves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import Fatal, ProtocolError
from omnibus.executor.runner import Item
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.halves import Halves, core
from tests.unit.llm.pictures import Asked, Pictured, mixed, pictured, text
from tests.unit.models import files

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable", "ignore:.hidden_state. is")


@pytest.fixture(scope="module", params=["gemma3", "mllama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pictured:
    directory = tmp_path_factory.mktemp("models") / request.param
    return Pictured(request.param, tiny.build(request.param, directory))


def whole(model: Pictured, **settings: Any) -> ThinkRunner:
    limits = ThinkSettings(**{"slots": 4, "context": 512, "share": 64, **settings})
    return ThinkRunner(ThinkerCore(model.family, model.checkpoint, "cpu", "float32", limits))


@pytest.mark.numeric
async def test_mixed_requests_that_join_and_leave_equal_the_whole_model(model: Pictured) -> None:
    runner = whole(model)
    await runner.load()
    asked = mixed(12)
    jobs = [model.job(one) for one in asked]
    running = []

    for number, job in enumerate(jobs):
        running.append(asyncio.create_task(run(runner, job)))
        if number % 4 == 3:
            await job.outputs["text"].until(2)
    await asyncio.gather(*running)
    await runner.close()

    assert [job.ids for job in jobs] == [model.ids(one) for one in asked]
    assert max(int(size) for size in runner.stats()["batches"]) == 4


@pytest.mark.parametrize("share", [1, 7, 40, 4096])
async def test_a_prompt_in_shares_gives_the_same_answer(model: Pictured, share: int) -> None:
    runner = whole(model, slots=2, share=share)
    await runner.load()
    asked = [pictured(2, 2), text(12), pictured(3)]
    jobs = [model.job(one) for one in asked]

    await asyncio.gather(*(run(runner, job) for job in jobs))
    await runner.close()

    assert [job.ids for job in jobs] == [model.ids(one) for one in asked]


async def test_a_slot_that_others_had_is_as_new(model: Pictured) -> None:
    runner = whole(model, slots=1)
    await runner.load()
    asked = [pictured(5, 3), text(4), pictured(1), text(9), pictured(2, 2)]

    answers = [await run(runner, model.job(one)) for one in asked]
    await runner.close()

    assert [job.ids for job in answers] == [model.ids(one) for one in asked]


@pytest.mark.numeric
async def test_a_broken_picture_fails_only_its_own_request(model: Pictured) -> None:
    runner = whole(model)
    await runner.load()
    asked = [*mixed(5), text(7)]
    bad = model.job(pictured(1))
    [item] = bad.inputs["items"]
    bad._inputs["items"] = [item._replace(array=np.full_like(item.array, np.nan))]
    jobs = [bad, *map(model.job, asked)]

    results = await asyncio.gather(*(run(runner, job) for job in jobs), return_exceptions=True)
    after = await run(runner, model.job(pictured(4)))
    await runner.close()

    assert isinstance(results[0], Fatal)
    assert [job.ids for job in jobs[1:]] == [model.ids(one) for one in asked]
    assert after.ids == model.ids(pictured(4))


async def test_a_sampled_answer_does_not_depend_on_company_and_shares(model: Pictured) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "repetition_penalty": 1.2}
    answers = []

    for share in (5, 64):
        runner = whole(model, share=share)
        await runner.load()
        one = model.job(pictured(2, 2), **settings)
        await asyncio.gather(run(runner, one), *(run(runner, model.job(other)) for other in mixed(share // 16)))
        answers.append(one.ids)
        await runner.close()

    assert answers[0] == answers[1]


async def test_pictures_are_counted_as_tokens_of_the_prompt(model: Pictured) -> None:
    runner = whole(model)
    await runner.load()

    job = await run(runner, model.job(pictured(1, 2)))
    await runner.close()

    usage = job.end("text")["usage"]
    assert usage["image_tokens"] == (2 if model.family == "mllama" else 32)
    assert usage["image_tokens"] < usage["prompt_tokens"]


@pytest.fixture(params=["apart", "together"])
async def halves(request: pytest.FixtureRequest, model: Pictured) -> AsyncIterator[Halves]:
    near = request.param == "together"
    first = core(model.checkpoint, model.family, share=9)
    made = Halves(PrefillRunner(first), DecodeRunner(first if near else core(model.checkpoint, model.family)), near)
    await made.prefill.load()
    await made.decode.load()
    yield made
    await made.prefill.close()
    await made.decode.close()


@pytest.mark.numeric
async def test_halves_answer_as_the_whole_model(model: Pictured, halves: Halves) -> None:
    asked = mixed(9)

    answers = await asyncio.gather(*(halves.answer(model.job(one)) for one in asked))

    assert [answer.ids for answer in answers] == [model.ids(one) for one in asked]
    assert halves.prefill.stats()["used"] == halves.decode.stats()["used"] == 0


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Pictured:
    return Pictured("mllama", tiny.build("mllama", tmp_path_factory.mktemp("models") / "tiled"))


async def prefilled(model: Pictured, asked: Asked) -> tuple[MemoryJob, Item, dict[str, Any]]:
    """Return the job of a prefill, its cache and its start."""
    prefill = PrefillRunner(core(model.checkpoint, model.family, decodes=False))
    await prefill.load()
    job = model.job(asked)
    first = MemoryJob(job._inputs, wants=("cache", "start"))
    await run(prefill, first)
    await prefill.close()
    [cache] = first.outputs["cache"].items
    return first, cache, first.outputs["start"].items[0].data


@pytest.mark.parametrize(("size", "tiles"), [((50, 50), 1), ((50, 100), 2), ((300, 60), 4)])
async def test_only_rows_that_the_answer_looks_at_go_along(tiled: Pictured, size: tuple[int, int], tiles: int) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}, {"type": "text", "text": "?"}]
    pictures = (files.picture(1, 300, 60), files.picture(2, *size))

    _, cache, start = await prefilled(tiled, Asked([{"role": "user", "content": content}], pictures))

    # Two layers have self-attention and two cross-attention, each with two heads of 16.
    assert cache.data == {"dtype": "float32", "rows": tiles * 17}
    assert cache.array is not None
    assert cache.array.shape == (2 * 2 * 2 * 16 * (start["length"] + tiles * 17),)


@pytest.mark.parametrize("rows", [-1, 0, 16, 18, 10**12, "17", None, True])
async def test_rows_that_do_not_fit_the_cache_are_refused(tiled: Pictured, rows: object) -> None:
    _, cache, start = await prefilled(tiled, pictured(0))
    decode = DecodeRunner(core(tiled.checkpoint, tiled.family))
    await decode.load()
    wrong = Item({**cache.data, "rows": rows}, cache.array)

    with pytest.raises(ProtocolError, match="must run one model"):
        await run(decode, MemoryJob({"start": start, "cache": wrong, "params": {"max_tokens": 4}}))

    assert cache.data["rows"] == 17
    assert decode.stats()["used"] == 0
    await decode.close()


async def test_nothing_is_stored_aside_until_a_picture_comes(tiled: Pictured) -> None:
    runner = whole(tiled)
    await runner.load()
    cache: Any = runner._core.engine._steps._cache

    await run(runner, tiled.job(text(3)))
    before = list(cache._stored)
    await run(runner, tiled.job(pictured(0)))
    one = [stored.shape for stored in cache._stored]
    await run(runner, tiled.job(pictured(2)))
    await runner.close()

    assert before == []
    assert one == [torch.Size((5, 2, 17, 16))] * 4  # four slots, and the row reserved for a tenant without running work
    assert {stored.shape[2] for stored in cache._stored} == {4 * 17}


async def test_a_picture_is_never_cut_however_small_the_shares(tmp_path: Path) -> None:
    model = Pictured("gemma3", tiny.build("gemma3", tmp_path / "gemma3"))
    runner = whole(model, share=5)
    await runner.load()
    passes: list[tuple[int, bool]] = []
    thinker: Any = runner._core.thinker
    plain = thinker.forward

    def forward(inputs: torch.Tensor, positions: torch.Tensor, cache: Any, mask: Any) -> torch.Tensor:
        passes.append((inputs.shape[1], mask is not None))
        said: torch.Tensor = plain(inputs, positions, cache, mask)
        return said

    thinker.forward = forward
    await run(runner, model.job(Asked(pictured(1, 2).messages, pictured(1, 2).pictures, 1)))
    await runner.close()

    assert [size for size, masked in passes if masked] == [16, 16]
    assert max(size for size, masked in passes if not masked) == 5
