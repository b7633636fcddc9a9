"""Tiny Qwen3-VL: ``Qwen3VLForConditionalGeneration`` with three layers, two with deepstack."""

from pathlib import Path
from typing import Any

from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights
from omnibus_models.tiny.qwen2_5_vl import NAMES, SPECIAL, TEMPLATE

torchvision_cpu.install_operators()

_PATCH = 16
_UNIT = (2 * _PATCH) ** 2  # pixels of one visual token
_FRAMES = 64  # most of a video


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, NAMES, TEMPLATE)
    model = Qwen3VLForConditionalGeneration(build_config(tokenizer, wide)).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.model.language_model, model.lm_head]), llm_seed)
    _weights.sharpen_attention(model.model.language_model)
    _weights.speak_words(model.lm_head.weight, tokenizer, stop_gain=3.0)
    _qwen.set_ends(model.generation_config, tokenizer)
    model.save_pretrained(directory)
    processor = Qwen3VLProcessor(image_processor(), tokenizer, video_processor(), chat_template=TEMPLATE)
    processor.save_pretrained(directory)


def build_config(tokenizer: Any, wide: bool = False) -> Any:
    """Return the configuration of a tiny Qwen3-VL with ``tokenizer``'s ids."""
    from transformers import Qwen3VLConfig

    ids = tokenizer.convert_tokens_to_ids
    return Qwen3VLConfig(
        text_config=text_config(tokenizer, wide),
        vision_config=vision_config(),
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def text_config(tokenizer: Any, wide: bool = False) -> dict[str, Any]:
    """Return three decoder layers with [T, 64] hidden states.

    They have two key/value heads of 16, or one of 32 if ``wide``.
    """
    size = 32 if wide else 16
    section = [6, 5, 5] if wide else [3, 3, 2]
    return {
        **_qwen.text_config(tokenizer, wide),
        "num_hidden_layers": 3,
        "head_dim": size,
        "rope_parameters": {**_qwen.ROPE, "mrope_section": section, "mrope_interleaved": True},
    }


def vision_config() -> dict[str, Any]:
    """Return three blocks; the output of the first two feeds layers of the language model."""
    return {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": _qwen.HIDDEN,
        "patch_size": _PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }


def _image_geometry(most: int) -> dict[str, Any]:
    size = {"shortest_edge": 4 * _UNIT, "longest_edge": most * _UNIT}
    return {"size": size, "patch_size": _PATCH, "merge_size": 2, "temporal_patch_size": 2}


def image_processor() -> Any:
    """Return a processor with 4 to 64 tokens per image."""
    from transformers import Qwen2VLImageProcessor

    return Qwen2VLImageProcessor(**_image_geometry(64))


def video_processor() -> Any:
    """Return a processor with one frame size, as in the real model."""
    from transformers import Qwen3VLVideoProcessor

    return Qwen3VLVideoProcessor(**_image_geometry(8 * _FRAMES), cap_pixels_per_frame=False)
