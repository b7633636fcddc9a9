"""LoRA adapters: each answers like its merged model, alone or in a batch, and the base is unchanged."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from omnibus.checkpoints.adapters import read_adapter
from omnibus.errors import BadRequest, NotFound
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.adapters import AdaptedLinear, attach_adapters, match_modules
from omnibus_models.families import load_family
from tests.lora import merge_adapter, widen_adapter, write_adapter
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.llm.runners.test_thinker import (
    answer_alone,
    make_chat_job,
    make_embedding,
    make_picture_chat,
    make_text_chat,
)

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

#: Names, and differences of their adapters, including rank and adapted layers.
ADAPTERS: dict[str, dict[str, Any]] = {
    "pirate": {"seed": 1},
    "poet": {"seed": 2, "rank": 7, "targets": ("k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")},
}
NAMES = ("", *ADAPTERS)
#: Maximum difference of an adapter's hidden rows from those of the merged model, in float32.
BOUND = 2e-5


class AdaptedModels(SimpleNamespace):
    """A checkpoint, its adapters' directories, and the merged checkpoints; "" is the base."""

    family: str
    checkpoint: Path
    adapters: dict[str, Path]
    merged: dict[str, Path]


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AdaptedModels:
    directory, family = tmp_path_factory.mktemp("adapters"), str(request.param)
    checkpoint = tiny.build(family, directory / "base")
    adapters = {name: write_adapter(checkpoint, directory / name, **how) for name, how in ADAPTERS.items()}
    merged_paths = {name: merge_adapter(checkpoint, adapters[name], directory / f"merged-{name}") for name in adapters}
    return AdaptedModels(
        family=family, checkpoint=checkpoint, adapters=adapters, merged={"": checkpoint, **merged_paths}
    )


@pytest.fixture(scope="module")
def merged_thinkers(models: AdaptedModels) -> dict[str, Any]:
    """The thinkers of the merged checkpoints."""
    return {name: load_family(models.family).load("thinker", path) for name, path in models.merged.items()}


@pytest.fixture(scope="module")
def adapted_thinker(models: AdaptedModels) -> Any:
    thinker = load_family(models.family).load("thinker", models.checkpoint)
    attach_adapters(thinker, models.adapters)
    return thinker


@asynccontextmanager
async def start_runner(models: AdaptedModels) -> AsyncIterator[ThinkRunner]:
    runner = ThinkRunner(make_core(models.checkpoint, models.family, slots=8, adapters=models.adapters))
    await runner.load()
    try:
        yield runner
    finally:
        await runner.close()


def compute_hidden(thinker: Any, ids: Sequence[Sequence[int]], names: Sequence[str] = ()) -> Tensor:
    """Return hidden rows of equally long prompts, each with its adapter."""
    inputs = thinker.embed(torch.tensor(ids))
    places = torch.arange(inputs.shape[1]).expand(thinker.axes, len(ids), -1)
    if not names:
        return thinker.forward(inputs, places, None, None)  # type: ignore[no-any-return]
    with thinker.adapters.chosen([thinker.adapters.numbers.get(name) for name in names]):
        return thinker.forward(inputs, places, None, None)  # type: ignore[no-any-return]


IDS = [[5, 9, 3, 17, 2, 8], [4, 4, 12, 6, 9, 1], [7, 3, 2, 11, 5, 6], [9, 1, 1, 2, 3, 5]]


@pytest.mark.numeric
def test_each_row_of_a_pass_is_that_of_its_merged_model(adapted_thinker: Any, merged_thinkers: dict[str, Any]) -> None:
    for names in (("pirate",), ("poet", "", "pirate", "poet")):
        actual = compute_hidden(adapted_thinker, IDS[: len(names)], names)

        for row, name in enumerate(names):
            reference = compute_hidden(merged_thinkers[name], [IDS[row]])[0]
            assert (actual[row] - reference).abs().max() < BOUND
            assert (
                name == ""
                or (reference - compute_hidden(merged_thinkers[""], [IDS[row]])[0]).abs().max() > 1000 * BOUND
            )


def test_rows_without_an_adapter_are_the_bases_bit_for_bit(
    adapted_thinker: Any, merged_thinkers: dict[str, Any]
) -> None:
    base = compute_hidden(merged_thinkers[""], IDS[:3])

    assert torch.equal(compute_hidden(adapted_thinker, IDS[:3]), base)
    assert torch.equal(compute_hidden(adapted_thinker, IDS[:3], ("", "", "")), base)
    assert torch.equal(compute_hidden(adapted_thinker, IDS[:3], ("pirate", "", "poet"))[1], base[1])


class CountedOperations(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_a_pass_without_adapters_computes_nothing_more(adapted_thinker: Any, merged_thinkers: dict[str, Any]) -> None:
    counts = []
    for thinker, names in (
        (merged_thinkers[""], ()),
        (adapted_thinker, ("", "", "")),
        (adapted_thinker, ("", "poet", "")),
    ):
        with CountedOperations() as operations:
            compute_hidden(thinker, IDS[:3], names)
        counts.append(operations.counts)

    assert counts[0] == counts[1]
    assert counts[2].total() > counts[0].total()
    assert not any(isinstance(layer, AdaptedLinear) for layer in merged_thinkers[""].backbone.modules())


@pytest.mark.numeric
async def test_requests_of_all_adapters_share_steps_and_answer_as_the_merged_models(
    models: AdaptedModels, merged_thinkers: dict[str, Any]
) -> None:
    async with start_runner(models) as runner:
        jobs = [(name, make_chat_job(make_text_chat(number), adapter=name)) for number in range(2) for name in NAMES]
        if models.family == "qwen2_5_vl":
            jobs += [
                (name, make_chat_job(make_picture_chat(3), [make_embedding(1)], adapter=name))
                for name in ("pirate", "")
            ]
        await asyncio.gather(*(finish_job(runner, one) for _, one in jobs))

        for name, one in jobs:
            assert one.ids == answer_alone(merged_thinkers[name], one)
        assert max(int(size) for size in runner.stats()["batches"]) == len(jobs)
        assert len({tuple(one.ids) for _, one in jobs[:3]}) == len(NAMES)


@pytest.mark.numeric
@pytest.mark.parametrize("near", [False, True])
async def test_both_halves_have_the_adapter(models: AdaptedModels, merged_thinkers: dict[str, Any], near: bool) -> None:
    first = make_core(models.checkpoint, models.family, adapters=models.adapters)
    second = first if near else make_core(models.checkpoint, models.family, adapters=models.adapters)
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near)
    try:
        await halves.prefill.load()
        await halves.decode.load()
        jobs = [(name, make_chat_job(make_text_chat(5), adapter=name)) for name in NAMES]
        answers = await asyncio.gather(*(halves.answer(one) for _, one in jobs))
        assert [one.ids for one in answers] == [answer_alone(merged_thinkers[name], one) for name, one in jobs]
    finally:
        await halves.prefill.close()
        await halves.decode.close()


async def test_equal_prompts_of_an_invocation_are_shared_by_one_adapter_alone(
    models: AdaptedModels, merged_thinkers: dict[str, Any]
) -> None:
    def make_choices(*names: str) -> Iterator[MemoryJob]:
        for name in names:
            params = {"max_tokens": 8, "ignore_eos": True, "adapter": name}
            yield MemoryJob({"messages": make_text_chat(4), "params": params}, invocation="several", first_equal=0)

    async with start_runner(models) as runner:
        together = [*make_choices("poet", "poet", "", "pirate")]
        await asyncio.gather(*(finish_job(runner, one) for one in together))

        assert runner.stats()["copied_prompts"] == 1
        for one in together:
            assert one.ids == answer_alone(merged_thinkers[one.inputs["params"]["adapter"]], one)


async def test_an_unknown_adapter_is_not_found(models: AdaptedModels) -> None:
    async with start_runner(models) as runner:
        with pytest.raises(NotFound, match="no adapter 'captain'"):
            await finish_job(runner, make_chat_job(make_text_chat(1), adapter="captain"))


def test_an_adapter_of_another_model_is_refused(models: AdaptedModels, tmp_path: Path) -> None:
    other = widen_adapter(models.adapters["poet"], tmp_path / "other")
    thinker = load_family(models.family).load("thinker", models.checkpoint)

    with pytest.raises(BadRequest, match="it was trained on another model"):
        attach_adapters(thinker, {"other": other})
    assert thinker.adapters is None


@pytest.mark.parametrize("module", ["lm_head", "model.visual.blocks.0.attn.qkv", "model.layers.99.self_attn.q_proj"])
def test_layers_that_are_not_the_language_models_are_refused(
    adapted_thinker: Any, models: AdaptedModels, module: str
) -> None:
    read = read_adapter(models.adapters["pirate"])._replace(modules={module: (8, 8)})

    with pytest.raises(BadRequest, match=f"module {module} does not support LoRA"):
        match_modules(load_family(models.family).load("thinker", models.checkpoint), read)


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_their_rank(models: AdaptedModels, tmp_path: Path) -> None:
    adapter = write_adapter(models.checkpoint, tmp_path / "stable", 3, strength=0.1)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "use_rslora": True}))
    thinker = load_family(models.family).load("thinker", models.checkpoint)
    attach_adapters(thinker, {"stable": adapter})
    merged_thinker = load_family(models.family).load(
        "thinker", merge_adapter(models.checkpoint, adapter, tmp_path / "merged")
    )

    assert (compute_hidden(thinker, IDS[:1], ("stable",)) - compute_hidden(merged_thinker, IDS[:1])).abs().max() < BOUND
