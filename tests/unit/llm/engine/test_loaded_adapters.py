"""LoRA adapters that arrive with requests: loaded on first use, limited in number, never mixed up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from omnibus.checkpoints.adapters import describe_adapter
from omnibus.errors import BadRequest, Conflict, Forbidden
from omnibus_llm.engine.model import AdapterLimits
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.lora import merge_adapter, widen_adapter, write_adapter
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.llm.runners.test_thinker import answer_alone, make_chat_job, make_text_chat

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

#: Adapters in the allowed directory, with different ranks and adapted layers.
LOADED: dict[str, dict[str, Any]] = {
    "pirate": {"seed": 1},
    "poet": {"seed": 2, "rank": 7, "targets": ("k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")},
    "captain": {"seed": 3, "rank": 2, "targets": ("q_proj",)},
}
SLOTS = 2


class LoadableAdapters(NamedTuple):
    """A checkpoint, its adapters, and the thinkers of the merged checkpoints. The base is ""."""

    checkpoint: Path
    root: Path
    truth: dict[str, Any]

    def describe_source(self, name: str) -> dict[str, str]:
        adapter, _ = describe_adapter(name, str(self.root), "")
        return {"path": adapter.path, "sha256": adapter.sha256}

    def make_job(self, name: str, number: int = 3, **more: Any) -> MemoryJob:
        adapter_params = {"adapter": name, "adapter_source": self.describe_source(name)} if name else {}
        return make_chat_job(make_text_chat(number), **adapter_params, **more)

    def make_core(self, **more: Any) -> Any:
        limits = AdapterLimits(str(self.root), SLOTS, 8)
        return make_core(self.checkpoint, "qwen2", **{"slots": 8, "loadable": limits, **more})


@pytest.fixture(scope="module")
def loadable_adapters(tmp_path_factory: pytest.TempPathFactory) -> LoadableAdapters:
    directory = tmp_path_factory.mktemp("adapters")
    checkpoint = tiny.build("qwen2", directory / "base")
    checkpoints = {"": checkpoint}
    for name, how in LOADED.items():
        adapter = write_adapter(checkpoint, directory / "allowed" / name, **how)
        checkpoints[name] = merge_adapter(checkpoint, adapter, directory / f"merged-{name}")
    widen_adapter(directory / "allowed" / "poet", directory / "allowed" / "wide")
    write_adapter(checkpoint, directory / "allowed" / "high", 4, rank=9)
    truth = {name: load_family("qwen2").load("thinker", path) for name, path in checkpoints.items()}
    return LoadableAdapters(checkpoint, directory / "allowed", truth)


@asynccontextmanager
async def start_runner(shelf: LoadableAdapters, **more: Any) -> AsyncIterator[ThinkRunner]:
    runner = ThinkRunner(shelf.make_core(**more))
    await runner.load()
    try:
        yield runner
    finally:
        await runner.close()


@pytest.mark.numeric
async def test_a_request_is_answered_by_the_adapter_that_it_brings_in_steps_with_others(
    loadable_adapters: LoadableAdapters,
) -> None:
    async with start_runner(loadable_adapters) as runner:
        names = ("", "pirate", "poet")
        requests = [(name, loadable_adapters.make_job(name, number)) for number in range(2) for name in names]
        await asyncio.gather(*(finish_job(runner, one) for _, one in requests))

        for name, one in requests:
            assert one.ids == answer_alone(loadable_adapters.truth[name], one)
        assert runner.stats()["loaded_adapters"] == 2
        assert max(int(size) for size in runner.stats()["batches"]) > 2
        assert len({tuple(one.ids) for _, one in requests[:3]}) == len(names)


@pytest.mark.numeric
async def test_the_least_recently_used_one_leaves_and_nothing_of_it_stays(loadable_adapters: LoadableAdapters) -> None:
    async with start_runner(loadable_adapters) as runner:
        for name in ("poet", "pirate", "poet", "captain", "pirate", "poet", ""):
            request = loadable_adapters.make_job(name)
            await finish_job(runner, request)
            assert request.ids == answer_alone(loadable_adapters.truth[name], request), name
            assert runner.stats()["loaded_adapters"] <= SLOTS


@pytest.mark.numeric
async def test_one_more_than_there_is_room_for_waits_until_a_request_has_ended(
    loadable_adapters: LoadableAdapters,
) -> None:
    async with start_runner(loadable_adapters) as runner:
        requests = [
            loadable_adapters.make_job(name, max_tokens=40) for name in ("pirate", "poet", "captain", "poet", "captain")
        ]
        await asyncio.gather(*(finish_job(runner, one) for one in requests))

        for one in requests:
            assert one.ids == answer_alone(loadable_adapters.truth[one.inputs["params"]["adapter"]], one)
        assert runner.stats()["loaded_adapters"] == SLOTS


@pytest.mark.numeric
async def test_declared_adapters_stay_beside_those_that_come(loadable_adapters: LoadableAdapters) -> None:
    async with start_runner(loadable_adapters, adapters={"captain": loadable_adapters.root / "captain"}) as runner:
        declared_job = make_chat_job(make_text_chat(3), adapter="captain")
        requests = [loadable_adapters.make_job("pirate"), loadable_adapters.make_job("poet"), declared_job]
        await asyncio.gather(*(finish_job(runner, one) for one in requests))

        for one in requests:
            assert one.ids == answer_alone(loadable_adapters.truth[one.inputs["params"]["adapter"]], one)


@pytest.mark.numeric
@pytest.mark.parametrize("near", [False, True])
async def test_both_halves_load_it(loadable_adapters: LoadableAdapters, near: bool) -> None:
    first = loadable_adapters.make_core()
    second = first if near else loadable_adapters.make_core()
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near)
    try:
        await halves.prefill.load()
        await halves.decode.load()
        requests = [loadable_adapters.make_job(name) for name in ("poet", "pirate", "")]
        answers = await asyncio.gather(*(halves.answer(one) for one in requests))
        reference_ids = [
            answer_alone(loadable_adapters.truth[one.inputs["params"].get("adapter", "")], one) for one in requests
        ]
        assert [one.ids for one in answers] == reference_ids
    finally:
        await halves.prefill.close()
        await halves.decode.close()


async def test_what_cannot_be_loaded_is_refused_and_the_others_go_on(loadable_adapters: LoadableAdapters) -> None:
    async with start_runner(loadable_adapters) as runner:
        with pytest.raises(BadRequest, match="'wide': adapter wide: .* it was trained on another model"):
            await finish_job(runner, loadable_adapters.make_job("wide"))
        with pytest.raises(BadRequest, match="rank 9, and executors load up to 8: set OMNIBUS_EXECUTOR_ADAPTER_RANK"):
            await finish_job(runner, loadable_adapters.make_job("high"))
        stale = make_chat_job(
            make_text_chat(3),
            adapter="pirate",
            adapter_source={**loadable_adapters.describe_source("pirate"), "sha256": "0" * 64},
        )
        with pytest.raises(Conflict, match="have changed since"):
            await finish_job(runner, stale)
        outside = make_chat_job(make_text_chat(3), adapter="x", adapter_source={"path": "../base", "sha256": "0" * 64})
        with pytest.raises(Forbidden, match="not below OMNIBUS_EXECUTOR_ADAPTERS_DIR"):
            await finish_job(runner, outside)

        assert runner.stats()["loaded_adapters"] == 0
        request = loadable_adapters.make_job("pirate")
        await finish_job(runner, request)
        assert request.ids == answer_alone(loadable_adapters.truth["pirate"], request)


async def test_an_executor_without_a_directory_loads_none(loadable_adapters: LoadableAdapters) -> None:
    async with start_runner(loadable_adapters, loadable=AdapterLimits()) as runner:
        with pytest.raises(Forbidden, match="set OMNIBUS_EXECUTOR_ADAPTERS_DIR"):
            await finish_job(runner, loadable_adapters.make_job("pirate"))
