"""Embedders in GGUF files: llama.cpp gives the vectors of the checkpoints from which the files were written."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.checkpoints import precheck
from omnibus.checkpoints.packaged import find_packaged
from omnibus.errors import BadRequest, ContextTooLong, OmnibusError
from omnibus.executor.settings import ExecutorSettings
from omnibus.families.specs import KNOWN
from omnibus_encoder.text_engines import SentenceRunner
from omnibus_engines import registry
from omnibus_models import families, tiny
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.families.sentence_encoder import GgufEmbedder
from tests.gguf_encoders import write_encoder_gguf
from tests.gguf_files import write_gguf
from tests.unit.encoder.test_sentence_runner import TEXTS, embed_texts
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models.encoder_checkpoints import write_checkpoint, write_modules

pytestmark = pytest.mark.llama_cpp

#: Sums have another order, and keys and values of attention are float16: bound of the difference of a vector's value.
BOUND = 1e-3
#: Names of a pooling in sentence-transformers, in the format and by its number there.
POOLINGS = [("mean", "MEAN", 1), ("cls", "CLS", 2), ("lasttoken", "LAST", 3)]
ODD_TEXTS = ["", "Grüße [CLS] Ünïcode 漢字 <|x|>\x00 two  spaces", "the cat, the dog. " * 12]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    return write_encoder_gguf(tiny.build("sentence_encoder", directory / "it"), directory / "it.gguf", "MEAN")


@asynccontextmanager
async def run_embedder(file: Path) -> AsyncIterator[Any]:
    settings = ExecutorSettings(family="sentence_encoder", checkpoint=str(file), components="embedder", batch=4)
    runner = registry.llama_cpp("embedder", settings)
    assert isinstance(runner, SentenceRunner)
    await runner.load()
    try:
        yield runner
    finally:
        await runner.close()


@pytest.mark.numeric
@pytest.mark.parametrize(("mode", "pooling", "number"), POOLINGS)
@pytest.mark.parametrize("model_type", ["bert", "nomic_bert", "qwen3"])
async def test_vectors_are_those_of_the_checkpoint_alone_and_together(
    model_type: str, mode: str, pooling: str, number: int, tmp_path: Path
) -> None:
    if model_type == "qwen3":
        checkpoint = tiny.build("qwen3", tmp_path / "it")
        file = write_gguf(checkpoint, tmp_path / "it.gguf", qwen3__pooling_type=number)
    else:
        checkpoint = write_checkpoint(model_type, tmp_path / "it")
        file = write_encoder_gguf(checkpoint, tmp_path / "it.gguf", pooling)
    write_modules(checkpoint, {"pooling_mode": mode}, "Normalize")
    original = families.load_family("sentence_encoder").load("embedder", checkpoint)
    texts = [*TEXTS, *(ODD_TEXTS if model_type != "qwen3" else ODD_TEXTS[2:])]

    async with run_embedder(file) as runner:
        tokens = [runner.model.prepare_text(text).features["ids"].tolist() for text in texts]
        alone = np.concatenate([await embed_texts(runner, text) for text in texts])
        together = await embed_texts(runner, *texts)

        assert max(map(int, runner.stats()["batches"])) == 4
        assert runner.stats()["parameters"] > 10_000
    prepared = [original.prepare_text(text) for text in texts]
    assert tokens == [each.features["input_ids"].tolist() for each in prepared]
    expected = torch.cat([original.embed([each])[0][None] for each in prepared]).numpy()
    assert np.abs(alone - expected).max() < BOUND
    assert np.abs(together - expected).max() < BOUND
    assert np.abs(expected[:3] - expected[1:4]).max() > 10 * BOUND


@pytest.mark.real
@pytest.mark.numeric
@pytest.mark.parametrize(("dtype", "least"), [("F32", 0.99999), ("Q8_0", 0.998)])
async def test_trained_vectors_are_those_of_the_checkpoint(dtype: str, least: float, tmp_path: Path) -> None:
    checkpoint = find_packaged("minilm")
    original = families.family_of(checkpoint).load("embedder", checkpoint)
    file = write_encoder_gguf(checkpoint, tmp_path / "minilm.gguf", "MEAN", dtype)

    async with run_embedder(file) as runner:
        vectors = await embed_texts(runner, *TEXTS, *ODD_TEXTS)

    expected = torch.stack(original.embed([original.prepare_text(text) for text in (*TEXTS, *ODD_TEXTS)])).numpy()
    assert (vectors * expected).sum(1).min() > least  # cosines


async def test_requests_share_batches_and_tokens_are_taken(file: Path) -> None:
    async with run_embedder(file) as runner:
        ids = runner.model.prepare_text(TEXTS[0]).features["ids"].tolist()
        results = await asyncio.gather(*(embed_texts(runner, text) for text in [TEXTS[0], TEXTS[1], ids] * 8))

        assert max(map(int, runner.stats()["batches"])) == 4
    assert all(np.abs(each - results[0]).max() < BOUND for each in (*results[::3], *results[2::3]))


async def test_a_text_longer_than_a_batch_takes_memory_of_its_own(tmp_path: Path) -> None:
    checkpoint = tiny.build("qwen3", tmp_path / "it")
    write_modules(checkpoint, {"pooling_mode": "mean"}, "Normalize")
    original = families.load_family("sentence_encoder").load("embedder", checkpoint)
    longer = [5 + number % 300 for number in range(3000)]

    async with run_embedder(write_gguf(checkpoint, tmp_path / "it.gguf", qwen3__pooling_type=1)) as runner:
        [short], [long], [again] = [await embed_texts(runner, ids) for ids in (longer[:9], longer, longer[:9])]
        with pytest.raises(BadRequest, match="the text has no tokens"):
            await embed_texts(runner, "")

    for vector, ids in ((short, longer[:9]), (long, longer), (again, longer[:9])):
        [expected] = original.embed([original.prepare_text(ids)])
        assert np.abs(vector - expected.numpy()).max() < BOUND


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"text": []}, BadRequest, "text must be a list"),
    ({"text": [[]]}, BadRequest, "no tokens"),
    ({"text": [[1, 1 << 30]]}, BadRequest, "from 0 to 320"),
    ({"text": [[-1]]}, BadRequest, "from 0 to 320"),
    ({"text": ["cat " * 130]}, ContextTooLong, "132 tokens; this model takes 128"),
    ({"text": ["cat " * 2_000_000]}, ContextTooLong, "more than the 128 tokens"),
    ({"text": ["a"], "pooling": "last"}, BadRequest, "pooling of this model is fixed"),
    ({"text": ["a"], "prompt_name": "query"}, BadRequest, "GGUF files have no prompts"),
]


async def test_texts_that_cannot_be_embedded_are_refused(file: Path) -> None:
    async with run_embedder(file) as runner:
        for inputs, error, message in REFUSED:
            with pytest.raises(error, match=message):
                await finish_job(runner, MemoryJob(inputs))

        assert (await embed_texts(runner, "still here")).shape == (1, 64)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_encoder_gguf, "has no pooling type"),
        (lambda checkpoint, file: write_encoder_gguf(checkpoint, file, "NONE"), "has the pooling type 'none'"),
        (lambda checkpoint, file: write_encoder_gguf(checkpoint, file, "RANK"), "is a reranker"),
        (lambda _, file: write_gguf(tiny.build("qwen3", file.parent / "qwen3"), file), "has no pooling type"),
    ],
)
def test_a_file_without_vectors_for_texts_is_refused(
    write: Callable[[Path, Path], Path], message: str, tmp_path: Path
) -> None:
    file = write(tiny.build("sentence_encoder", tmp_path / "it"), tmp_path / "it.gguf")

    with pytest.raises(BadRequest, match=message):
        registry.llama_cpp("embedder", ExecutorSettings(family="sentence_encoder", checkpoint=str(file)))
    with pytest.raises(BadRequest, match=message):
        families.load_family("sentence_encoder").load("embedder", file)
    with pytest.raises(BadRequest, match=message):
        precheck.require_usable(file, "sentence_encoder", ())


def test_an_embedder_is_of_its_family_only(file: Path) -> None:
    precheck.require_usable(file, "sentence_encoder", ())
    for family in ("causal_lm", "cross_encoder"):
        with pytest.raises(BadRequest, match=f"the family sentence_encoder, not of {family}"):
            precheck.require_usable(file, family, KNOWN if family == "causal_lm" else ())
    with pytest.raises(BadRequest, match="run on the CPU, not on 'cuda'"):
        families.family_of(file).load("embedder", file, "cuda")


def test_a_report_is_of_the_weights_in_the_file(file: Path, tmp_path: Path) -> None:
    report = examine_checkpoint(file)

    assert (report.complete, report.family, report.files) == (True, "sentence_encoder", 1)
    assert report.parts["embedder"].parameters == GgufEmbedder(file, 1).parameters
    assert report.parts["embedder"].nbytes == sum(report.stored.values())
    assert report.notes[0].startswith("pooling: mean")


async def test_a_file_that_the_library_cannot_load_is_named(file: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(file.read_bytes().replace(b"position_embd.weight", b"position_emba.weight"))

    report = examine_checkpoint(odd)
    with pytest.raises(OmnibusError, match="llama.cpp cannot load"):
        async with run_embedder(odd):
            pass

    assert "llama.cpp cannot load" in report.parts["embedder"].problem
    assert not report.complete
