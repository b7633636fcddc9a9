"""LoRA adapters that arrive with requests: loaded on first use, limited in number, never mixed up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from omnibus.checkpoints.adapter_source import describe_adapter
from omnibus.errors import BadRequest, Conflict, Forbidden
from omnibus_llm.engine.adapter_slots import AdapterLimits
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.lora import merge_adapter, widen_adapter, write_adapter
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.halves import Halves, core
from tests.unit.llm.runners.test_thinker import alone, job, text

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

#: Adapters in the allowed directory, with different ranks and adapted layers.
LOADED: dict[str, dict[str, Any]] = {
    "pirate": {"seed": 1},
    "poet": {"seed": 2, "rank": 7, "targets": ("k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")},
    "captain": {"seed": 3, "rank": 2, "targets": ("q_proj",)},
}
SLOTS = 2


class Shelf(NamedTuple):
    """A checkpoint, its adapters, and the thinkers of the merged checkpoints. The base is ""."""

    checkpoint: Path
    root: Path
    truth: dict[str, Any]

    def source(self, name: str) -> dict[str, str]:
        found, _ = describe_adapter(name, str(self.root), "")
        return {"path": found.path, "sha256": found.sha256}

    def job(self, name: str, number: int = 3, **more: Any) -> MemoryJob:
        chosen = {"adapter": name, "adapter_source": self.source(name)} if name else {}
        return job(text(number), **chosen, **more)

    def core(self, **more: Any) -> Any:
        limits = AdapterLimits(str(self.root), SLOTS, 8)
        return core(self.checkpoint, "qwen2", **{"slots": 8, "loadable": limits, **more})


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    directory = tmp_path_factory.mktemp("adapters")
    checkpoint = tiny.build("qwen2", directory / "base")
    merged = {"": checkpoint}
    for name, how in LOADED.items():
        adapter = write_adapter(checkpoint, directory / "allowed" / name, **how)
        merged[name] = merge_adapter(checkpoint, adapter, directory / f"merged-{name}")
    widen_adapter(directory / "allowed" / "poet", directory / "allowed" / "wide")
    write_adapter(checkpoint, directory / "allowed" / "high", 4, rank=9)
    truth = {name: load_family("qwen2").load("thinker", path) for name, path in merged.items()}
    return Shelf(checkpoint, directory / "allowed", truth)


@asynccontextmanager
async def running(shelf: Shelf, **more: Any) -> AsyncIterator[ThinkRunner]:
    runner = ThinkRunner(shelf.core(**more))
    await runner.load()
    try:
        yield runner
    finally:
        await runner.close()


@pytest.mark.numeric
async def test_a_request_is_answered_by_the_adapter_that_it_brings_in_steps_with_others(shelf: Shelf) -> None:
    async with running(shelf) as runner:
        names = ("", "pirate", "poet")
        asked = [(name, shelf.job(name, number)) for number in range(2) for name in names]
        await asyncio.gather(*(run(runner, one) for _, one in asked))

        for name, one in asked:
            assert one.ids == alone(shelf.truth[name], one)
        assert runner.stats()["loaded_adapters"] == 2
        assert max(int(size) for size in runner.stats()["batches"]) > 2
        assert len({tuple(one.ids) for _, one in asked[:3]}) == len(names)


@pytest.mark.numeric
async def test_the_least_recently_used_one_leaves_and_nothing_of_it_stays(shelf: Shelf) -> None:
    async with running(shelf) as runner:
        for name in ("poet", "pirate", "poet", "captain", "pirate", "poet", ""):
            asked = shelf.job(name)
            await run(runner, asked)
            assert asked.ids == alone(shelf.truth[name], asked), name
            assert runner.stats()["loaded_adapters"] <= SLOTS


@pytest.mark.numeric
async def test_one_more_than_there_is_room_for_waits_until_a_request_has_ended(shelf: Shelf) -> None:
    async with running(shelf) as runner:
        asked = [shelf.job(name, max_tokens=40) for name in ("pirate", "poet", "captain", "poet", "captain")]
        await asyncio.gather(*(run(runner, one) for one in asked))

        for one in asked:
            assert one.ids == alone(shelf.truth[one.inputs["params"]["adapter"]], one)
        assert runner.stats()["loaded_adapters"] == SLOTS


@pytest.mark.numeric
async def test_declared_adapters_stay_beside_those_that_come(shelf: Shelf) -> None:
    async with running(shelf, adapters={"captain": shelf.root / "captain"}) as runner:
        declared = job(text(3), adapter="captain")
        asked = [shelf.job("pirate"), shelf.job("poet"), declared]
        await asyncio.gather(*(run(runner, one) for one in asked))

        for one in asked:
            assert one.ids == alone(shelf.truth[one.inputs["params"]["adapter"]], one)


@pytest.mark.numeric
@pytest.mark.parametrize("near", [False, True])
async def test_both_halves_load_it(shelf: Shelf, near: bool) -> None:
    first = shelf.core()
    second = first if near else shelf.core()
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near)
    try:
        await halves.prefill.load()
        await halves.decode.load()
        asked = [shelf.job(name) for name in ("poet", "pirate", "")]
        answers = await asyncio.gather(*(halves.answer(one) for one in asked))
        expected = [alone(shelf.truth[one.inputs["params"].get("adapter", "")], one) for one in asked]
        assert [one.ids for one in answers] == expected
    finally:
        await halves.prefill.close()
        await halves.decode.close()


async def test_what_cannot_be_loaded_is_refused_and_the_others_go_on(shelf: Shelf) -> None:
    async with running(shelf) as runner:
        with pytest.raises(BadRequest, match="'wide': adapter wide: .* it was trained on another model"):
            await run(runner, shelf.job("wide"))
        with pytest.raises(BadRequest, match="rank 9, and executors load up to 8: set OMNIBUS_EXECUTOR_ADAPTER_RANK"):
            await run(runner, shelf.job("high"))
        stale = job(text(3), adapter="pirate", adapter_source={**shelf.source("pirate"), "sha256": "0" * 64})
        with pytest.raises(Conflict, match="have changed since"):
            await run(runner, stale)
        outside = job(text(3), adapter="x", adapter_source={"path": "../base", "sha256": "0" * 64})
        with pytest.raises(Forbidden, match="not below OMNIBUS_EXECUTOR_ADAPTERS_DIR"):
            await run(runner, outside)

        assert runner.stats()["loaded_adapters"] == 0
        asked = shelf.job("pirate")
        await run(runner, asked)
        assert asked.ids == alone(shelf.truth["pirate"], asked)


async def test_an_executor_without_a_directory_loads_none(shelf: Shelf) -> None:
    async with running(shelf, loadable=AdapterLimits()) as runner:
        with pytest.raises(Forbidden, match="set OMNIBUS_EXECUTOR_ADAPTERS_DIR"):
            await run(runner, shelf.job("pirate"))
