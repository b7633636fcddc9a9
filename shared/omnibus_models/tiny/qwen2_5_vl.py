"""Tiny Qwen2.5-VL: ``Qwen2_5_VLForConditionalGeneration`` with two layers everywhere."""

from pathlib import Path
from typing import Any

from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights

torchvision_cpu.install_operators()

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
NAMES = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
TEMPLATE = _chat_tokenizer.build_chat_template(
    image="<|vision_start|><|image_pad|><|vision_end|>", video="<|vision_start|><|video_pad|><|vision_end|>"
)


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the LLM."""
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, NAMES, TEMPLATE)
    model = Qwen2_5_VLForConditionalGeneration(build_config(tokenizer, wide)).eval()
    save_checkpoint(model, Qwen2_5_VLProcessor, tokenizer, directory, seed, llm_seed)


def save_checkpoint(
    model: Any, processor: Any, tokenizer: Any, directory: Path, seed: int, llm_seed: int | None
) -> None:
    """Draw weights of ``model``, and write it to ``directory`` with a ``processor``."""
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.model.language_model, model.lm_head]), llm_seed)
    _weights.speak_words(model.lm_head.weight, tokenizer, stop_gain=3.0)
    _qwen.set_ends(model.generation_config, tokenizer)
    model.save_pretrained(directory)
    joint_processor = processor(_qwen.image_processor(), tokenizer, _qwen.video_processor(), chat_template=TEMPLATE)
    joint_processor.save_pretrained(directory)


def build_config(tokenizer: Any, wide: bool = False) -> Any:
    """Return the configuration of a tiny Qwen2.5-VL with ``tokenizer``'s ids."""
    from transformers import Qwen2_5_VLConfig

    return Qwen2_5_VLConfig(
        text_config=_qwen.text_config(tokenizer, wide), vision_config=_qwen.vision_config(), **media_entries(tokenizer)
    )


def media_entries(tokenizer: Any) -> dict[str, Any]:
    """Return the entries of configurations for media, with the ids of ``tokenizer``."""
    ids = tokenizer.convert_tokens_to_ids
    return {
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
        "tie_word_embeddings": False,
    }
