"""A sentence encoder and a reranker on a running system answer like the library, and so do their replays."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omnibus_models import tiny
from tests.close import assert_close
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.vl.test_records import run_command
from tests.unit.encoder.test_sentence_runner import QUERY, TEXTS, embed_by_library, score_by_library

pytestmark = pytest.mark.e2e

EMBEDDER, RERANKER = "sentence-encoder-tiny", "cross-encoder-tiny"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("checkpoints")
    return {family: tiny.build(family, directory / family) for family in ("sentence_encoder", "cross_encoder")}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[System]:
    models = {
        EMBEDDER: declare_model("sentence_encoder", checkpoints["sentence_encoder"]),
        RERANKER: declare_model("cross_encoder", checkpoints["cross_encoder"]),
    }
    with start_system(tmp_path_factory.mktemp("texts"), models) as new_system:
        yield new_system


@pytest.mark.numeric
@pytest.mark.cell("transformers", "sentence_encoder", "vectors", shape="B")
async def test_vectors_are_those_of_the_library(system: System, checkpoints: dict[str, Path]):
    await system.becomes_ready()
    async with system.client() as client:
        response = await client.embeddings.create(model=EMBEDDER, input=TEXTS)
        prompt = await client.embeddings.create(model=EMBEDDER, input="the cat", extra_body={"prompt_name": "query"})

    expected = embed_by_library(checkpoints["sentence_encoder"], [*TEXTS, "what is the cat"])
    for each, mean in zip([*response.data, *prompt.data], expected, strict=True):
        assert_close(np.array(each.embedding, np.float32), mean / np.linalg.norm(mean))
    await system.ledger_is_empty()


@pytest.mark.numeric
@pytest.mark.cell("transformers", "cross_encoder", "scores", shape="R")
async def test_documents_are_ranked_by_the_librarys_scores(system: System, checkpoints: dict[str, Path]):
    await system.becomes_ready()
    async with system.http() as http:
        body = {"model": RERANKER, "query": QUERY, "documents": TEXTS, "top_n": 3, "return_documents": True}
        response = await http.post("/v1/rerank", json=body)
    code, replay = await run_command(system, "replay", response.headers["x-request-id"])

    scores = score_by_library(checkpoints["cross_encoder"], TEXTS)
    best = np.argsort(-scores)[:3]
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert [(each["index"], each["document"]["text"]) for each in results] == [(at, TEXTS[at]) for at in best]
    assert_close(np.array([each["relevance_score"] for each in results], np.float32), scores[best])
    assert (code, "identical to the recorded answer" in replay) == (0, True), replay
    await system.ledger_is_empty()
