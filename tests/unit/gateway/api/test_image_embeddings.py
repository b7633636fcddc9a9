"""Embeddings of texts and images: the route from items to vectors, with executors that count characters and bytes."""

import base64
import io
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from omnibus.errors import BadMedia
from omnibus.executor.runner import Job
from omnibus.families import catalog
from tests.unit.gateway.house import VL, ToyGateway, read_error_body

PATH = "/v1/embeddings"
EMBEDDER = "toy-dual-encoder"


def encode_image(colour: str) -> str:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


RED, BLUE = (encode_image(colour) for colour in ("red", "blue"))


def image_vector(image: str) -> np.ndarray:
    return unit_vector(0, 1, sum(base64.b64decode(image)) % 1000)


def text_vector(text: str) -> np.ndarray:
    return unit_vector(len(text), len(text.split()), 1)


def unit_vector(*numbers: float) -> np.ndarray:
    row = np.array(numbers, np.float32)
    return row / np.linalg.norm(row)


async def embed_image(job: Job) -> None:
    media = await job.value("media")
    if media.array.tobytes() == base64.b64decode(BLUE):
        raise BadMedia("the image is corrupt", param="media")
    await job.put("embedding", {}, unit_vector(0, 1, media.array.sum() % 1000)[None])
    await job.put("tokens", {"value": 5})


@pytest.fixture
async def dual_gateway(home: ToyGateway) -> ToyGateway:
    home.serve(VL, **{EMBEDDER: catalog.model_declaration("dual_encoder", "")})
    await home.executor(EMBEDDER, "E", "vision", vision=embed_image)
    await home.executor(EMBEDDER, "B", "embedder")
    return home


async def post_items(home: ToyGateway, *items: Any, **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json={"model": EMBEDDER, "input": list(items), **more})


async def test_texts_and_images_have_vectors_in_the_order_of_the_request(dual_gateway: ToyGateway):
    items = [{"image": RED}, "one two", {"image": f"data:image/png;base64,{RED}"}, {"text": "three"}]

    response = await post_items(dual_gateway, *items)

    assert response.status_code == 200, response.text
    body = response.json()
    assert [each["index"] for each in body["data"]] == [0, 1, 2, 3]
    expected = [image_vector(RED), text_vector("one two"), image_vector(RED), text_vector("three")]
    np.testing.assert_allclose([each["embedding"] for each in body["data"]], expected, atol=1e-6)
    assert body["usage"] == {"prompt_tokens": 13, "total_tokens": 13}
    await dual_gateway.emptied()


@pytest.mark.parametrize(
    ("item", "expected"),
    [({"image": RED}, image_vector(RED)), ("one two", text_vector("one two")), ([5, 6, 7], text_vector("5 6 7"))],
)
async def test_one_kind_may_come_alone(dual_gateway: ToyGateway, item: Any, expected: np.ndarray):
    response = await post_items(dual_gateway, item, encoding_format="base64", dimensions=3)

    [data] = response.json()["data"]
    vector = np.frombuffer(base64.b64decode(data["embedding"]), "<f4")
    np.testing.assert_allclose(vector, expected, atol=1e-6)
    await dual_gateway.emptied()


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"input": [{"image": BLUE}]}, 400, "input"),
        ({"input": ["a", {"image": "data:image/png;base64,AAAA"}]}, 400, "input[1].image"),
        ({"input": [{"image": "not base64"}]}, 400, "input[0].image"),
        ({"input": [{"image": "ftp://host/image.png"}]}, 400, "input[0].image"),
        ({"input": [{"image": RED}] * 33}, 413, ""),
        ({"input": ["a", {}]}, 400, "input[1]"),
        ({"input": [{"text": "a", "image": RED}]}, 400, "input[0]"),
        ({"input": [{"audio": RED}]}, 400, "input[0].audio"),
        ({"input": [5, {"image": RED}]}, 400, "input"),
        ({"dimensions": 2}, 400, "dimensions"),
        ({"pooling": "mean"}, 400, "pooling"),
        ({"prompt_name": "query"}, 400, "prompt_name"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(
    dual_gateway: ToyGateway, changes: dict[str, Any], status: int, param: str
):
    response = await dual_gateway.http.post(PATH, json={"model": EMBEDDER, "input": ["a"], **changes})

    assert response.status_code == status, response.text
    assert (read_error_body(response)["param"] or "") == param
    await dual_gateway.emptied()


async def test_an_embedder_of_texts_refuses_images(home: ToyGateway):
    home.serve(VL, words=catalog.embedding_declaration("qwen2", ""))
    await home.executor("words", "B", "embedder")

    response = await home.http.post(PATH, json={"model": "words", "input": ["a", {"image": RED}]})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "input[1].image")


async def test_the_model_says_that_it_takes_images(dual_gateway: ToyGateway):
    model = (await dual_gateway.http.get(f"/v1/models/{EMBEDDER}")).json()

    assert (model["input_modalities"], model["output_modalities"]) == (["text", "image"], ["embedding"])
