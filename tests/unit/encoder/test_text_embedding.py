"""Text embeddings equal the library's own hidden states, in any batch."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item
from omnibus_encoder.media_encoder import EncodeSettings
from omnibus_encoder.text_engines import EmbedRunner
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.unit.jobs import MemoryJob, finish_job

TEXTS = ["the quick brown fox", "hello world, how are you today?", "a", "the cat sat on the mat " * 5]


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name: str = request.param
    return name, tiny.build(name, tmp_path_factory.mktemp("models") / name)


@pytest.fixture
async def runner(checkpoint: tuple[str, Path]) -> AsyncIterator[EmbedRunner]:
    embed_runner = EmbedRunner(*checkpoint, "cpu", "float32", EncodeSettings(items=3))
    await embed_runner.load()
    yield embed_runner
    await embed_runner.close()


def embed_by_library(checkpoint: tuple[str, Path], text: str, pooling: str = "mean") -> np.ndarray:
    """Return the library's own embedding of one text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    name, path = checkpoint
    kind: Any = AutoModelForCausalLM if name == "qwen2" else AutoModelForImageTextToText
    model = kind.from_pretrained(path).eval()
    inputs = AutoTokenizer.from_pretrained(path)(text, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**inputs, output_hidden_states=True).hidden_states[-1][0]
    vector = hidden[-1] if pooling == "last" else hidden.mean(0)
    return (vector / vector.norm()).numpy()


async def embed_texts(runner: EmbedRunner, *texts: str, **more: Any) -> MemoryJob:
    return await finish_job(runner, MemoryJob({"text": list(texts), **more}, wants=("embedding", "tokens")))


@pytest.mark.numeric
@pytest.mark.parametrize("pooling", ["mean", "last"])
async def test_a_vector_is_that_of_the_library(runner: EmbedRunner, checkpoint: tuple[str, Path], pooling: str):
    job = await embed_texts(runner, *TEXTS, pooling=pooling)

    for vector, text in zip(job.array("embedding"), TEXTS, strict=True):
        np.testing.assert_allclose(vector, embed_by_library(checkpoint, text, pooling), atol=1e-5)
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.numeric
async def test_company_does_not_change_a_vector(runner: EmbedRunner):
    alone = [(await embed_texts(runner, text)).array("embedding")[0] for text in TEXTS]

    together = await asyncio.gather(*(embed_texts(runner, text) for text in TEXTS * 8))

    for one, other in zip(alone * 8, together, strict=True):
        assert_close(other.array("embedding")[0], one)
    assert max(int(size) for size in runner.stats()["batches"]) > 1


async def test_other_texts_are_elsewhere(runner: EmbedRunner):
    vectors = (await embed_texts(runner, *TEXTS)).array("embedding")

    assert np.abs(vectors @ vectors.T - np.eye(len(TEXTS))).max() < 0.999


async def test_tokens_are_counted(runner: EmbedRunner, checkpoint: tuple[str, Path]):
    name, path = checkpoint
    thinker = load_family(name).load("thinker", path)

    job = await embed_texts(runner, *TEXTS)

    assert job.outputs["tokens"].items[0].data == {"value": sum(len(thinker.encode_text(text, True)) for text in TEXTS)}


@pytest.mark.numeric
async def test_texts_may_come_as_bytes(runner: EmbedRunner):
    body = Item({}, np.frombuffer(b'["the quick brown fox"]', np.uint8))

    job = await finish_job(runner, MemoryJob({"text": body}))

    np.testing.assert_allclose(
        job.array("embedding"), (await embed_texts(runner, TEXTS[0])).array("embedding"), atol=1e-6
    )


@pytest.mark.numeric
async def test_texts_may_come_as_the_models_own_tokens(runner: EmbedRunner):
    ids = list(runner.model.encode_text(TEXTS[0], True))

    job = await finish_job(runner, MemoryJob({"text": [ids, TEXTS[0]]}))

    tokens, words = job.array("embedding")
    np.testing.assert_allclose(tokens, words, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "param"),
    [
        ({"text": []}, "text"),
        ({"text": "hello"}, "text"),
        ({"text": [1, 2]}, "text"),
        ({"text": [[1, -2]]}, "text"),
        ({"text": [[1, 1 << 30]]}, "text"),
        ({"text": [[1, True]]}, "text"),
        ({"text": [[]]}, "text"),
        ({"text": [""]}, "text"),
        ({"text": ["hello"], "pooling": "max"}, "pooling"),
        ({"text": Item({}, np.frombuffer(b"[", np.uint8))}, "text"),
    ],
)
async def test_what_is_no_text_is_refused(runner: EmbedRunner, inputs: dict[str, Any], param: str):
    with pytest.raises(BadRequest) as error:
        await finish_job(runner, MemoryJob(inputs))

    assert error.value.param == param
    assert (await embed_texts(runner, "still here")).array("embedding").shape[0] == 1


async def test_a_text_over_the_context_is_refused(runner: EmbedRunner):
    with pytest.raises(ContextTooLong):
        await embed_texts(runner, "word " * 40_000)
