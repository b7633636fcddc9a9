"""Images of SmolVLM, LLaVA and Qwen2-VL in GGUF: prompts, rows and answers are those of transformers' whole model."""

import asyncio
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from PIL import Image

from omnibus.checkpoints import gguf_header, precheck
from omnibus.errors import Fatal
from omnibus.families.specs import KNOWN
from omnibus_llm.engine.llama_cpp_core import LlamaCppCore
from omnibus_llm.engine.model import ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.families import load_family
from omnibus_models.llama_cpp.projector import HEAD_COLUMNS
from omnibus_models.llama_cpp_thinker import LlamaCppThinker
from tests.gguf_files import write_gguf
from tests.gguf_images import build_qwen2_5_vl, build_smolvlm, write_pair, write_projector
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.engine.test_llama_cpp_images import make_chat, make_items
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat

pytestmark = pytest.mark.llama_cpp

#: Bounds of the differences of an image's rows, whose values are up to 4. SmolVLM's overview of an image is resized, by
#: filters of llama.cpp's own; LLaVA's rows are computed by transformers.
ROW_BOUNDS = {"idefics3": 0.03, "mlp": 1e-5, "qwen2vl_merger": 3e-3, "qwen2.5vl_merger": 3e-3}
#: Of a logit's; they are up to 13.
BOUND = 0.1
BUILDERS: Mapping[str, Callable[[Path], Path]] = {
    "idefics3": build_smolvlm,
    "mlp": lambda directory: tiny.build("llava", directory),
    "qwen2vl_merger": lambda directory: tiny.build("qwen2_vl", directory),
    "qwen2.5vl_merger": build_qwen2_5_vl,
}
#: Widths and heights that no processor changes, except LLaVA's: it is the same one in both.
SIZES = {
    "idefics3": [(256, 256), (256, 128)],
    "mlp": [(56, 56), (90, 70)],
    "qwen2vl_merger": [(112, 112), (56, 224)],
    "qwen2.5vl_merger": [(224, 140)],
}


class SeeingPair(SimpleNamespace):
    """A whole model of transformers, and the same one as a GGUF file next to its projector."""

    checkpoint: Path
    file: Path
    whole: Any
    processor: Any
    encoder: Any


@pytest.fixture(scope="module", params=BUILDERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SeeingPair:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    directory = tmp_path_factory.mktemp("projectors")
    checkpoint = BUILDERS[request.param](directory / "it")
    file = write_pair(checkpoint, directory / "gguf", request.param)
    return SeeingPair(
        kind=request.param,
        checkpoint=checkpoint,
        file=file,
        whole=AutoModelForImageTextToText.from_pretrained(checkpoint).eval(),
        processor=AutoProcessor.from_pretrained(checkpoint),
        encoder=load_family("multimodal_lm").load("encoder", file),
    )


def draw_image(seed: int, width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


def encode_image(encoder: Any, image: Image.Image) -> Encoded:
    out = io.BytesIO()
    image.save(out, "PNG")
    [encoded] = encoder.encode([encoder.prepare(memoryview(out.getvalue()), "image")])
    return Encoded(encoded.embeds, {**encoded.meta, "modality": "image"})


def process_chat(pair: SeeingPair, chat: list[dict[str, Any]], images: list[Image.Image]) -> dict[str, torch.Tensor]:
    text = pair.processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs: dict[str, torch.Tensor] = pair.processor(text=text, images=images, return_tensors="pt")
    return inputs


@torch.inference_mode()
def compute_reference(pair: SeeingPair, inputs: dict[str, torch.Tensor], more: list[int]) -> torch.Tensor:
    """Return logits of the tokens after a prompt with ``more`` tokens of an answer, [len(more) + 1, V]."""
    ids = torch.cat([inputs["input_ids"], torch.tensor([more], dtype=torch.long)], 1)
    masks = {"attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in inputs:
        masks["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(more)))
    logits: torch.Tensor = pair.whole(**{**inputs, **masks, "input_ids": ids}).logits[0, -1 - len(more) :]
    return logits


@pytest.mark.numeric
def test_rows_are_those_of_the_checkpoint(pair: SeeingPair) -> None:
    for seed, size in enumerate(SIZES[pair.kind]):
        image = draw_image(seed, *size)
        inputs = process_chat(pair, make_chat("image"), [image])
        text_names = {"input_ids", "attention_mask", "mm_token_type_ids"}

        rows = encode_image(pair.encoder, image).embeds

        with torch.inference_mode():
            out = pair.whole.model.get_image_features(**{name: inputs[name] for name in {*inputs} - text_names})
        features = torch.cat([*out.pooler_output]).reshape(-1, rows.shape[1] - HEAD_COLUMNS)
        assert (rows[rows[:, 0] < 0, HEAD_COLUMNS:] - features).abs().max() < ROW_BOUNDS[pair.kind]
        assert features.abs().max() > 1


@pytest.mark.numeric
def test_prompts_and_logits_are_those_of_the_checkpoint(pair: SeeingPair) -> None:
    thinker: Any = LlamaCppThinker(pair.file, sees=True)
    thinker.reserve_memory(1, 1024, 1)
    sizes = SIZES[pair.kind]
    image_id = pair.processor.tokenizer.convert_tokens_to_ids(pair.processor.image_token)
    for parts in (("what is", "image", "the small cat"), ("image", "a cat", "image", "two")):
        chat = make_chat(*parts)
        images = [draw_image(seed, *sizes[seed % len(sizes)]) for seed in range(parts.count("image"))]

        prompt = thinker.prompt(chat)
        prefill = thinker.assemble_prefill(prompt, [encode_image(pair.encoder, image) for image in images])
        hidden = thinker.forward(prefill.inputs[None], prefill.positions[:, None], thinker.new_cache(), None)
        logits = thinker.logits(hidden[:, -1])[0]

        inputs = process_chat(pair, chat, images)
        first = prefill.inputs[:, 0].long()
        assert torch.where(first < 0, image_id, first).tolist() == inputs["input_ids"][0].tolist()
        expected = compute_reference(pair, inputs, [])[0]
        others = [draw_image(seed + 5, *image.size) for seed, image in enumerate(images)]
        assert (logits - expected).abs().max() < BOUND
        assert (compute_reference(pair, process_chat(pair, chat, others), [])[0] - expected).abs().max() > 10 * BOUND


async def test_answers_are_those_of_the_checkpoint(pair: SeeingPair) -> None:
    settings = ThinkSettings(slots=3, context=512, kept_bytes=1 << 20)
    runner = ThinkRunner(LlamaCppCore(pair.file, "cpu", settings, 0, sees=True))
    await runner.load()
    image, chat = draw_image(0, *SIZES[pair.kind][0]), make_chat("image", "the small cat")
    job = make_chat_job(chat, make_items([encode_image(pair.encoder, image)]), max_tokens=8)
    others = [make_chat_job(make_text_chat(number), max_tokens=8) for number in range(2)]

    await asyncio.gather(*(finish_job(runner, each) for each in (job, *others)))
    resumed = await finish_job(runner, MemoryJob(job.inputs, resumes={"text": {"ids": job.ids[:5]}}))
    await runner.close()

    logits = compute_reference(pair, process_chat(pair, chat, [image]), job.ids[:-1])
    assert len(job.ids) == len(logits) == 8
    assert (logits.amax(1) - logits[torch.arange(8), torch.tensor(job.ids)]).max() < 2 * BOUND
    assert resumed.ids == job.ids


async def test_a_report_has_both_components(pair: SeeingPair) -> None:
    report = examine_checkpoint(pair.file)

    assert (report.complete, report.family, {*report.parts}) == (True, "multimodal_lm", {"encoder", "thinker"})
    assert report.notes[0] == "images: by mmproj-it.gguf, on llama.cpp only"
    assert families.family_of(pair.file).name == "multimodal_lm"
    precheck.require_usable(pair.file, "multimodal_lm", KNOWN)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llava")
    write_pair(tiny.build("llava", directory / "it"), directory / "gguf", "mlp")
    return directory


def test_old_files_of_llava_are_read(llava: Path, tmp_path: Path) -> None:
    text = llava / "gguf" / "text"
    tokens = (text / "tokenizer.json").read_text()
    (text / "tokenizer.json").write_text(tokens.replace("<image>", "<other>"))
    adds_bos = {"tokenizer__ggml__add_bos_token": True}
    file = write_gguf(text, tmp_path / "it.gguf", template=False, **adds_bos)
    (text / "tokenizer.json").write_text(tokens)
    write_projector(llava / "it", tmp_path / "mmproj.gguf", "mlp", legacy=True)

    thinker = LlamaCppThinker(file, sees=True)
    usual = LlamaCppThinker(llava / "gguf" / "it.gguf", sees=True)
    image = draw_image(0, 56, 56)
    rows = encode_image(load_family("multimodal_lm").load("encoder", file), image)
    expected_rows = encode_image(load_family("multimodal_lm").load("encoder", llava / "gguf/it.gguf"), image)
    chat = [*make_chat("image", "what is <image>"), {"role": "assistant", "content": "a cat"}, *make_chat("two")]
    prompt = thinker.prompt(chat)

    assert torch.equal(rows.embeds, expected_rows.embeds)
    [placeholder] = thinker._placeholders
    assert thinker.vocabulary <= placeholder < thinker.embed(torch.tensor([placeholder])) + 1
    assert thinker.tokenizer.decode(prompt.ids) == (
        "<s>USER: <image>\nwhat is <image> ASSISTANT: a cat USER: two ASSISTANT:"
    )
    assert prompt.ids.count(placeholder) == 1
    assert prompt.ids[0] == usual.prompt(make_chat("image", "what is")).ids[0] == thinker.tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("kind", "named"),
    [("pixtral", "pixtral"), ("internvl", "internvl"), ("mlp with norms", "mlp_norm"), ("mlp with tiles", "llava-1.6")],
)
def test_other_projectors_are_named_and_not_used(llava: Path, tmp_path: Path, kind: str, named: str) -> None:
    file = Path(write_gguf(llava / "gguf" / "text", tmp_path / "it.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    writer.add_clip_projector_type(kind.split()[0])
    if kind.endswith("tiles"):
        writer.add_array("clip.vision.image_grid_pinpoints", [336, 672])
    for name in ("mm.2.weight", "mm.3.weight"):
        if name == "mm.2.weight" or kind.endswith("norms"):
            writer.add_tensor(name, np.zeros((64, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    [note] = gguf_header.projector_notes(file)

    assert gguf_header.find_projector(file) is None
    assert note.startswith(f"mmproj.gguf ({named}) is not used: images need a type of gemma3, idefics3, mlp, qwen2vl")


def test_a_projector_without_weights_is_fatal(llava: Path, tmp_path: Path) -> None:
    file = Path(write_gguf(llava / "gguf" / "text", tmp_path / "it.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    writer.add_clip_projector_type("mlp")
    writer.add_tensor("mm.2.weight", np.zeros((64, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(Fatal, match=r"mmproj.gguf lacks 'clip.vision.embedding_length'"):
        load_family("multimodal_lm").load("encoder", file)
