"""Common behaviour of runners: loading does not count as work, and closing leaves no thread."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omnibus.executor.runner import Runner
from omnibus.executor.settings import ExecutorSettings
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
