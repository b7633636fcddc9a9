"""GLM-Image generates the library pipeline's image in every split.

Other models on the system do not change this.
"""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.apps.estate import read_error
from tests.e2e.system import System
from tests.oracles import glm_image as oracle

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("painters")]

MODEL = "glm-image-tiny"
APART, TOGETHER = "T>Pr>D>V", "TPrDV"
WISHES: dict[str, dict[str, Any]] = {
    "sign": {"prompt": 'a sign: "hello world"', "width": 64, "height": 64, "steps": 3, "guidance": 3.0, "seed": 1},
    "wide": {"prompt": "a red square", "width": 96, "height": 64, "steps": 4, "seed": 2},
    "unguided": {"prompt": "'one' and 'two'", "width": 32, "height": 64, "steps": 2, "guidance": 1.0, "seed": 3},
}


@pytest.fixture(autouse=True)
async def wait_for_executors(painters: System) -> None:
    await painters.whole()
    await painters.becomes_ready()


async def paint_images(system: System, wish: dict[str, Any], path: str = "") -> tuple[list[np.ndarray], httpx.Response]:
    async with system.http() as http:
        headers = {"x-omnibus-path": path} if path else {}
        answer = await http.post("/v1/apps/glm_painter/invoke", json=wish, headers=headers)
    assert answer.status_code == 200, answer.text
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in answer.json()], answer


@pytest.mark.cell("transformers", "glm_image", "pixels", shape=(APART, TOGETHER))
@pytest.mark.parametrize("name", WISHES)
async def test_a_picture_is_that_of_the_pipeline_apart_and_together(painters: System, glm_checkpoint: Path, name: str):
    wish = WISHES[name]

    [apart], first = await paint_images(painters, wish, APART)
    [together], second = await paint_images(painters, wish, TOGETHER)

    assert [answer.headers["x-omnibus-path"] for answer in (first, second)] == [APART, TOGETHER]
    np.testing.assert_array_equal(apart, together)
    # Only values between two of 256 steps may round differently.
    np.testing.assert_allclose(apart, oracle.paint_image(glm_checkpoint, **wish).pixels, atol=0.51)
    assert apart.std() > 10
    await painters.ledger_is_empty()


async def test_pictures_of_many_requests_at_once_are_each_their_own(painters: System, glm_checkpoint: Path):
    wishes = [{**WISHES["sign"], "seed": 7, "n": 2}, *WISHES.values()]

    results = await asyncio.gather(*(paint_images(painters, wish) for wish in wishes))

    for wish, (pictures, _) in zip(wishes, results, strict=True):
        assert len(pictures) == wish.get("n", 1)
        for place, picture in enumerate(pictures):
            alike = oracle.paint_image(glm_checkpoint, **{**wish, "seed": wish["seed"] + place}).pixels
            np.testing.assert_allclose(picture, alike, atol=0.51)
    await painters.ledger_is_empty()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 48}, "width must be a multiple of 32"),
        ({"negative_prompt": "clouds"}, "does not support negative prompts"),
        ({"prompt": "a <eop> b"}, "control token"),
        ({"width": 16384, "height": 16384}, "over the limit"),
    ],
)
async def test_wishes_that_cannot_be_met_are_refused(painters: System, changes: dict[str, Any], message: str):
    async with painters.http() as http:
        answer = await http.post("/v1/apps/glm_painter/invoke", json={**WISHES["sign"], **changes})

    assert 400 <= answer.status_code < 500
    assert message in read_error(answer)["message"]
    await painters.ledger_is_empty()
