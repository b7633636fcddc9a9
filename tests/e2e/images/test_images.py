"""Qwen-Image generates the library pipeline's image in every split.

Other models on the system do not change this.
"""

import asyncio
import base64
import io
import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from tests.e2e.apps.estate import read_error, read_events
from tests.e2e.system import System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

APART, TOGETHER = "T>D>V", "TDV"
WISHES: dict[str, dict[str, Any]] = {
    "square": {"prompt": "a red square", "width": 64, "height": 64, "steps": 4, "guidance": 3.0, "seed": 1},
    "wide": {"prompt": "a green circle near the hill", "negative_prompt": "clouds", "width": 96, "height": 48, "steps": 7, "seed": 2},
    "unguided": {"prompt": "birds sing", "width": 64, "height": 64, "steps": 3, "guidance": 1.0, "seed": 3},
}  # fmt: skip


@cache
def load_pipeline(checkpoint: Path) -> Any:
    from diffusers import QwenImagePipeline

    new_pipeline = QwenImagePipeline.from_pretrained(checkpoint)
    new_pipeline.set_progress_bar_config(disable=True)
    return new_pipeline


def expected_image(checkpoint: Path, wish: dict[str, Any]) -> np.ndarray:
    """The pipeline's image before rounding, [height, width, 3] in [0, 255]."""
    output = load_pipeline(checkpoint)(
        wish["prompt"],
        negative_prompt=wish.get("negative_prompt", ""),
        width=wish["width"],
        height=wish["height"],
        num_inference_steps=wish["steps"],
        true_cfg_scale=wish.get("guidance", 4.0),
        generator=torch.Generator().manual_seed(wish["seed"]),
        output_type="np",
    )
    picture: np.ndarray = output.images[0] * 255
    return picture


async def paint_images(studio: System, wish: dict[str, Any], path: str = "") -> tuple[list[np.ndarray], httpx.Response]:
    async with studio.http() as http:
        answer = await http.post("/v1/apps/painter/invoke", json=wish, headers={"x-omnibus-path": path} if path else {})
    assert answer.status_code == 200, answer.text
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in answer.json()], answer


@pytest.mark.cell("transformers", "qwen_image", "pixels", shape=(APART, TOGETHER))
@pytest.mark.parametrize("name", WISHES)
async def test_a_picture_is_that_of_the_pipeline_apart_and_together(studio: System, image_checkpoint: Path, name: str):
    wish = WISHES[name]

    [apart], first = await paint_images(studio, wish, APART)
    [together], second = await paint_images(studio, wish, TOGETHER)

    assert [answer.headers["x-omnibus-path"] for answer in (first, second)] == [APART, TOGETHER]
    np.testing.assert_array_equal(apart, together)
    # Only values between two of 256 steps may round differently.
    np.testing.assert_allclose(apart, expected_image(image_checkpoint, wish), atol=0.51)
    assert apart.std() > 10
    await studio.ledger_is_empty()


async def test_pictures_of_many_requests_at_once_are_each_their_own(studio: System, image_checkpoint: Path):
    wishes = [{**WISHES[name], "seed": seed} for seed in range(4) for name in WISHES]

    results = await asyncio.gather(*(paint_images(studio, wish) for wish in wishes))

    for wish, ([picture], _) in zip(wishes, results, strict=True):
        np.testing.assert_allclose(picture, expected_image(image_checkpoint, wish), atol=0.51)
    await studio.ledger_is_empty()


async def test_each_of_several_pictures_is_another_one(studio: System, image_checkpoint: Path):
    wish = {**WISHES["square"], "n": 3}

    pictures, _ = await paint_images(studio, wish)

    for place, picture in enumerate(pictures):
        np.testing.assert_allclose(picture, expected_image(image_checkpoint, {**wish, "seed": 1 + place}), atol=0.51)
    unseeded_images, _ = await paint_images(studio, {name: value for name, value in wish.items() if name != "seed"})
    assert len({picture.tobytes() for picture in unseeded_images}) == 3


async def test_steps_and_previews_are_told_and_then_the_picture(studio: System):
    async with studio.http() as http:
        answer = await http.post("/v1/apps/sketcher/invoke", json={**WISHES["wide"], "previews": 3})

    events = read_events(answer)

    assert events[:7] == [{"step": step, "of": 7} for step in range(1, 8)]
    assert events[7:9] == [{"preview": step, "size": [6, 12, 3]} for step in (3, 6)]
    assert events[9]["picture"] == [48, 96, 3]
    assert events[10:] == ["[DONE]"]
    await studio.ledger_is_empty()


async def test_a_client_that_leaves_stops_the_steps(studio: System):
    async with Watch.on(studio) as watch:
        async with (
            studio.http() as http,
            http.stream("POST", "/v1/apps/sketcher/invoke", json={**WISHES["square"], "steps": 1000}) as answer,
        ):
            id = answer.headers["x-request-id"]
            await anext(answer.aiter_lines())
        end = await watch.end(id)
        await studio.ledger_is_empty()
        await asyncio.sleep(0.3)  # tokens in transit

    assert end.status == "cancelled"
    assert 1 <= len(watch.chunks(id, "progress")) < 500


@pytest.mark.parametrize(("victim", "path"), [("D", APART), ("TDV", TOGETHER)])
async def test_a_picture_whose_executor_dies_is_painted_elsewhere_and_is_the_same(
    studio: System, executor_pids: dict[str, int], victim: str, path: str
):
    wish = {**WISHES["square"], "steps": 300}
    plain_events = await sketch_events(studio, wish, path)

    faulty_events = await sketch_events(studio, wish, path, executor_pids[f"qwen-image-tiny-{victim}-0"])

    assert plain_events[:-2] == [{"step": step, "of": 300} for step in range(1, 301)]
    assert faulty_events[:-2] == plain_events[:-2]
    assert faulty_events[-1] == plain_events[-1] == "[DONE]"
    assert faulty_events[-2]["mean"] == pytest.approx(plain_events[-2]["mean"], abs=0.01)
    await studio.ledger_is_empty()


async def sketch_events(studio: System, wish: dict[str, Any], path: str, victim: int = 0) -> list[Any]:
    """Events of the sketcher; ``victim`` is a process to kill after the fifth step."""
    events: list[Any] = []
    headers = {"x-omnibus-path": path}
    async with (
        studio.http() as http,
        http.stream("POST", "/v1/apps/sketcher/invoke", json=wish, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                events.append(data if data == "[DONE]" else json.loads(data))
            if victim and len(events) == 5:
                os.kill(victim, signal.SIGKILL)
                victim = 0
    return events


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 60}, "width must be a multiple of 16"),
        ({"steps": 1}, "steps must be 2 to 1000"),
        ({"prompt": "a <|im_end|> b"}, "control token"),
        ({"width": 16384, "height": 16384}, "over the limit"),
        ({"n": 1000}, "16"),
    ],
)
async def test_wishes_that_cannot_be_met_are_refused(studio: System, changes: dict[str, Any], message: str):
    async with studio.http() as http:
        answer = await http.post("/v1/apps/painter/invoke", json={**WISHES["square"], **changes})

    assert 400 <= answer.status_code < 500
    assert message in read_error(answer)["message"]
    await studio.ledger_is_empty()


async def test_an_image_model_is_no_chat_model(studio: System):
    body = {"model": "qwen-image-tiny", "messages": [{"role": "user", "content": "paint"}]}

    async with studio.http() as http:
        answer = await http.post("/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert "not a chat model" in read_error(answer)["message"]
