"""Qwen-Image-Edit generates the library pipeline's image in every split.

Other models on the system do not change this.
"""

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.apps.estate import read_error
from tests.e2e.questions import make_question
from tests.e2e.system import System
from tests.oracles import qwen_image_edit as oracle
from tests.unit.models import files

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("painters")]

MODEL = "qwen-image-edit-tiny"
APART, TOGETHER = "E>T>I>D>V", "M"
WIDE, TALL = files.make_picture(1), files.make_picture(2, 50, 130)
WISHES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "red": (WIDE, {"prompt": "make it red", "steps": 4, "guidance": 3.0, "seed": 1}),
    "small": (TALL, {"prompt": "a green circle", "negative_prompt": "clouds", "width": 64, "height": 48, "steps": 7, "seed": 2}),
    "unguided": (WIDE, {"prompt": "add birds", "steps": 3, "guidance": 1.0, "seed": 3}),
}  # fmt: skip


@pytest.fixture(autouse=True)
async def wait_for_executors(painters: System) -> None:
    await painters.whole()
    await painters.becomes_ready()


def expected_image(checkpoint: Path, data: bytes, wish: dict[str, Any]) -> np.ndarray:
    """The pipeline's image before rounding."""
    options = {name: value for name, value in wish.items() if name not in ("negative_prompt", "n")}
    picture: np.ndarray = oracle.edit_image(checkpoint, data, negative=wish.get("negative_prompt", ""), **options)
    return picture


async def invoke_editor(painters: System, data: bytes, wish: dict[str, Any], path: str = "") -> httpx.Response:
    body = {"messages": make_question(("image", data), json.dumps(wish)).messages}
    async with painters.http() as http:
        return await http.post("/v1/apps/editor/invoke", json=body, headers={"x-omnibus-path": path} if path else {})


async def edit_image(
    painters: System, data: bytes, wish: dict[str, Any], path: str = ""
) -> tuple[list[np.ndarray], httpx.Response]:
    answer = await invoke_editor(painters, data, wish, path)
    assert answer.status_code == 200, answer.text
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in answer.json()], answer


@pytest.mark.cell("transformers", "qwen_image_edit", "pixels", shape=(APART, TOGETHER))
@pytest.mark.parametrize("name", WISHES)
async def test_a_picture_is_that_of_the_pipeline_apart_and_together(painters: System, edit_checkpoint: Path, name: str):
    data, wish = WISHES[name]

    [apart], first = await edit_image(painters, data, wish, APART)
    [together], second = await edit_image(painters, data, wish, TOGETHER)

    assert [answer.headers["x-omnibus-path"] for answer in (first, second)] == [APART, TOGETHER]
    np.testing.assert_array_equal(apart, together)
    # Only values between two of 256 steps may round differently.
    np.testing.assert_allclose(apart, expected_image(edit_checkpoint, data, wish), atol=0.51)
    assert apart.std() > 10
    await painters.ledger_is_empty()


async def test_pictures_of_many_requests_at_once_are_each_their_own(painters: System, edit_checkpoint: Path):
    wishes = [
        (files.make_picture(seed), {**WISHES["small"][1], "seed": seed, "steps": 2 + seed % 3, "n": 1 + seed % 2})
        for seed in range(6)
    ]

    results = await asyncio.gather(*(edit_image(painters, data, wish) for data, wish in wishes))

    for (data, wish), (pictures, _) in zip(wishes, results, strict=True):
        assert len(pictures) == wish["n"]
        for place, picture in enumerate(pictures):
            alike = expected_image(edit_checkpoint, data, {**wish, "seed": wish["seed"] + place})
            np.testing.assert_allclose(picture, alike, atol=0.51)
    await painters.ledger_is_empty()


async def test_another_picture_is_edited_to_another_one(painters: System):
    wish = WISHES["red"][1]

    [one], _ = await edit_image(painters, WIDE, wish)
    [other], _ = await edit_image(painters, files.make_picture(3), wish)

    assert np.abs(one.astype(int) - other).max() > 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 60}, "width must be a multiple of 16"),
        ({"steps": 1}, "steps must be 2 to 1000"),
        ({"prompt": "a <|image_pad|> b"}, "control token"),
        ({"width": 16384, "height": 16384}, "over the limit"),
    ],
)
async def test_wishes_that_cannot_be_met_are_refused(painters: System, changes: dict[str, Any], message: str):
    answer = await invoke_editor(painters, WIDE, {**WISHES["red"][1], **changes})

    assert 400 <= answer.status_code < 500
    assert message in read_error(answer)["message"]
    await painters.ledger_is_empty()


async def test_a_picture_that_cannot_be_read_fails_its_request_alone(painters: System, edit_checkpoint: Path):
    data, wish = WISHES["red"]

    bad, (good, _) = await asyncio.gather(invoke_editor(painters, data[:-400], wish), edit_image(painters, data, wish))

    assert bad.status_code == 400
    np.testing.assert_allclose(good[0], expected_image(edit_checkpoint, data, wish), atol=0.51)
    await painters.ledger_is_empty()
