"""Pipelines of diffusers without code of their own: the components make what the library's pipeline makes."""

import asyncio
import base64
import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import httpx
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from omnibus.bus import messages
from omnibus.encoding.video import VideoWriter
from omnibus_models import tiny
from omnibus_models.modular import blocks, components
from omnibus_models.tiny import _pipelines
from tests.e2e.apps.estate import read_error
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.watch import Watch
from tests.unit.gateway.videos.studio import decode_video

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")]

PAINTER, DIRECTOR = "modular-image-tiny", "modular-video-tiny"
#: A pipeline that takes masks.
RETOUCHER = "retoucher"
APART, TOGETHER = "T>D>V", "M"
WISH: dict[str, Any] = {"model": PAINTER, "prompt": "a red square", "size": "48x32", "steps": 3, "seed": 1}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("checkpoints")
    checkpoints = {
        name: tiny.build(name.removesuffix("-tiny").replace("-", "_"), directory / name) for name in (PAINTER, DIRECTOR)
    }
    _pipelines.write_copy(diffusers.StableDiffusionXLModularPipeline, directory / RETOUCHER)
    return {**checkpoints, RETOUCHER: directory / RETOUCHER}


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[System]:
    models = {
        PAINTER: declare_model("modular_image", checkpoints[PAINTER]),
        DIRECTOR: declare_model("modular_video", checkpoints[DIRECTOR]),
        RETOUCHER: declare_model("modular_image", checkpoints[RETOUCHER]),
    }
    with start_system(tmp_path_factory.mktemp("studio"), models) as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(studio: System) -> dict[str, int]:
    pids = await studio.whole()
    await studio.becomes_ready()
    return pids


@cache
def load_pipeline(checkpoint: Path, cls: str = "DiffusionPipeline") -> Any:
    pipeline = getattr(diffusers, cls).from_pretrained(checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def encode_png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


async def generate_image(studio: System, path: str = "", **changes: Any) -> bytes:
    async with studio.http() as http:
        headers = {"x-omnibus-path": path} if path else {}
        answer = await http.post("/v1/images/generations", json={**WISH, **changes}, headers=headers)
    assert answer.status_code == 200, answer.text
    return base64.b64decode(answer.json()["data"][0]["b64_json"])


def expected_image(checkpoint: Path, seed: int = 1, guidance: float = 3.5) -> Image.Image:
    """The image of the library's own pipeline, which has no blocks."""
    generator = torch.Generator().manual_seed(seed)
    size = {"width": 48, "height": 32}
    output = load_pipeline(checkpoint)(
        WISH["prompt"], **size, num_inference_steps=3, generator=generator, guidance_scale=guidance
    )
    image: Image.Image = output.images[0]
    return image


@pytest.mark.cell("transformers", "modular_image", "pixels", shape=(APART, TOGETHER))
async def test_an_image_is_that_of_the_pipeline_apart_and_together(studio: System, checkpoints: dict[str, Path]):
    apart, together = await generate_image(studio, APART), await generate_image(studio, TOGETHER)
    guided = await generate_image(studio, guidance=7.0)

    expected = expected_image(checkpoints[PAINTER])
    assert apart == together
    np.testing.assert_array_equal(Image.open(io.BytesIO(apart)), expected)
    assert np.std(expected) > 5
    np.testing.assert_array_equal(Image.open(io.BytesIO(guided)), expected_image(checkpoints[PAINTER], guidance=7.0))
    assert guided != apart
    await studio.ledger_is_empty()


async def test_images_of_many_requests_at_once_are_each_their_own(studio: System, checkpoints: dict[str, Path]):
    files = await asyncio.gather(*(generate_image(studio, seed=seed) for seed in range(4)))

    for seed, file in enumerate(files):
        np.testing.assert_array_equal(Image.open(io.BytesIO(file)), expected_image(checkpoints[PAINTER], seed))
    assert len({*files}) == 4


async def test_a_client_that_leaves_stops_the_steps(studio: System):
    async with Watch.on(studio) as watch, studio.http() as http:
        with pytest.raises(httpx.ReadTimeout):
            # More than a minute of steps.
            await http.post("/v1/images/generations", json={**WISH, "size": "512x512", "steps": 1000}, timeout=2)
        end = messages.decode_end((await watch.first("omnibus.end.")).data)
        await studio.ledger_is_empty()

    assert end.status == "cancelled"


async def test_an_image_starts_from_another_one_as_in_the_pipeline(studio: System, checkpoints: dict[str, Path]):
    source = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 96, 3), np.uint8))
    fields = {**{name: str(value) for name, value in WISH.items()}, "steps": "4"}
    async with studio.http() as http:
        answer = await http.post(
            "/v1/images/edits", data=fields, files={"image": ("a.png", encode_png(source), "image/png")}
        )
    assert answer.status_code == 200, answer.text
    file = base64.b64decode(answer.json()["data"][0]["b64_json"])

    expected = load_pipeline(checkpoints[PAINTER], "FluxImg2ImgPipeline")(
        WISH["prompt"], image=source, width=48, height=32, num_inference_steps=4, strength=0.6, guidance_scale=3.5,
        generator=torch.Generator().manual_seed(1),
    ).images[0]  # fmt: skip
    np.testing.assert_array_equal(Image.open(io.BytesIO(file)), expected)
    assert np.any(np.asarray(expected) != np.asarray(expected_image(checkpoints[PAINTER])))
    await studio.ledger_is_empty()


@pytest.mark.parametrize("path", [APART, TOGETHER])
async def test_a_mask_says_where_an_image_changes(studio: System, checkpoints: dict[str, Path], path: str):
    checkpoint = checkpoints[RETOUCHER]
    source = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8))
    alpha = Image.fromarray(np.repeat(np.array([0, 255], np.uint8), 32)[:, None].repeat(64, axis=1))
    mask = source.copy()
    mask.putalpha(alpha)
    files = {name: ("a.png", encode_png(image), "image/png") for name, image in (("image", source), ("mask", mask))}
    prompts = {"prompt": "a cat", "negative_prompt": "dark"}
    fields = {"model": RETOUCHER, **prompts, "steps": "4", "seed": "1", "size": "64x64", "strength": "0.5"}
    async with studio.http() as http:
        answer = await http.post("/v1/images/edits", data=fields, files=files, headers={"x-omnibus-path": path})
    assert answer.status_code == 200, answer.text

    pipeline = blocks.open_pipeline(diffusers.StableDiffusionXLModularPipeline, checkpoint)
    whole = blocks.ModularPart(pipeline, checkpoint, list(pipeline.blocks.sub_blocks), "cpu", "float32")
    state = pipeline(
        **prompts, image=source, mask_image=ImageOps.invert(alpha), strength=0.5, width=64, height=64,
        num_inference_steps=4, generator=torch.Generator().manual_seed(1), output_type="pil",
    )  # fmt: skip
    assert whole.names
    expected = components.to_bytes(state.get("images")[0])
    changed = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"]))))
    np.testing.assert_array_equal(changed, expected)


async def test_a_mask_and_markup_are_refused_by_name(studio: System):
    file = ("a.png", encode_png(Image.new("RGB", (32, 32))), "image/png")
    fields = {"model": PAINTER, "prompt": "a cat", "steps": "2"}
    for name, message in (("mask", "takes no mask"), ("markup", "takes no markup")):
        async with studio.http() as http:
            answer = await http.post("/v1/images/edits", data=fields, files={"image": file, name: file})

        assert answer.status_code == 400, answer.text
        assert message in read_error(answer)["message"]
        assert read_error(answer)["param"] == name


async def test_invalid_options_are_refused_with_the_parameter(studio: System):
    refusals: list[tuple[dict[str, Any], int, str]] = [
        ({"size": "50x32"}, 400, "size"),
        ({"size": "16384x16384"}, 413, "size"),
        ({"strength": 0.5}, 400, "strength"),
        ({"negative_prompt": "dark"}, 400, "negative_prompt"),
        ({"partial_images": 2, "stream": True}, 400, "partial_images"),
    ]  # fmt: skip
    for changes, status, param in refusals:
        async with studio.http() as http:
            answer = await http.post("/v1/images/generations", json={**WISH, **changes})

        assert (answer.status_code, read_error(answer)["param"]) == (status, param), answer.text
    await studio.ledger_is_empty()


@pytest.mark.cell("transformers", "modular_video", "video", shape=(APART, TOGETHER))
@pytest.mark.parametrize("path", [APART, TOGETHER])
async def test_a_video_is_that_of_the_pipeline(
    studio: System, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
):
    from diffusers import WanTransformer3DModel

    # The library loads a model with parts in float32 only beside another package. Here all is in float32.
    monkeypatch.setattr(WanTransformer3DModel, "_keep_in_fp32_modules", None)
    async with studio.client() as client:
        video = await client.videos.create_and_poll(
            model=DIRECTOR, prompt="a cat", size="32x32", seconds="0.375",  # type: ignore[arg-type]
            extra_body={"steps": 3, "seed": 1, "negative_prompt": "dark"}, poll_interval_ms=100, extra_headers={"x-omnibus-path": path},
        )  # fmt: skip
        assert video.status == "completed", video.error
        film = decode_video((await client.videos.download_content(video.id)).content)

    expected = load_pipeline(checkpoints[DIRECTOR])(
        "a cat", "dark", width=32, height=32, num_frames=9, num_inference_steps=3,
        generator=torch.Generator().manual_seed(1),
    ).frames[0]  # fmt: skip
    reel = VideoWriter(tmp_path / "film.mp4", 24.0)
    reel.add_frames((expected * 255).round().astype(np.uint8))
    reel.close()
    np.testing.assert_array_equal(film.frames, decode_video((tmp_path / "film.mp4").read_bytes()).frames)
    assert len(film.frames) == 9
    assert film.frames.std() > 5
