"""Encoders that treat a lone image differently. They cache both results separately."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.executor.runner import Item
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models import files

PICTURE = files.make_picture(1, 200, 120)
IMAGE, VIDEO = {"media": {"modality": "image"}}, {"media": {"modality": "video"}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("llava_onevision", tmp_path_factory.mktemp("models") / "onevision")


@pytest.fixture
async def runner(checkpoint: Path) -> AsyncIterator[EncodeRunner]:
    encode_runner = EncodeRunner(
        "vision", "llava_onevision", checkpoint, "cpu", "float32", EncodeSettings(cache=1 << 20)
    )
    await encode_runner.load()
    yield encode_runner
    await encode_runner.close()


async def encode_rows(runner: EncodeRunner, beside: Sequence[dict[str, Any]]) -> np.ndarray:
    item = Item({"modality": "image"}, np.frombuffer(PICTURE, np.uint8))
    return (await finish_job(runner, MemoryJob({"media": item}, beside=beside))).array("embedding")


@pytest.mark.numeric
async def test_a_picture_is_encoded_by_whether_others_are_beside_it(runner: EncodeRunner, checkpoint: Path) -> None:
    alone, beside = await encode_rows(runner, []), await encode_rows(runner, [IMAGE])

    encoder = load_family("llava_onevision").load("vision", checkpoint)
    for actual, is_alone in ((alone, True), (beside, False)):
        with torch.inference_mode():
            [reference] = encoder.encode([encoder.prepare(memoryview(PICTURE), "image", is_alone)])
        assert_close(actual, reference.embeds.numpy())


async def test_both_ways_are_kept_and_neither_is_taken_for_the_other(runner: EncodeRunner) -> None:
    for beside in ([], [IMAGE], [VIDEO], [IMAGE, IMAGE]):
        await encode_rows(runner, beside)

    assert (runner.stats()["cache"]["misses"], runner.stats()["cache"]["hits"]) == (2, 2)


@pytest.mark.numeric
async def test_what_another_call_makes_may_be_a_picture_too(runner: EncodeRunner) -> None:
    actual = await encode_rows(runner, [{"media": {"$ref": [0, "image"]}}])

    np.testing.assert_array_equal(actual, await encode_rows(runner, [IMAGE]))
