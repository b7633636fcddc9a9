"""Common parts of the tiny Qwen checkpoints: sizes, processors, generation settings."""

from typing import Any

HIDDEN = 64
CONTEXT = 4096
PATCH = 14
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}

_WIDE = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_parameters": {**ROPE, "mrope_section": [4, 6, 6]},
}


def text_config(tokenizer: Any, wide: bool = False) -> dict[str, Any]:
    """Return two decoder layers with [T, 64] hidden states.

    They have two key/value heads of 16, or one of 32 if ``wide``.
    """
    config: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "vocab_size": len(tokenizer),
        "rope_parameters": dict(ROPE),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    return {**config, **_WIDE} if wide else config


def vision_config() -> dict[str, Any]:
    """Return two blocks: windowed and full attention, as in the real model."""
    return {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "fullatt_block_indexes": [1],
        "window_size": 4 * PATCH,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _patch_geometry(patch: int) -> dict[str, Any]:
    unit = (2 * patch) ** 2  # pixels of one visual token
    size = {"shortest_edge": 4 * unit, "longest_edge": 64 * unit}
    return {"size": size, "patch_size": patch, "merge_size": 2, "temporal_patch_size": 2}


def image_processor(patch: int = PATCH) -> Any:
    """4 to 64 tokens per image."""
    from transformers import Qwen2VLImageProcessor

    return Qwen2VLImageProcessor(**_patch_geometry(patch))


def video_processor(patch: int = PATCH) -> Any:
    """4 to 64 tokens per pair of frames."""
    from transformers import Qwen2VLVideoProcessor

    return Qwen2VLVideoProcessor(**_patch_geometry(patch), cap_pixels_per_frame=False)


def set_greedy(generation_config: Any, tokenizer: Any) -> None:
    """Set end of turn and greedy choice as defaults, for trained weights."""
    set_ends(generation_config, tokenizer)
    generation_config.do_sample = False


def set_ends(generation_config: Any, tokenizer: Any) -> None:
    """Set end of turn as the checkpoint's default; random weights recommend no sampling."""
    # When derived settings are read again, they lose every field that the model's configuration lacks.
    generation_config._from_model_config = False
    generation_config.eos_token_id = [tokenizer.eos_token_id]
    generation_config.pad_token_id = tokenizer.pad_token_id
