"""The official client edits an image, whole and streamed.

The result is that of the library's pipeline.
"""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from tests.e2e.families.test_qwen_image_edit import expected_image
from tests.e2e.routes.conftest import EDITOR
from tests.e2e.system import System
from tests.unit.models import files

pytestmark = pytest.mark.e2e

PICTURE = files.make_picture(2, 50, 130)
WISH: dict[str, Any] = {"model": EDITOR, "prompt": "a green circle", "size": "64x48"}
MORE: dict[str, Any] = {"steps": 4, "guidance": 3.0, "seed": 2}
SAME: dict[str, Any] = {"prompt": "a green circle", "width": 64, "height": 48, **MORE}


def decode_pixels(file: str | None) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(file or ""))))


async def test_a_picture_is_that_of_the_pipeline(client: openai.AsyncOpenAI, system: System, edit_checkpoint: Path):
    result = await client.images.edit(**WISH, image=("tall.png", PICTURE), extra_body=MORE)

    assert result.data is not None
    np.testing.assert_allclose(
        decode_pixels(result.data[0].b64_json), expected_image(edit_checkpoint, PICTURE, SAME), atol=0.51
    )
    assert result.size == "64x48"
    assert result.usage is not None
    assert result.usage.output_tokens == 12
    await system.ledger_is_empty()


async def test_another_picture_makes_another_one(client: openai.AsyncOpenAI):
    pictures = [PICTURE, files.make_picture(5, 50, 130)]

    results = [await client.images.edit(**WISH, image=("a.png", each), extra_body=MORE) for each in pictures]

    first, second = (decode_pixels(each.data[0].b64_json) for each in results if each.data)
    assert not np.array_equal(first, second)


async def test_a_stream_shows_the_picture_in_the_making(client: openai.AsyncOpenAI, system: System):
    stream: Any = await client.images.edit(
        **WISH, image=("tall.png", PICTURE), stream=True, partial_images=1, extra_body=MORE
    )

    events = [event async for event in stream]

    assert [event.type for event in events] == ["image_edit.partial_image", "image_edit.completed"]
    assert {decode_pixels(event.b64_json).shape for event in events} == {(48, 64, 3)}
    await system.ledger_is_empty()


async def test_a_chat_edits_too(client: openai.AsyncOpenAI, edit_checkpoint: Path):
    url = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    content: Any = [
        {"type": "text", "text": "a green circle"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    config = {"size": "64x48", "steps": 4, "guidance": 3.0}

    answer: Any = await client.chat.completions.create(
        model=EDITOR,
        messages=[{"role": "user", "content": content}],
        seed=2,
        extra_body={"modalities": ["image"], "image_config": config},
    )

    data = answer.choices[0].message.images[0]["image_url"]["url"].split(",")[1]
    np.testing.assert_allclose(decode_pixels(data), expected_image(edit_checkpoint, PICTURE, SAME), atol=0.51)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"image": [("a.png", PICTURE), ("b.png", PICTURE)]}, "image"),
        ({"image": ("a.png", PICTURE[:100])}, "image"),
        ({"mask": ("m.png", PICTURE)}, "mask"),
        ({"size": "60x60"}, "size"),
    ],
)
async def test_what_cannot_be_edited_is_refused_and_the_next_one_is_made(
    client: openai.AsyncOpenAI, system: System, changes: dict[str, Any], param: str
):
    fields = {**WISH, "image": ("a.png", PICTURE), "extra_body": MORE}

    with pytest.raises(openai.BadRequestError) as error:
        await client.images.edit(**{**fields, **changes})

    assert error.value.param == param
    assert (await client.images.edit(**fields)).data
    await system.ledger_is_empty()
