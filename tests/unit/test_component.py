"""Common behaviour of runners: loading does not count as work, and closing leaves no thread."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omnibus.executor.runner import Runner
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import component
from omnibus_engines import registry as engines
from omnibus_engines.component import Compute
from omnibus_models import tiny

FAMILY = {**dict.fromkeys(("text_encoder", "vae_encoder", "dit", "vae"), "qwen_image_edit"), "audio_vae": "ltx2"}
COMPONENTS = sorted(engines._TRANSFORMERS_RUNNERS)


@pytest.fixture(autouse=True)
def check_threads() -> Iterator[None]:
    """Fail if a thread of a component is left."""
    yield
    left = [
        one.name for one in threading.enumerate() if one.name.split("_0")[0].split("-")[0] in {*COMPONENTS, "words"}
    ]
    assert left == []


def make_runner(component: str, checkpoint: Path) -> Runner:
    family = FAMILY.get(component, "qwen2_5_omni")
    settings = ExecutorSettings(family=family, checkpoint=str(checkpoint), components=component, threads=1)
    return engines.transformers(component, settings)


@pytest.mark.parametrize("component", COMPONENTS)
async def test_what_was_never_loaded_can_be_closed(component: str, tmp_path: Path) -> None:
    await make_runner(component, tmp_path).close()


@pytest.mark.parametrize("component", COMPONENTS)
async def test_what_could_not_be_loaded_can_be_closed(component: str, tmp_path: Path) -> None:
    new_runner = make_runner(component, tmp_path)

    with pytest.raises(Exception):  # noqa: B017 - whatever the library says of an empty directory
        await new_runner.load()

    await new_runner.close()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {family: tiny.build(family, directory / family) for family in {*FAMILY.values()}}


@pytest.mark.parametrize("component", FAMILY)
async def test_loading_is_no_work(component: str, checkpoints: dict[str, Path]) -> None:
    new_runner = make_runner(component, checkpoints[FAMILY[component]])

    await new_runner.load()

    assert new_runner.busy == 0.0
    assert new_runner.stats()["parameters"] > 0
    await new_runner.close()


async def test_calls_are_made_one_after_another_without_gradients_and_are_timed() -> None:
    compute, weight = Compute("compute", 1), torch.ones(2, requires_grad=True)

    result = await compute(lambda: (weight * 2, threading.current_thread().name))

    assert not result[0].requires_grad
    assert result[1].startswith("compute")
    assert compute.clock.seconds > 0.0
    await compute.close()


@pytest.mark.skipif(sys.platform != "linux" or component._find_pause() is None, reason="needs the threads of OpenMP")
async def test_threads_that_help_end_when_there_is_nothing_to_compute():
    """They would slow down every other thread that computes."""
    compute, numbers = Compute("encoder", 3), torch.ones(1 << 20)
    await compute(torch.ones, 1)
    others = thread_ids()
    for _ in range(2):  # a thread whose helpers have ended starts others
        assert float((await compute(lambda: numbers + 1)).sum()) == 2 << 20
        helpers = thread_ids() - others
        assert len(helpers) == 2
        async with asyncio.timeout(10):
            while helpers & thread_ids():
                await asyncio.sleep(0.05)
    await compute.close()


def thread_ids() -> set[str]:
    return {each.name for each in Path("/proc/self/task").iterdir()}


async def test_they_stay_while_calls_follow_each_other(monkeypatch):
    ended: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(component, "_IDLE_SECONDS", 1.0)
    monkeypatch.setattr(
        component, "end_helpers", lambda: loop.call_soon_threadsafe(ended.put_nowait, threading.current_thread().name)
    )
    single, several = Compute("single", 1), Compute("several", 2)
    for _ in range(5):
        await asyncio.gather(single(time.sleep, 0), several(time.sleep, 0))

    async with asyncio.timeout(10):
        assert (await ended.get()).startswith("several")
    assert ended.empty()
    await asyncio.gather(single.close(), several.close())
