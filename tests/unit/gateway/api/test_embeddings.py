"""Text embeddings: the route from texts to numbers, with an executor that counts characters and words."""

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omnibus.families import catalog
from tests.unit.gateway.house import VL, House, error

PATH = "/v1/embeddings"
EMBEDDER = "toy-embedder"
WISH: dict[str, Any] = {"model": EMBEDDER, "input": ["one two three", "four"]}


@pytest.fixture
async def library(home: House) -> House:
    home.serve(VL, **{EMBEDDER: catalog.embedding_declaration("qwen2", "")})
    await home.executor(EMBEDDER, "B", "embedder")
    return home


async def embed(home: House, **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json={**WISH, **more})


def expected(*texts: str) -> np.ndarray:
    rows = np.array([[len(text), len(text.split()), 1] for text in texts], np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


async def test_each_text_has_its_vector(library: House):
    response = await embed(library)

    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["object"], body["model"]) == ("list", EMBEDDER)
    assert [each["index"] for each in body["data"]] == [0, 1]
    np.testing.assert_allclose([each["embedding"] for each in body["data"]], expected(*WISH["input"]), atol=1e-6)
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert response.headers["x-omnibus-path"] == "B"
    await library.emptied()


async def test_one_text_may_come_alone(library: House):
    [only] = (await embed(library, input="one two")).json()["data"]

    np.testing.assert_allclose([only["embedding"]], expected("one two"), atol=1e-6)


async def test_numbers_may_be_wanted_as_base64(library: House):
    data = (await embed(library, encoding_format="base64")).json()["data"]

    vectors = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in data]
    np.testing.assert_array_equal(vectors, expected(*WISH["input"]))


async def test_fewer_dimensions_have_length_one_again(library: House):
    data = (await embed(library, dimensions=2)).json()["data"]

    cut = expected(*WISH["input"])[:, :2]
    np.testing.assert_allclose(
        [each["embedding"] for each in data], cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6
    )


async def test_the_pooling_is_passed_on(library: House):
    data = (await embed(library, pooling="last")).json()["data"]

    np.testing.assert_allclose([each["embedding"] for each in data], expected(*WISH["input"])[:, ::-1], atol=1e-6)


@pytest.mark.parametrize(("tokens", "count"), [([5, 6, 7], 1), ([[5, 6, 7], [8]], 2)])
async def test_texts_may_come_as_tokens(library: House, tokens: list[Any], count: int):
    body = (await embed(library, input=tokens)).json()

    np.testing.assert_allclose(body["data"][0]["embedding"], expected("5 6 7")[0], atol=1e-6)
    assert len(body["data"]) == count


async def test_many_long_texts_travel_by_handle(library: House):
    texts = [f"{'word ' * 1000}{number}" for number in range(30)]

    response = await embed(library, input=texts)

    np.testing.assert_allclose([each["embedding"] for each in response.json()["data"]], expected(*texts), atol=1e-6)
    await library.emptied()


@pytest.mark.parametrize(
    ("changed", "param"),
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
        ({"truncate": True}, "truncate"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(library: House, changed: dict[str, Any], param: str):
    response = await embed(library, **changed)

    assert response.status_code == 400, response.text
    assert error(response)["param"] == param
    await library.emptied()


async def test_an_unknown_model_is_not_found(library: House):
    assert (await embed(library, model="nobody")).status_code == 404


async def test_the_official_client_reads_it(library: House):
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=library.http, max_retries=0)

    made = await client.embeddings.create(**WISH)  # the client's default is base64

    np.testing.assert_allclose([each.embedding for each in made.data], expected(*WISH["input"]), atol=1e-6)
    assert made.usage.total_tokens == 4
