"""Goals change the contents of steps, never the answers."""

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.step_budget import NO_GOALS, CostTable, StepGoals
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_engines import registry as engines
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Thinker
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import answer_alone, make_chat_job, make_mixed_jobs, make_picture_chat

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

LOOSE, TIGHT = StepGoals(ttft=30.0, tbt=30.0), StepGoals(ttft=1e-6, tbt=1e-6)


def make_core(vl: Path, goals: StepGoals, **more: Any) -> ThinkerCore:
    return ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=4, context=256, goals=goals, **more))


async def test_without_goals_the_share_is_that_of_the_settings(vl: Path) -> None:
    runner = ThinkRunner(make_core(vl, NO_GOALS, share=77))

    await runner.load()

    assert runner.stats()["budget"] == {"beside": 77, "alone": 77, "items": 1}
    await runner.close()


@pytest.mark.parametrize(("goals", "tokens"), [(LOOSE, 256), (TIGHT, 16)])
async def test_budgets_are_measured_for_goals_and_answers_stay_the_same(
    vl: Path, thinker: Thinker, goals: StepGoals, tokens: int
) -> None:
    runner = ThinkRunner(make_core(vl, goals))
    await runner.load()
    jobs = make_mixed_jobs(8)

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    # For one, two and four sequences that decode, unless one alone takes longer than the goal.
    beside = dict.fromkeys(("1", "2", "4") if goals is LOOSE else ("1",), tokens)
    assert runner.stats()["budget"] == {"beside": tokens, "alone": tokens, "items": 1, "beside_sequences": beside}
    assert [one.ids for one in jobs] == [answer_alone(thinker, one) for one in jobs]
    await runner.close()


def make_file(seed: int) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 255, (60 + 28 * (seed % 3), 90, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return np.frombuffer(out.getvalue(), np.uint8)


def make_upload(seed: int) -> MemoryJob:
    return MemoryJob(
        {"media": Item({"modality": "image", "mime": "image/png", "sha256": f"{seed:064}"}, make_file(seed))}
    )


async def run_chat(vision: EncodeRunner, llm: ThinkRunner, seed: int) -> MemoryJob:
    """Run an image through both runners, as an executor of both would."""
    encode = make_upload(seed)
    think = make_chat_job(make_picture_chat(seed % 4), [encode.outputs["embedding"]], max_tokens=4 + seed)
    await asyncio.gather(finish_job(vision, encode), finish_job(llm, think))
    return think


@pytest.mark.parametrize("goals", [LOOSE, TIGHT], ids=["loose", "tight"])
async def test_an_encoder_in_the_same_loop_changes_no_answer(vl: Path, thinker: Thinker, goals: StepGoals) -> None:
    shared_core = make_core(vl, goals, beside=True)
    source = ("vision", "qwen2_5_vl", vl, "cpu", "float32")
    vision, llm = EncodeRunner(*source, EncodeSettings(goals=goals), shared_core), ThinkRunner(shared_core)
    apart, other = EncodeRunner(*source, EncodeSettings()), ThinkRunner(make_core(vl, NO_GOALS))
    for runner in (vision, llm, apart, other):
        await runner.load()

    together = await asyncio.gather(*(run_chat(vision, llm, seed) for seed in range(10)))
    references = [await run_chat(apart, other, seed) for seed in range(10)]

    assert [one.ids for one in together] == [one.ids for one in references]
    # The minimum is one image of the measured size.
    assert vision._batcher.budget[:3] == ((16384, 16384, 16) if goals is LOOSE else (64, 64, 16))
    assert vision._batcher.budget.costs is not None
    assert (shared_core.schedule.used, shared_core.schedule.media) == (0, 0)
    for runner in (vision, llm, apart, other):
        await runner.close()


async def test_a_cancelled_item_leaves_the_shared_loop(vl: Path) -> None:
    shared_core = make_core(vl, LOOSE, beside=True)
    vision = EncodeRunner(
        "vision", "qwen2_5_vl", vl, "cpu", "float32", EncodeSettings(items=1, goals=LOOSE), shared_core
    )
    await vision.load()
    running = [asyncio.create_task(finish_job(vision, make_upload(seed))) for seed in range(4)]
    while not shared_core.schedule.media:
        await asyncio.sleep(0)

    for task in running[1:]:
        task.cancel()
    first, *other_results = await asyncio.gather(*running, return_exceptions=True)

    assert isinstance(first, MemoryJob)
    assert all(isinstance(other, asyncio.CancelledError) for other in other_results)
    assert shared_core.schedule.media == 0
    await vision.close()


def make_settings(vl: Path, components: str, **more: Any) -> ExecutorSettings:
    return ExecutorSettings(
        model="m", family="qwen2_5_vl", checkpoint=str(vl), components=components, batch=4, context=256, **more
    )


async def test_all_parts_of_a_language_model_in_one_executor_share_one_loaded_model(vl: Path) -> None:
    executor_settings = make_settings(vl, "vision,prefill,decode", tbt=30.0)

    runners = [
        engines.transformers(component, executor_settings) for component in executor_settings.components.split(",")
    ]
    for runner in runners:
        await runner.load()

    vision, prefill, decode = runners
    assert isinstance(vision, EncodeRunner)
    assert isinstance(prefill, PrefillRunner)
    assert isinstance(decode, DecodeRunner)
    assert prefill._core is decode._core is vision._loop
    assert prefill._core.schedule.budget[:3] == (256, 512, 1)
    for runner in runners:
        await runner.close()


def test_an_encoder_goes_its_own_way_without_goals_or_without_a_language_model(vl: Path) -> None:
    for executor_settings in (
        make_settings(vl, "vision,thinker"),
        make_settings(vl, "vision", tbt=1.0),
        make_settings(vl, "vision,talker", tbt=1.0),
    ):
        runner = engines.transformers("vision", executor_settings)

        assert isinstance(runner, EncodeRunner)
        assert runner._loop is None


def test_executors_do_not_share_what_they_load(vl: Path) -> None:
    one, two = (engines.transformers("prefill", make_settings(vl, "prefill", id=name)) for name in ("a", "b"))

    assert isinstance(one, PrefillRunner)
    assert isinstance(two, PrefillRunner)
    assert one._core is not two._core


async def test_prompts_have_what_the_sequences_that_decode_now_leave_of_a_step(vl: Path) -> None:
    runner = ThinkRunner(make_core(vl, StepGoals(tbt=1.0)))
    await runner.load()
    schedule = runner._core.schedule
    assert schedule.costs.decode is not None
    # The costs: a third of a second per sequence, and a millisecond per token of a prompt.
    schedule.costs = schedule.costs._replace(decode=CostTable([(1, 0.3), (2, 0.6), (4, 1.2)]))
    schedule.budget = schedule.budget._replace(costs=CostTable([(16, 0.016), (256, 0.256)]), beside=4096, alone=4096)

    assert runner.stats()["budget"]["beside_sequences"] == {"1": 700, "2": 400, "4": 16}
    await runner.close()


async def test_a_long_prompt_stops_nobodys_tokens(vl: Path, thinker: Thinker) -> None:
    runner = ThinkRunner(make_core(vl, TIGHT))
    await runner.load()
    first, long = (
        make_chat_job([{"role": "user", "content": "hi"}], max_tokens=200),
        make_chat_job(make_story(), max_tokens=2),
    )
    running = [asyncio.create_task(finish_job(runner, first))]
    await first.outputs["text"].until(1)
    before = len(first.ids)

    running.append(asyncio.create_task(finish_job(runner, long)))
    await long.outputs["text"].until(1)
    meanwhile = len(first.ids) - before
    await asyncio.gather(*running)

    # Sixteen tokens of the prompt are computed with every token of the other answer.
    assert meanwhile >= long.end("text")["usage"]["prompt_tokens"] // 16
    assert [first.ids, long.ids] == [answer_alone(thinker, first), answer_alone(thinker, long)]
    await runner.close()


def make_story() -> list[dict[str, object]]:
    return [{"role": "user", "content": " ".join(["the cat sleeps"] * 40)}]
