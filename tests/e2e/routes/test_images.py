"""The official client generates images, whole and streamed.

They are those of the library's pipeline.
"""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types import ImageGenCompletedEvent, ImageGenPartialImageEvent
from PIL import Image

from tests.e2e.images.test_images import expected_image
from tests.e2e.routes.conftest import PAINTER
from tests.e2e.system import System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

WISH: dict[str, Any] = {"model": PAINTER, "prompt": "a red square", "size": "64x64"}
MORE: dict[str, Any] = {"steps": 4, "guidance": 3.0, "seed": 1}
SAME = {"prompt": "a red square", "width": 64, "height": 64, **MORE}


def decode_pixels(file: str | bytes | None) -> np.ndarray:
    data = base64.b64decode(file) if isinstance(file, str) else file
    return np.asarray(Image.open(io.BytesIO(data or b"")))


async def test_a_picture_is_that_of_the_pipeline(client: openai.AsyncOpenAI, image_checkpoint: Path, system: System):
    response = await client.images.generate(**WISH, n=2, extra_body=MORE)

    assert response.data is not None
    for place, image in enumerate(response.data):
        reference = expected_image(image_checkpoint, {**SAME, "seed": 1 + place})
        np.testing.assert_allclose(decode_pixels(image.b64_json), reference, atol=0.51)
    assert (response.size, response.output_format, response.background) == ("64x64", "png", "opaque")
    assert response.usage is not None
    assert response.usage.output_tokens == 32
    assert response.usage.input_tokens > 3
    await system.ledger_is_empty()


async def test_a_stream_shows_the_picture_in_the_making(
    client: openai.AsyncOpenAI, image_checkpoint: Path, system: System
):
    stream: Any = await client.images.generate(
        **WISH, stream=True, partial_images=3, output_format="webp", extra_body=MORE
    )
    *partial, last_event = [event async for event in stream]

    assert all(isinstance(event, ImageGenPartialImageEvent) for event in partial)
    assert [event.partial_image_index for event in partial] == [0, 1, 2]
    assert {decode_pixels(event.b64_json).shape for event in partial} == {(64, 64, 3)}
    assert isinstance(last_event, ImageGenCompletedEvent)
    assert Image.open(io.BytesIO(base64.b64decode(last_event.b64_json))).format == "WEBP"
    assert last_event.usage.output_tokens == 16
    await system.ledger_is_empty()


async def test_a_url_leads_to_the_picture_until_it_is_removed(client: openai.AsyncOpenAI, image_checkpoint: Path):
    response = await client.images.generate(**WISH, response_format="url", extra_body=MORE)

    assert response.data is not None
    url = response.data[0].url
    assert url is not None
    async with httpx.AsyncClient() as http:
        np.testing.assert_allclose(
            decode_pixels((await http.get(url)).content), expected_image(image_checkpoint, SAME), atol=0.51
        )
    id = url.split("/")[-2]
    assert (await client.files.retrieve(id)).bytes > 100
    await client.files.delete(id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(id)


async def test_what_the_model_cannot_make_is_refused_with_the_parameter(client: openai.AsyncOpenAI, system: System):
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"size": "60x64"}, "size"),
        ({"size": "16384x16384"}, "size"),
        ({"n": 11}, "n"),
    ]
    for changes, param in refusals:
        with pytest.raises(openai.APIStatusError) as error:
            await client.images.generate(**{**WISH, **changes}, extra_body=MORE)

        assert error.value.status_code in (400, 413)
        assert error.value.param == param
    await system.ledger_is_empty()


async def test_edits_are_refused_by_a_model_that_makes_pictures_of_text_alone(client: openai.AsyncOpenAI):
    with pytest.raises(openai.BadRequestError) as error:
        await client.images.edit(model=PAINTER, prompt="bluer", image=b"\x89PNG")

    assert error.value.param == "image"


async def test_a_client_that_leaves_stops_the_steps(client: openai.AsyncOpenAI, system: System):
    async with Watch.on(system) as watch:
        stream: Any = await client.images.generate(
            **WISH, stream=True, partial_images=3, extra_body={**MORE, "steps": 1000}
        )
        await anext(aiter(stream))
        id = stream.response.headers["x-request-id"]
        await stream.close()
        end = await watch.end(id)
        await system.ledger_is_empty()
        await asyncio.sleep(0.3)  # messages in transit

    assert end.status == "cancelled"
    assert len(watch.chunks(id, "preview")) <= 2
