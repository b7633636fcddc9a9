"""Base of the tiny models with plain positions: language models, towers and storage."""

from pathlib import Path
from typing import Any

from torch import nn

from omnibus_models.tiny import _qwen, _weights

SIDE = 56  # pixels of a tile
PATCH = 14
_WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
_WIDE = {"num_attention_heads": 2, "num_key_value_heads": 1}


def language_config(kind: str, tokenizer: Any, wide: bool = False) -> dict[str, Any]:
    """Return two layers of the library's ``kind``, with [T, 64] hidden states.

    They have two key/value heads of 16, or one of 32 if ``wide``.
    """
    config: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": _qwen.HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": _qwen.CONTEXT,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    return {**config, **_WIDE} if wide else config


def clip_config() -> dict[str, Any]:
    """Return a CLIP tower: 16 patches, and one row for a whole tile.

    The last layer of three is not used.
    """
    return {
        **_WIDTH,
        "model_type": "clip_vision_model",
        "num_hidden_layers": 3,
        "image_size": SIDE,
        "patch_size": PATCH,
        "projection_dim": 32,
    }


def siglip_config() -> dict[str, Any]:
    """Return a SigLIP tower: 16 patches of a tile."""
    return {
        **_WIDTH,
        "model_type": "siglip_vision_model",
        "num_hidden_layers": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
        "vision_use_head": False,
    }


def save_checkpoint(directory: Path, model: Any, processor: Any, seed: int, llm_seed: int | None) -> None:
    """Draw the weights, and write model and processor to ``directory``.

    With an ``llm_seed``, those of the language model use it.
    """
    _weights.redraw_weights(model.eval(), seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.model.language_model, model.lm_head]), llm_seed)
    _weights.speak_words(model.lm_head.weight, processor.tokenizer, stop_gain=3.0)
    _qwen.set_ends(model.generation_config, processor.tokenizer)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
