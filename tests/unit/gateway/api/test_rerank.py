"""Reranking: the route from documents to sorted results, with an executor that counts words of the query."""

from typing import Any

import httpx
import pytest

from omnibus.families import catalog
from tests.unit.gateway.house import VL, ToyGateway, read_error_body

PATH, RERANKER = "/v1/rerank", "toy-reranker"
DOCUMENTS = ["a dog runs far away", {"text": "the cat sat"}, "the cat sat on a mat", "nothing"]
REQUEST: dict[str, Any] = {"model": RERANKER, "query": "the cat", "documents": DOCUMENTS}
BEST = [1, 2, 0, 3]


@pytest.fixture
async def reranking_gateway(home: ToyGateway) -> ToyGateway:
    home.serve(VL, **{RERANKER: catalog.model_declaration("cross_encoder", "")})
    await home.executor(RERANKER, "R", "reranker")
    return home


async def post_rerank(home: ToyGateway, **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json={**REQUEST, **more})


async def test_documents_are_sorted_by_relevance(reranking_gateway: ToyGateway):
    response = await post_rerank(reranking_gateway)

    assert response.status_code == 200, response.text
    body = response.json()
    assert {**body, "results": [], "id": ""} == {
        "id": "", "model": RERANKER, "results": [], "usage": {"prompt_tokens": 23, "total_tokens": 23},
    }  # fmt: skip
    assert body["id"] == response.headers["x-request-id"]
    assert [each["index"] for each in body["results"]] == BEST
    assert [each["relevance_score"] for each in body["results"]] == pytest.approx([2 / 4, 2 / 7, 0, 0])
    assert all(each.keys() == {"index", "relevance_score"} for each in body["results"])
    assert response.headers["x-omnibus-path"] == "R"
    await reranking_gateway.emptied()


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (3, 3), (4, 4), (99, 4), (None, 4)])
async def test_only_the_best_may_be_wanted(reranking_gateway: ToyGateway, top_n: int | None, count: int):
    results = (await post_rerank(reranking_gateway, top_n=top_n)).json()["results"]

    assert [each["index"] for each in results] == BEST[:count]


async def test_results_may_have_their_documents(reranking_gateway: ToyGateway):
    results = (await post_rerank(reranking_gateway, return_documents=True)).json()["results"]

    texts = ["the cat sat", "the cat sat on a mat", "a dog runs far away", "nothing"]
    assert [each["document"] for each in results] == [{"text": text} for text in texts]


async def test_many_long_documents_travel_by_handle(reranking_gateway: ToyGateway):
    documents = [f"{'word ' * (1000 + number)}cat" for number in range(30)]

    results = (await post_rerank(reranking_gateway, documents=documents)).json()["results"]

    assert [each["index"] for each in results] == [*range(30)]
    await reranking_gateway.emptied()


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", 1]}, "documents[1]"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].title"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"model": VL}, "model"),
        ({"top_n": 0}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"max_chunks_per_doc": 3}, "max_chunks_per_doc"),
    ],
)
async def test_a_request_that_cannot_be_ranked_is_refused_by_name(
    reranking_gateway: ToyGateway, changes: dict[str, Any], param: str
):
    response = await post_rerank(reranking_gateway, **changes)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await reranking_gateway.emptied()


async def test_an_unknown_model_is_not_found(reranking_gateway: ToyGateway):
    assert (await post_rerank(reranking_gateway, model="nobody")).status_code == 404


async def test_a_model_says_that_it_ranks(reranking_gateway: ToyGateway):
    model = (await reranking_gateway.http.get(f"/v1/models/{RERANKER}")).json()

    assert (model["input_modalities"], model["output_modalities"]) == (["text"], ["score"])
