"""Embedders and rerankers of any class of transformers return what the library computes, in any batch."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item, Runner
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import registry
from omnibus_models import tiny, torchvision_cpu
from tests.close import assert_close
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models.encoder_checkpoints import write_checkpoint, write_modules

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()

TEXTS = ["the quick brown fox", "hello world, how are you today?", "a", "the cat sat on the mat " * 5]
QUERY = "where is the cat?"
#: Among them classes without the usual attention kernel (MPNet, DeBERTa), and two that read padding (FNet, ConvBERT).
CLASSES = [
    "albert", "bert", "convbert", "deberta-v2", "distilbert", "electra", "fnet", "modernbert", "mpnet", "nomic_bert",
    "roberta", "xlm-roberta",
]  # fmt: skip
#: Also language models, which are pooled and classified by their last token.
LANGUAGE_MODELS = ["llama", "qwen3"]


@asynccontextmanager
async def run_component(component: str, family: str, checkpoint: Path, **more: Any) -> AsyncIterator[Any]:
    """Yield the runner of an executor."""
    settings = ExecutorSettings(family=family, checkpoint=str(checkpoint), components=component, batch=4, **more)
    runner: Runner = registry.transformers(component, settings)
    await runner.load()
    try:
        yield runner
    finally:
        await runner.close()


async def embed_texts(runner: Runner, *texts: Any, **more: Any) -> np.ndarray:
    return (await finish_job(runner, MemoryJob({"text": list(texts), **more}, wants=("embedding",)))).array("embedding")


async def score_documents(runner: Runner, *documents: str) -> np.ndarray:
    job = MemoryJob({"query": QUERY, "documents": list(documents)}, wants=("scores",))
    return (await finish_job(runner, job)).array("scores")


def embed_by_library(checkpoint: Path, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the mean of the last hidden states of each text, computed alone."""
    model, tokenizer = AutoModel.from_pretrained(checkpoint).eval(), AutoTokenizer.from_pretrained(checkpoint)
    with torch.inference_mode():
        return [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy() for text in texts]


def score_by_library(checkpoint: Path, documents: Sequence[str]) -> np.ndarray:
    """Return the sigmoid of the logit of each pair, computed alone."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    with torch.inference_mode():
        logits = [model(**tokenizer(QUERY, each, return_tensors="pt")).logits[0, 0] for each in documents]
    return torch.stack(logits).sigmoid().numpy()


@pytest.mark.numeric
@pytest.mark.parametrize("model_type", [*CLASSES, *LANGUAGE_MODELS])
async def test_vectors_are_those_of_the_library_alone_and_together(model_type: str, tmp_path: Path):
    checkpoint = write_checkpoint(model_type, tmp_path / "it")
    write_modules(checkpoint, {"pooling_mode": "mean"})

    async with run_component("embedder", "sentence_encoder", checkpoint) as runner:
        alone = [(await embed_texts(runner, text))[0] for text in TEXTS]
        together = await embed_texts(runner, *TEXTS)

        assert max(int(size) for size in runner.stats()["batches"]) == len(TEXTS)
    for one, other, expected in zip(alone, together, embed_by_library(checkpoint, TEXTS), strict=True):
        assert_close(one, expected)
        assert_close(other, one)


@pytest.mark.numeric
@pytest.mark.parametrize("model_type", [*CLASSES, *LANGUAGE_MODELS])
async def test_scores_are_those_of_the_library_alone_and_together(model_type: str, tmp_path: Path):
    checkpoint = write_checkpoint(model_type, tmp_path / "it", classifies=True)

    async with run_component("reranker", "cross_encoder", checkpoint) as runner:
        alone = [float((await score_documents(runner, text))[0]) for text in TEXTS]
        together = await score_documents(runner, *TEXTS)

    expected = score_by_library(checkpoint, TEXTS)
    assert_close(np.array(alone, np.float32), expected)
    assert_close(together, expected)
    assert len({round(score, 4) for score in alone}) == len(TEXTS)


@pytest.mark.numeric
async def test_requests_share_batches(tmp_path: Path):
    async with run_component("embedder", "sentence_encoder", tiny.build("sentence_encoder", tmp_path / "it")) as runner:
        [alone] = await embed_texts(runner, TEXTS[0])
        together = await asyncio.gather(*(embed_texts(runner, text) for text in [TEXTS[0], TEXTS[1]] * 8))

        assert max(int(size) for size in runner.stats()["batches"]) == 4
    for [vector] in together[::2]:
        assert_close(vector, alone)


async def test_texts_may_come_as_tokens_or_with_a_prompt(tmp_path: Path):
    async with run_component("embedder", "sentence_encoder", tiny.build("sentence_encoder", tmp_path / "it")) as runner:
        ids = runner.model.prepare_text("the cat").features["input_ids"].tolist()

        tokens, words, longer = await embed_texts(runner, ids, "the cat", "what is the cat")
        [prompted] = await embed_texts(runner, "the cat", prompt_name="query")

    assert_close(tokens, words)
    assert_close(prompted, longer)
    assert np.abs(longer - words).max() > 0.01


async def test_texts_and_documents_may_come_as_bytes(tmp_path: Path):
    body = Item({}, np.frombuffer(b'["the quick brown fox"]', np.uint8))
    async with run_component("reranker", "cross_encoder", tiny.build("cross_encoder", tmp_path / "it")) as runner:
        job = MemoryJob({"query": QUERY, "documents": body}, wants=("scores", "tokens"))
        await finish_job(runner, job)

        assert_close(job.array("scores"), await score_documents(runner, "the quick brown fox"))
        tokens = runner.model.prepare_pair(QUERY, "the quick brown fox").meta["n_tokens"]
    assert job.outputs["tokens"].items[0].data == {"value": tokens}


@pytest.mark.parametrize(
    ("inputs", "param"),
    [
        ({"text": []}, "text"),
        ({"text": [[]]}, "text"),
        ({"text": [[1, 1 << 30]]}, "text"),
        ({"text": ["hello"], "pooling": "last"}, "pooling"),
        ({"text": ["hello"], "prompt_name": "passage"}, "prompt_name"),
        ({"text": Item({}, np.frombuffer(b"[", np.uint8))}, "text"),
    ],
)
async def test_a_text_that_cannot_be_embedded_is_refused(inputs: dict[str, Any], param: str, tmp_path: Path):
    async with run_component("embedder", "sentence_encoder", tiny.build("sentence_encoder", tmp_path / "it")) as runner:
        with pytest.raises(BadRequest) as error:
            await finish_job(runner, MemoryJob(inputs))

        assert (await embed_texts(runner, "still here")).shape == (1, 64)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("inputs", "param"),
    [
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": [1]}, "documents"),
        ({"query": "a", "documents": Item({}, np.frombuffer(b"[", np.uint8))}, "documents"),
    ],
)
async def test_documents_that_cannot_be_ranked_are_refused(inputs: dict[str, Any], param: str, tmp_path: Path):
    async with run_component("reranker", "cross_encoder", tiny.build("cross_encoder", tmp_path / "it")) as runner:
        with pytest.raises(BadRequest) as error:
            await finish_job(runner, MemoryJob(inputs))
        with pytest.raises(ContextTooLong):
            await score_documents(runner, "word " * 40_000)

        assert len(await score_documents(runner, "still here")) == 1
    assert error.value.param == param
