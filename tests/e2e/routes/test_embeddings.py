"""Embeddings of texts equal the library's hidden states."""

from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from tests.e2e.routes.conftest import EMBEDDER, PAINTER
from tests.e2e.system import System
from tests.unit.encoder.test_text_embedding import TEXTS, embed_by_library

pytestmark = pytest.mark.e2e


async def test_vectors_are_those_of_the_library(client: openai.AsyncOpenAI, system: System, text_checkpoint: Path):
    response = await client.embeddings.create(model=EMBEDDER, input=TEXTS)

    for each, text in zip(response.data, TEXTS, strict=True):
        np.testing.assert_allclose(each.embedding, embed_by_library(("qwen2", text_checkpoint), text), atol=1e-5)
    assert response.usage.prompt_tokens > len(TEXTS)
    await system.ledger_is_empty()


async def test_long_texts_are_embedded_too(client: openai.AsyncOpenAI, system: System):
    texts = [f"{number} " + "the cat sat on the mat " * 40 for number in range(40)]

    response = await client.embeddings.create(model=EMBEDDER, input=texts)

    vectors = np.array([each.embedding for each in response.data])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    await system.ledger_is_empty()


async def test_models_without_an_embedder_and_tokens_of_other_models_are_refused(client: openai.AsyncOpenAI):
    cases: list[tuple[str, Any, str]] = [(PAINTER, "hello", "model"), (EMBEDDER, [[5, 1 << 30]], "input")]
    for model, text, param in cases:
        with pytest.raises(openai.BadRequestError) as error:
            await client.embeddings.create(model=model, input=text)

        assert error.value.param == param
