"""Images of a Gemma 3 in GGUF: rows and logits by llama.cpp are those of the checkpoint."""

import asyncio
import io
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from omnibus.checkpoints import precheck
from omnibus.checkpoints.gguf_header import find_projector
from omnibus.cli.format.models import shortest_declaration
from omnibus.errors import BadMedia, BadRequest
from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus.families.specs import KNOWN
from omnibus_encoder.media_encoder import EncodeRunner
from omnibus_engines import llama_cpp
from omnibus_llm.engine.llama_cpp_core import LlamaCppCore
from omnibus_llm.engine.model import ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import families
from omnibus_models.contract import Encoded
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.families import load_family
from omnibus_models.llama_cpp.projector import HEAD_COLUMNS
from omnibus_models.llama_cpp_thinker import LlamaCppThinker
from tests.gguf_images import build_gemma, write_pair, write_projector
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.engine.test_llama_cpp import LOGIT_BOUND
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat

pytestmark = pytest.mark.llama_cpp

#: Bound of the difference of an image's rows, whose values are up to 3.
ROW_BOUND = 5e-3
SIDE = 112


class SeeingModels(SimpleNamespace):
    """A checkpoint with its components, and its language model in GGUF, next to its projector."""

    file: Path
    thinker: Any
    encoder: Any


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> SeeingModels:
    directory = tmp_path_factory.mktemp("images")
    checkpoint, family = build_gemma(directory / "it"), load_family("gemma3")
    file = write_pair(checkpoint, directory / "gguf")
    return SeeingModels(
        checkpoint=checkpoint,
        file=file,
        thinker=family.load("thinker", checkpoint),
        encoder=family.load("vision", checkpoint),
    )


@pytest.fixture
async def runner(models: SeeingModels) -> AsyncIterator[ThinkRunner]:
    settings = ThinkSettings(slots=4, context=512, kept_bytes=1 << 20)
    think_runner = ThinkRunner(LlamaCppCore(models.file, "cpu", settings, 0, sees=True))
    await think_runner.load()
    yield think_runner
    await think_runner.close()


def draw_image(seed: int, width: int = SIDE, height: int = SIDE) -> memoryview:
    pixels, out = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8), io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return memoryview(out.getvalue())


def encode_images(encoder: Any, seeds: Sequence[int]) -> list[Encoded]:
    encoded = encoder.encode([encoder.prepare(draw_image(seed), "image") for seed in seeds])
    return [Encoded(each.embeds, {**each.meta, "modality": "image"}) for each in encoded]


def make_chat(*parts: str) -> list[dict[str, Any]]:
    """Return a chat of texts and images, which are "image"."""
    content = [{"type": "image"} if part == "image" else {"type": "text", "text": part} for part in parts]
    return [{"role": "user", "content": content}]


def make_items(images: Sequence[Encoded]) -> list[Item]:
    return [Item(dict(image.meta), image.embeds.numpy()) for image in images]


def compute_logits(thinker: Any, chat: list[dict[str, Any]], images: Sequence[Encoded], cache: Any) -> torch.Tensor:
    prefill = thinker.assemble_prefill(thinker.prompt(chat), images)
    mask = None if prefill.attention is None else prefill.attention.mask(0, len(prefill.inputs))
    hidden = thinker.forward(prefill.inputs[None], prefill.positions[:, None], cache, mask)
    logits: torch.Tensor = thinker.logits(hidden[:, -1])
    return logits


@pytest.fixture(scope="module")
def gguf_encoder(models: SeeingModels) -> Any:
    return load_family("multimodal_lm").load("encoder", models.file)


@pytest.mark.numeric
def test_rows_of_images_are_those_of_the_checkpoint(models: SeeingModels, gguf_encoder: Any) -> None:
    rows = encode_images(gguf_encoder, [0, 1])

    reference = [models.thinker._project_rows(each.embeds) for each in encode_images(models.encoder, [0, 1])]
    for own, expected in zip(rows, reference, strict=True):
        assert own.embeds.shape[0] == own.meta["n_tokens"] == len(expected) + 2  # and a token on each side
        assert (own.embeds[1:-1, HEAD_COLUMNS:] - expected).abs().max() < ROW_BOUND
    assert (reference[0] - reference[1]).abs().max() > 20 * ROW_BOUND


@pytest.mark.numeric
@pytest.mark.parametrize(
    "parts", [("what is", "image", "the small cat"), ("image", "image"), ("image", "the", "image", "a mat"), ("a cat",)]
)
def test_logits_of_prompts_with_images_are_those_of_the_checkpoint(
    models: SeeingModels, gguf_encoder: Any, parts: tuple[str, ...]
) -> None:
    thinker: Any = LlamaCppThinker(models.file, sees=True)
    thinker.reserve_memory(1, 512, 1)
    chat, seeds = make_chat(*parts), range(parts.count("image"))

    logits = compute_logits(thinker, chat, encode_images(gguf_encoder, seeds), thinker.new_cache())

    expected = compute_logits(models.thinker, chat, encode_images(models.encoder, seeds), None)
    others = compute_logits(models.thinker, chat, encode_images(models.encoder, [seed + 5 for seed in seeds]), None)
    assert (logits - expected).abs().max() < LOGIT_BOUND
    assert "image" not in parts or (others - expected).abs().max() > 5 * LOGIT_BOUND


async def test_answers_to_images_and_texts_share_steps(runner: ThinkRunner, gguf_encoder: Any) -> None:
    chats = [(make_chat("image", f"the cat {number}"), encode_images(gguf_encoder, [number])) for number in range(3)]
    jobs = [make_chat_job(chat, make_items(images), max_tokens=6) for chat, images in chats]
    jobs += [make_chat_job(make_text_chat(number), max_tokens=6) for number in range(3)]

    await asyncio.gather(*(finish_job(runner, job) for job in jobs))

    for job in jobs:
        alone = await finish_job(runner, MemoryJob(job.inputs))
        assert alone.ids == job.ids
    assert max(map(int, runner.stats()["batches"])) == 4


async def test_an_answer_to_an_image_resumes_after_an_earlier_attempt(runner: ThinkRunner, gguf_encoder: Any) -> None:
    items = make_items(encode_images(gguf_encoder, [0]))
    job = await finish_job(runner, make_chat_job(make_chat("image", "the cat"), items, max_tokens=9))
    resumed = MemoryJob(job.inputs, resumes={"text": {"ids": job.ids[:5]}})

    await finish_job(runner, resumed)

    assert resumed.ids == job.ids


async def test_prompts_with_images_are_not_kept(runner: ThinkRunner, gguf_encoder: Any) -> None:
    items = make_items(encode_images(gguf_encoder, [0]))
    job = make_chat_job(make_chat("image", "the cat"), items, max_tokens=2, cache_key="talk")
    again = MemoryJob(job.inputs)

    await finish_job(runner, job)
    await finish_job(runner, again)

    assert again.ids == job.ids
    assert runner.stats()["kept_prompts"] == 0


async def test_the_encoder_takes_images_of_any_size_and_no_other_bytes(models: SeeingModels) -> None:
    settings = ExecutorSettings(family="multimodal_lm", checkpoint=str(models.file), components="encoder", batch=4)
    runner: Any = llama_cpp("encoder", settings)
    await runner.load()

    def make_job(data: Any) -> MemoryJob:
        return MemoryJob({"media": Item({"modality": "image"}, np.frombuffer(data, np.uint8))}, wants=("embedding",))

    jobs = [make_job(draw_image(number, *size)) for number, size in enumerate([(500, 20), (1, 1), (SIDE, SIDE)])]
    await asyncio.gather(*(finish_job(runner, job) for job in jobs))
    with pytest.raises(BadMedia):
        await finish_job(runner, make_job(b"no image"))
    await runner.close()

    assert isinstance(runner, EncodeRunner)
    assert [job.array("embedding").shape for job in jobs] == [(18, 68)] * 3
    assert all(np.isfinite(job.array("embedding")).all() for job in jobs)


def test_a_projector_next_to_the_file_makes_a_multimodal_model(models: SeeingModels, tmp_path: Path) -> None:
    alone = Path(shutil.copy(models.file, tmp_path))
    write_projector(models.checkpoint, tmp_path / "mmproj-other.gguf", "pixtral")

    assert families.family_of(models.file).name == "multimodal_lm"
    assert precheck.read_modalities(models.file) == {"image"}
    precheck.require_usable(models.file, "multimodal_lm", KNOWN)
    precheck.require_usable(models.file, "causal_lm", KNOWN)
    assert find_projector(alone) is None
    with pytest.raises(BadRequest, match="scales positions"):  # transformers would run it
        precheck.require_usable(alone, "multimodal_lm", KNOWN)
    for component in ("encoder", "thinker"):
        with pytest.raises(BadRequest, match=r"no projector \(mmproj\*.gguf\) that fits is next to"):
            load_family("multimodal_lm").load(component, alone)
    with pytest.raises(BadRequest, match="no projector"):
        llama_cpp("thinker", ExecutorSettings(family="multimodal_lm", checkpoint=str(alone)))
    with pytest.raises(BadRequest, match="need omnibus_engines:llama_cpp"):
        load_family("multimodal_lm").load("thinker", models.file)
    with pytest.raises(BadRequest, match="run on the CPU, not on 'cuda'"):
        load_family("multimodal_lm").load("encoder", models.file, "cuda")


def test_a_report_has_both_components_and_the_engine(models: SeeingModels) -> None:
    report = examine_checkpoint(models.file)
    [declaration] = shortest_declaration(report, str(models.file))["models"].values()

    assert (report.complete, report.family, {*report.parts}) == (True, "multimodal_lm", {"encoder", "thinker"})
    assert report.parts["encoder"].parameters == load_family("multimodal_lm").load("encoder", models.file).parameters
    assert report.parts["thinker"].kv_bytes > 0
    assert report.notes[0] == "images: by mmproj-it.gguf, on llama.cpp only"
    assert declaration["options"]["EL"]["engine"] == "omnibus_engines:llama_cpp"
    assert declaration["paths"] == [{"options": ["EL"]}]
