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

from tests.e2e.apps.estate import error
from tests.e2e.questions import ask
from tests.e2e.system import System
from tests.oracles import qwen_image_edit as oracle
from tests.unit.models import files

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("painters")]

MODEL = "qwen-image-edit-tiny"
APART, TOGETHER = "E>T>I>D>V", "M"
WIDE, TALL = files.picture(1), files.picture(2, 50, 130)
WISHES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "red": (WIDE, {"prompt": "make it red", "steps": 4, "guidance": 3.0, "seed": 1}),
    "small": (TALL, {"prompt": "a green circle", "negative_prompt": "clouds", "width": 64, "height": 48, "steps": 7, "seed": 2}),
    "unguided": (WIDE, {"prompt": "add birds", "steps": 3, "guidance": 1.0, "seed": 3}),
}  # fmt: skip


@pytest.fixture(autouse=True)
async def everybody(painters: System) -> None:
    await painters.whole()
    await painters.becomes_ready()


def wanted(checkpoint: Path, data: bytes, wish: dict[str, Any]) -> np.ndarray:
    """The pipeline's image before rounding."""
    known = {name: value for name, value in wish.items() if name not in ("negative_prompt", "n")}
    picture: np.ndarray = oracle.edited(checkpoint, data, negative=wish.get("negative_prompt", ""), **known)
    return picture


async def asked(painters: System, data: bytes, wish: dict[str, Any], path: str = "") -> httpx.Response:
    body = {"messages": ask(("image", data), json.dumps(wish)).messages}
    async with painters.http() as http:
        return await http.post("/v1/apps/editor/invoke", json=body, headers={"x-omnibus-path": path} if path else {})


async def edited(
    painters: System, data: bytes, wish: dict[str, Any], path: str = ""
) -> tuple[list[np.ndarray], httpx.Response]:
    answer = await asked(painters, data, wish, path)
    assert answer.status_code == 200, answer.text
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in answer.json()], answer


@pytest.mark.cell("transformers", "qwen_image_edit", "pixels", shape=(APART, TOGETHER))
@pytest.mark.parametrize("name", WISHES)
async def test_a_picture_is_that_of_the_pipeline_apart_and_together(painters: System, edit_checkpoint: Path, name: str):
    data, wish = WISHES[name]

    [apart], first = await edited(painters, data, wish, APART)
    [together], second = await edited(painters, data, wish, TOGETHER)

    assert [answer.headers["x-omnibus-path"] for answer in (first, second)] == [APART, TOGETHER]
    np.testing.assert_array_equal(apart, together)
    # Only values between two of 256 steps may round differently.
    np.testing.assert_allclose(apart, wanted(edit_checkpoint, data, wish), atol=0.51)
    assert apart.std() > 10
    await painters.ledger_is_empty()


async def test_pictures_of_many_requests_at_once_are_each_their_own(painters: System, edit_checkpoint: Path):
    wishes = [
        (files.picture(seed), {**WISHES["small"][1], "seed": seed, "steps": 2 + seed % 3, "n": 1 + seed % 2})
        for seed in range(6)
    ]

    made = await asyncio.gather(*(edited(painters, data, wish) for data, wish in wishes))

    for (data, wish), (pictures, _) in zip(wishes, made, strict=True):
        assert len(pictures) == wish["n"]
        for place, picture in enumerate(pictures):
            alike = wanted(edit_checkpoint, data, {**wish, "seed": wish["seed"] + place})
            np.testing.assert_allclose(picture, alike, atol=0.51)
    await painters.ledger_is_empty()


async def test_another_picture_is_edited_to_another_one(painters: System):
    wish = WISHES["red"][1]

    [one], _ = await edited(painters, WIDE, wish)
    [other], _ = await edited(painters, files.picture(3), wish)

    assert np.abs(one.astype(int) - other).max() > 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 60}, "width must be a multiple of 16"),
        ({"steps": 1}, "steps must be 2 to 1000"),
        ({"prompt": "a <|image_pad|> b"}, "control token"),
        ({"width": 16384, "height": 16384}, "over the limit"),
    ],
)
async def test_wishes_that_cannot_be_met_are_refused(painters: System, changed: dict[str, Any], message: str):
    answer = await asked(painters, WIDE, {**WISHES["red"][1], **changed})

    assert 400 <= answer.status_code < 500
    assert message in error(answer)["message"]
    await painters.ledger_is_empty()


async def test_a_picture_that_cannot_be_read_fails_its_request_alone(painters: System, edit_checkpoint: Path):
    data, wish = WISHES["red"]

    bad, (good, _) = await asyncio.gather(asked(painters, data[:-400], wish), edited(painters, data, wish))

    assert bad.status_code == 400
    np.testing.assert_allclose(good[0], wanted(edit_checkpoint, data, wish), atol=0.51)
    await painters.ledger_is_empty()
