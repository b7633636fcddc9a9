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
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.llm.pictures import (
    Pictured,
    PictureRequest,
    make_mixed_requests,
    make_picture_request,
    make_text_request,
)
from tests.unit.models import files

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable", "ignore:.hidden_state. is")


@pytest.fixture(scope="module", params=["gemma3", "mllama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pictured:
    directory = tmp_path_factory.mktemp("models") / request.param
    return Pictured(request.param, tiny.build(request.param, directory))


def make_runner(model: Pictured, **settings: Any) -> ThinkRunner:
    limits = ThinkSettings(**{"slots": 4, "context": 512, "share": 64, **settings})
    return ThinkRunner(ThinkerCore(model.family, model.checkpoint, "cpu", "float32", limits))


@pytest.mark.numeric
async def test_mixed_requests_that_join_and_leave_equal_the_whole_model(model: Pictured) -> None:
    runner = make_runner(model)
    await runner.load()
    requests = make_mixed_requests(12)
    jobs = [model.job(one) for one in requests]
    running = []

    for number, job in enumerate(jobs):
        running.append(asyncio.create_task(finish_job(runner, job)))
        if number % 4 == 3:
            await job.outputs["text"].until(2)
    await asyncio.gather(*running)
    await runner.close()

    assert [job.ids for job in jobs] == [model.ids(one) for one in requests]
    assert max(int(size) for size in runner.stats()["batches"]) == 4


@pytest.mark.parametrize("share", [1, 7, 40, 4096])
async def test_a_prompt_in_shares_gives_the_same_answer(model: Pictured, share: int) -> None:
    runner = make_runner(model, slots=2, share=share)
    await runner.load()
    requests = [make_picture_request(2, 2), make_text_request(12), make_picture_request(3)]
    jobs = [model.job(one) for one in requests]

    await asyncio.gather(*(finish_job(runner, job) for job in jobs))
    await runner.close()

    assert [job.ids for job in jobs] == [model.ids(one) for one in requests]


async def test_a_slot_that_others_had_is_as_new(model: Pictured) -> None:
    runner = make_runner(model, slots=1)
    await runner.load()
    requests = [
        make_picture_request(5, 3),
        make_text_request(4),
        make_picture_request(1),
        make_text_request(9),
        make_picture_request(2, 2),
    ]

    answers = [await finish_job(runner, model.job(one)) for one in requests]
    await runner.close()

    assert [job.ids for job in answers] == [model.ids(one) for one in requests]


@pytest.mark.numeric
async def test_a_broken_picture_fails_only_its_own_request(model: Pictured) -> None:
    runner = make_runner(model)
    await runner.load()
    requests = [*make_mixed_requests(5), make_text_request(7)]
    bad = model.job(make_picture_request(1))
    [item] = bad.inputs["items"]
    bad._inputs["items"] = [item._replace(array=np.full_like(item.array, np.nan))]
    jobs = [bad, *map(model.job, requests)]

    results = await asyncio.gather(*(finish_job(runner, job) for job in jobs), return_exceptions=True)
    after = await finish_job(runner, model.job(make_picture_request(4)))
    await runner.close()

    assert isinstance(results[0], Fatal)
    assert [job.ids for job in jobs[1:]] == [model.ids(one) for one in requests]
    assert after.ids == model.ids(make_picture_request(4))


async def test_a_sampled_answer_does_not_depend_on_company_and_shares(model: Pictured) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "repetition_penalty": 1.2}
    answers = []

    for share in (5, 64):
        runner = make_runner(model, share=share)
        await runner.load()
        one = model.job(make_picture_request(2, 2), **settings)
        await asyncio.gather(
            finish_job(runner, one),
            *(finish_job(runner, model.job(other)) for other in make_mixed_requests(share // 16)),
        )
        answers.append(one.ids)
        await runner.close()

    assert answers[0] == answers[1]


async def test_pictures_are_counted_as_tokens_of_the_prompt(model: Pictured) -> None:
    runner = make_runner(model)
    await runner.load()

    job = await finish_job(runner, model.job(make_picture_request(1, 2)))
    await runner.close()

    usage = job.end("text")["usage"]
    assert usage["image_tokens"] == (2 if model.family == "mllama" else 32)
    assert usage["image_tokens"] < usage["prompt_tokens"]


@pytest.fixture(params=["apart", "together"])
async def halves(request: pytest.FixtureRequest, model: Pictured) -> AsyncIterator[Halves]:
    near = request.param == "together"
    first = make_core(model.checkpoint, model.family, share=9)
    runners = Halves(
        PrefillRunner(first), DecodeRunner(first if near else make_core(model.checkpoint, model.family)), near
    )
    await runners.prefill.load()
    await runners.decode.load()
    yield runners
    await runners.prefill.close()
    await runners.decode.close()


@pytest.mark.numeric
async def test_halves_answer_as_the_whole_model(model: Pictured, halves: Halves) -> None:
    requests = make_mixed_requests(9)

    answers = await asyncio.gather(*(halves.answer(model.job(one)) for one in requests))

    assert [answer.ids for answer in answers] == [model.ids(one) for one in requests]
    assert halves.prefill.stats()["used"] == halves.decode.stats()["used"] == 0


@pytest.fixture(scope="module")
def tiled_model(tmp_path_factory: pytest.TempPathFactory) -> Pictured:
    return Pictured("mllama", tiny.build("mllama", tmp_path_factory.mktemp("models") / "tiled"))


async def run_prefill(model: Pictured, request: PictureRequest) -> tuple[MemoryJob, Item, dict[str, Any]]:
    """Return the job of a prefill, its cache and its start."""
    prefill = PrefillRunner(make_core(model.checkpoint, model.family, decodes=False))
    await prefill.load()
    job = model.job(request)
    first = MemoryJob(job._inputs, wants=("cache", "start"))
    await finish_job(prefill, first)
    await prefill.close()
    [cache] = first.outputs["cache"].items
    return first, cache, first.outputs["start"].items[0].data


@pytest.mark.parametrize(("size", "tiles"), [((50, 50), 1), ((50, 100), 2), ((300, 60), 4)])
async def test_only_rows_that_the_answer_looks_at_go_along(
    tiled_model: Pictured, size: tuple[int, int], tiles: int
) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}, {"type": "text", "text": "?"}]
    pictures = (files.make_picture(1, 300, 60), files.make_picture(2, *size))

    _, cache, start = await run_prefill(tiled_model, PictureRequest([{"role": "user", "content": content}], pictures))

    # Two layers have self-attention and two cross-attention, each with two heads of 16.
    assert cache.data == {"dtype": "float32", "rows": tiles * 17}
    assert cache.array is not None
    assert cache.array.shape == (2 * 2 * 2 * 16 * (start["length"] + tiles * 17),)


@pytest.mark.parametrize("rows", [-1, 0, 16, 18, 10**12, "17", None, True])
async def test_rows_that_do_not_fit_the_cache_are_refused(tiled_model: Pictured, rows: object) -> None:
    _, cache, start = await run_prefill(tiled_model, make_picture_request(0))
    decode = DecodeRunner(make_core(tiled_model.checkpoint, tiled_model.family))
    await decode.load()
    wrong = Item({**cache.data, "rows": rows}, cache.array)

    with pytest.raises(ProtocolError, match="must run one model"):
        await finish_job(decode, MemoryJob({"start": start, "cache": wrong, "params": {"max_tokens": 4}}))

    assert cache.data["rows"] == 17
    assert decode.stats()["used"] == 0
    await decode.close()


async def test_nothing_is_stored_aside_until_a_picture_comes(tiled_model: Pictured) -> None:
    runner = make_runner(tiled_model)
    await runner.load()
    cache: Any = runner._core.engine._steps._cache

    await finish_job(runner, tiled_model.job(make_text_request(3)))
    before = list(cache._stored)
    await finish_job(runner, tiled_model.job(make_picture_request(0)))
    one = [tensor.shape for tensor in cache._stored]
    await finish_job(runner, tiled_model.job(make_picture_request(2)))
    await runner.close()

    assert before == []
    assert one == [torch.Size((5, 2, 17, 16))] * 4  # four slots, and the row reserved for a tenant without running work
    assert {stored_tensor.shape[2] for stored_tensor in cache._stored} == {4 * 17}


async def test_a_picture_is_never_cut_however_small_the_shares(tmp_path: Path) -> None:
    model = Pictured("gemma3", tiny.build("gemma3", tmp_path / "gemma3"))
    runner = make_runner(model, share=5)
    await runner.load()
    passes: list[tuple[int, bool]] = []
    thinker: Any = runner._core.thinker
    plain = thinker.forward

    def record_forward(inputs: torch.Tensor, positions: torch.Tensor, cache: Any, mask: Any) -> torch.Tensor:
        passes.append((inputs.shape[1], mask is not None))
        hidden: torch.Tensor = plain(inputs, positions, cache, mask)
        return hidden

    thinker.forward = record_forward
    await finish_job(
        runner, model.job(PictureRequest(make_picture_request(1, 2).messages, make_picture_request(1, 2).pictures, 1))
    )
    await runner.close()

    assert [size for size, is_masked in passes if is_masked] == [16, 16]
    assert max(size for size, has_mask in passes if not has_mask) == 5
