"""Architectures whose families are not taken apart here yet, at the port itself: ids and embeddings in, tokens out."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import Fatal
from omnibus_models import tiny, torchvision_cpu
from omnibus_models.contract import Sampling
from omnibus_models.tiny import parts, text, weights
from services.llm.vllm.memory import Memory
from services.llm.vllm.port import Generation, Launch, Medium, Positions
from services.llm.vllm_032.engine import Core

torchvision_cpu.install()

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TOKENS = 16
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
NAMES = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
TEMPLATE = text.template(image="<|vision_start|><|image_pad|><|vision_end|>")
DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def launch(checkpoint: Path) -> Launch:
    return Launch("thinker", checkpoint, "cpu", "float32", 4, 256, 64, 32 << 20, 0.9, 1, True, 1)


def asked(ids: Sequence[int], media: Sequence[Medium] = (), **more: Any) -> Generation:
    sampling = Sampling(max_tokens=TOKENS, ignore_eos=True)
    given = {"positions": None, "parcel": None, "rows": None, **more}
    return Generation(id=str(ids), ids=ids, media=media, sampling=sampling, ends=frozenset(), **given)


async def answer(core: Core, generation: Generation) -> list[int]:
    async with aclosing(core.generate(generation)) as stream:
        return [token async for tokens in stream for token in tokens.ids]


@torch.no_grad()
def greedy(model: Any, ids: Sequence[int], **inputs: Any) -> list[int]:
    given = torch.tensor([list(ids)])
    out = model.generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=False,
        **inputs,
    )
    return out[0, len(ids) :].tolist()


async def test_qwen3_text(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = text.tokenizer(SPECIAL, NAMES, TEMPLATE)
    model = Qwen3ForCausalLM(
        Qwen3Config(**DECODER, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    ).eval()
    weights.spread(model, 0)
    parts.greedy(model.generation_config, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    prompts = [list(range(20 + n, 24 + 9 * n)) for n in range(6)]

    core = Core(launch(tmp_path))
    try:
        await core.start()
        answers = await asyncio.gather(*(answer(core, asked(ids)) for ids in prompts))
    finally:
        await core.stop()

    assert answers == [greedy(model, ids) for ids in prompts]


async def test_heads_that_the_kernels_do_not_take_are_named_before_the_start(tmp_path: Path) -> None:
    core = Core(launch(tiny.build("qwen2_5_vl", tmp_path / "narrow")))

    with pytest.raises(Fatal, match="heads of 16"):
        await core.start()
    await core.stop()


def qwen3_vl(directory: Path) -> tuple[Any, Any]:
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    tokenizer = text.tokenizer(SPECIAL, NAMES, TEMPLATE)
    ids = tokenizer.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    config = Qwen3VLConfig(
        text_config={
            **DECODER,
            "vocab_size": len(tokenizer),
            "rope_parameters": rope,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    model = Qwen3VLForConditionalGeneration(config).eval()
    weights.spread(model, 0)
    parts.greedy(model.generation_config, tokenizer)
    model.save_pretrained(directory)
    size = {"shortest_edge": 4 * 32**2, "longest_edge": 64 * 32**2}
    images = Qwen2VLImageProcessor(size=size, patch_size=16, merge_size=2, temporal_patch_size=2)
    Qwen3VLProcessor(images, tokenizer, Qwen3VLVideoProcessor(), chat_template=TEMPLATE).save_pretrained(directory)
    return model, images


@torch.no_grad()
def picture(model: Any, images: Any, seed: int) -> tuple[int, Generation, list[int], Memory]:
    """How wide its embedding is, a question about it for vLLM, the true answer, and what has to be kept."""
    pixels = torch.randint(0, 255, (3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    seen = images(images=[pixels], return_tensors="pt")
    grid = seen["image_grid_thw"]
    out = model.model.get_image_features(seen["pixel_values"], grid, return_dict=True)
    levels = [torch.cat(list(level)) if isinstance(level, list | tuple) else level for level in out.deepstack_features]
    rows = torch.cat([torch.cat(list(out.pooler_output)), *levels], dim=-1)
    ids = [20, 21, model.config.vision_start_token_id, *[model.config.image_token_id] * len(rows), 30, 31, 32]
    kinds = (torch.tensor([ids]) == model.config.image_token_id).int()
    positions, delta = model.model.get_rope_index(
        torch.tensor([ids]), mm_token_type_ids=kinds, image_grid_thw=grid, attention_mask=torch.ones(1, len(ids))
    )
    parcel = Memory()
    medium = Medium(f"picture {seed}", "image", 3, (len(rows), rows.shape[1]), parcel.append(rows.numpy()))
    generation = asked(ids, [medium], positions=Positions(positions[:, 0].int(), int(delta)), parcel=parcel.place)
    true = greedy(model, ids, pixel_values=seen["pixel_values"], image_grid_thw=grid, mm_token_type_ids=kinds)
    return rows.shape[1], generation, true, parcel


async def test_qwen3_vl_without_its_tower_takes_the_deeper_levels_too(tmp_path: Path) -> None:
    model, images = qwen3_vl(tmp_path)
    pictures = [picture(model, images, seed) for seed in range(3)]

    core = Core(launch(tmp_path))
    try:
        await core.start()
        answers = await asyncio.gather(*(answer(core, generation) for _, generation, _, _ in pictures))
        held = core.stats()["parameters"]
    finally:
        await core.stop()

    assert [width for width, _, _, _ in pictures] == [3 * 64] * 3
    assert answers == [true for _, _, true, _ in pictures]
    assert len({tuple(one) for one in answers}) == 3
    language = (model.model.language_model, model.lm_head)
    assert held <= sum(parameter.numel() for part in language for parameter in part.parameters())
