"""The first frame of a video, encoded at the video's size."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnibus.encoding.image import encode_image
from omnibus.errors import BadMedia, BadRequest
from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus_encoder.frame_encoder import FrameEncodeRunner
from omnibus_encoder.media_encoder import EncodeRunner
from omnibus_engines import registry as engines
from omnibus_models import tiny
from omnibus_models.contract import ImageSpec
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models import files

PIXELS = np.random.default_rng(3).integers(0, 256, (40, 70, 3), np.uint8)


@pytest.fixture(scope="module")
def ltx2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("ltx2", tmp_path_factory.mktemp("models") / "ltx2")


@pytest.fixture
async def runner(ltx2: Path) -> AsyncIterator[FrameEncodeRunner]:
    encode_runner = engines.transformers("vae_encoder", ExecutorSettings(family="ltx2", checkpoint=str(ltx2)))
    assert isinstance(encode_runner, FrameEncodeRunner)
    await encode_runner.load()
    yield encode_runner
    await encode_runner.close()


def make_job(data: bytes, modality: str = "image", **more: Any) -> MemoryJob:
    media = Item({"modality": modality}, np.frombuffer(data, np.uint8))
    return MemoryJob({"media": media, "width": 64, "height": 32, **more})


@pytest.mark.numeric
async def test_an_image_is_encoded_as_its_family_does(runner: FrameEncodeRunner, ltx2: Path) -> None:
    one = await finish_job(runner, make_job(files.make_picture(1)))
    pixel_job = await finish_job(runner, make_job(b"", media=Item({}, PIXELS)))

    encoder: Any = load_family("ltx2").load("vae_encoder", ltx2)
    for result, file in ((one, files.make_picture(1)), (pixel_job, encode_image(PIXELS, "png"))):
        reference = encoder.encode(encoder.prepare(memoryview(file), ImageSpec(64, 32, steps=1, seed=0))).numpy()
        assert reference.shape == (8, 1, 4, 8)
        assert_close(result.array("latents"), reference)
    assert one.read == ["media"]
    assert runner.stats()["images"] == 2


@pytest.mark.parametrize(
    ("invalid_job", "error", "message"),
    [
        (make_job(b"no image"), BadMedia, "image"),
        (make_job(b"", media=None), BadMedia, "has no bytes"),
        (make_job(files.make_picture(1), "audio"), BadRequest, "not audio"),
        (make_job(files.make_picture(1), width=63), BadRequest, "width must be a multiple of 8, not 63"),
        (make_job(files.make_picture(1), height=0), BadRequest, "height must be a multiple of 8, not 0"),
        (make_job(files.make_picture(1), width=8192, height=8192), BadRequest, "a frame may have"),
        (make_job(files.make_picture(1), width="wide"), BadRequest, "cannot be encoded"),
    ],
)
async def test_what_cannot_be_encoded_is_refused(
    runner: FrameEncodeRunner, invalid_job: MemoryJob, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await finish_job(runner, invalid_job)


def test_the_encoder_of_a_vae_makes_what_its_family_takes(tmp_path: Path) -> None:
    path = tiny.build("qwen_image_edit", tmp_path / "edit")

    runner = engines.transformers("vae_encoder", ExecutorSettings(family="qwen_image_edit", checkpoint=str(path)))

    assert type(runner) is EncodeRunner
