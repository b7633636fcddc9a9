"""Text embeddings: the route from texts to numbers, with an executor that counts characters and words."""

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omnibus.families import catalog
from tests.unit.gateway.house import VL, ToyGateway, read_error_body

PATH = "/v1/embeddings"
EMBEDDER = "toy-embedder"
WISH: dict[str, Any] = {"model": EMBEDDER, "input": ["one two three", "four"]}


@pytest.fixture
async def embedding_gateway(home: ToyGateway) -> ToyGateway:
    home.serve(VL, **{EMBEDDER: catalog.embedding_declaration("qwen2", "")})
    await home.executor(EMBEDDER, "B", "embedder")
    return home


async def post_embedding(home: ToyGateway, **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json={**WISH, **more})


def compute_vectors(*texts: str) -> np.ndarray:
    rows = np.array([[len(text), len(text.split()), 1] for text in texts], np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


async def test_each_text_has_its_vector(embedding_gateway: ToyGateway):
    response = await post_embedding(embedding_gateway)

    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["object"], body["model"]) == ("list", EMBEDDER)
    assert [each["index"] for each in body["data"]] == [0, 1]
    np.testing.assert_allclose([each["embedding"] for each in body["data"]], compute_vectors(*WISH["input"]), atol=1e-6)
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert response.headers["x-omnibus-path"] == "B"
    await embedding_gateway.emptied()


@pytest.mark.parametrize("text", ["one two", [{"text": "one two"}]])
async def test_one_text_may_come_alone(embedding_gateway: ToyGateway, text: Any):
    [only] = (await post_embedding(embedding_gateway, input=text)).json()["data"]

    np.testing.assert_allclose([only["embedding"]], compute_vectors("one two"), atol=1e-6)


async def test_numbers_may_be_wanted_as_base64(embedding_gateway: ToyGateway):
    data = (await post_embedding(embedding_gateway, encoding_format="base64")).json()["data"]

    vectors = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in data]
    np.testing.assert_array_equal(vectors, compute_vectors(*WISH["input"]))


async def test_fewer_dimensions_have_length_one_again(embedding_gateway: ToyGateway):
    data = (await post_embedding(embedding_gateway, dimensions=2)).json()["data"]

    cut = compute_vectors(*WISH["input"])[:, :2]
    np.testing.assert_allclose(
        [each["embedding"] for each in data], cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6
    )


async def test_the_pooling_is_passed_on(embedding_gateway: ToyGateway):
    data = (await post_embedding(embedding_gateway, pooling="last")).json()["data"]

    np.testing.assert_allclose(
        [each["embedding"] for each in data], compute_vectors(*WISH["input"])[:, ::-1], atol=1e-6
    )


@pytest.mark.parametrize(("tokens", "count"), [([5, 6, 7], 1), ([[5, 6, 7], [8]], 2)])
async def test_texts_may_come_as_tokens(embedding_gateway: ToyGateway, tokens: list[Any], count: int):
    body = (await post_embedding(embedding_gateway, input=tokens)).json()

    np.testing.assert_allclose(body["data"][0]["embedding"], compute_vectors("5 6 7")[0], atol=1e-6)
    assert len(body["data"]) == count


async def test_many_long_texts_travel_by_handle(embedding_gateway: ToyGateway):
    texts = [f"{'word ' * 1000}{number}" for number in range(30)]

    response = await post_embedding(embedding_gateway, input=texts)

    np.testing.assert_allclose(
        [each["embedding"] for each in response.json()["data"]], compute_vectors(*texts), atol=1e-6
    )
    await embedding_gateway.emptied()


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [-1, 2]}, "input[0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [1, "a"]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"model": VL}, "model"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 4}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"pooling": "max"}, "pooling"),
        ({"prompt_name": 1}, "prompt_name"),
        ({"truncate": True}, "truncate"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(
    embedding_gateway: ToyGateway, changes: dict[str, Any], param: str
):
    response = await post_embedding(embedding_gateway, **changes)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await embedding_gateway.emptied()


async def test_an_unknown_model_is_not_found(embedding_gateway: ToyGateway):
    assert (await post_embedding(embedding_gateway, model="nobody")).status_code == 404


async def test_the_official_client_reads_it(embedding_gateway: ToyGateway):
    client = openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="x", http_client=embedding_gateway.http, max_retries=0
    )

    embeddings_list = await client.embeddings.create(**WISH)  # the client's default is base64

    np.testing.assert_allclose(
        [each.embedding for each in embeddings_list.data], compute_vectors(*WISH["input"]), atol=1e-6
    )
    assert embeddings_list.usage.total_tokens == 4
