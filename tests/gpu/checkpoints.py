"""Checkpoints of real architectures with random weights, as large as a GPU needs to be busy.

Each begins as a tiny checkpoint (``omnibus_models.tiny``), which has a tokenizer, processors and voices. Its models are
then built anew with more and wider layers, on the device itself, in bfloat16.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from omnibus_models import tiny

#: Changes to a configuration: values by name, nested as in the file.
Changes = Mapping[str, Any]


class Recipe(NamedTuple):
    """A tiny checkpoint and its changes by folder; the folder ``""`` is the checkpoint itself."""

    tiny: str
    family: str
    changes: Mapping[str, Changes]


_VOCABULARY = 151_936
_CODES = 500  # of a talker, 50 for a second of speech
_QWEN3 = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": _VOCABULARY,
}  # fmt: skip
_QWEN2_5 = {
    "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16, "num_key_value_heads": 2,
    "vocab_size": _VOCABULARY, "rope_parameters": {"mrope_section": [16, 24, 24]},
}  # fmt: skip
_QWEN2_5_VISION = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
    "fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112,
}  # fmt: skip
_QWEN3_5 = {
    "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 256, "vocab_size": _VOCABULARY,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
    "rope_parameters": {"mrope_section": [11, 11, 10]},
}  # fmt: skip
_TALKER = {
    "embedding_size": 2048, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64, "rope_parameters": {"mrope_section": [8, 12, 12]},
}  # fmt: skip
_CODES_TO_WAVE = {
    "dit_config": {
        "hidden_size": 1024, "num_hidden_layers": 22, "num_attention_heads": 16, "head_dim": 64, "emb_dim": 512,
        "look_ahead_layers": [10], "look_backward_layers": [0, 20],
    },
    "bigvgan_config": {
        "upsample_initial_channel": 1536, "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5]] * 3,
    },
}  # fmt: skip
_FLUX = {
    "num_layers": 8, "num_single_layers": 16, "attention_head_dim": 128, "num_attention_heads": 16,
    "axes_dims_rope": [16, 56, 56],
}  # fmt: skip
_VAE = {
    "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "norm_num_groups": 32,
    "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
}  # fmt: skip
_WHISPER = {
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
    "decoder_layers": 4, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120,
}  # fmt: skip
_BERT = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}

RECIPES = {
    "text": Recipe("qwen3", "qwen3", {"": _QWEN3}),
    "images": Recipe(
        "qwen2_5_vl", "qwen2_5_vl", {"": {"text_config": {**_QWEN2_5, "num_hidden_layers": 36}, "vision_config": _QWEN2_5_VISION}}
    ),
    "linear": Recipe(
        "multimodal_lm", "multimodal_lm", {"": {"text_config": _QWEN3_5, "vision_config": {"out_hidden_size": 1024, "depth": 12}}}
    ),
    "painter": Recipe("modular_image", "modular_image", {"transformer": _FLUX, "vae": _VAE}),
    "recognizer": Recipe("speech_to_text", "speech_to_text", {"": _WHISPER}),
    "sentences": Recipe("sentence_encoder", "sentence_encoder", {"": _BERT}),
    "speech": Recipe(
        "qwen2_5_omni", "qwen2_5_omni",
        {"": {
            "thinker_config": {
                "text_config": {**_QWEN2_5, "num_hidden_layers": 16},
                "vision_config": _QWEN2_5_VISION, "audio_config": {"output_dim": 2048},
            },
            "talker_config": _TALKER, "token2wav_config": _CODES_TO_WAVE,
        }},
    ),
}  # fmt: skip


def build(name: str, directory: Path, device: str, *, small: bool) -> Path:
    """Write the checkpoint ``name`` of ``RECIPES``; ``small`` leaves the tiny one as it is."""
    recipe = RECIPES[name]
    path = tiny.build(recipe.tiny, directory / name)
    if not small:
        for folder, changes in recipe.changes.items():
            _grow(path / folder, changes, device)
        (path / tiny.MARKER).unlink()
    return path


def _grow(directory: Path, changes: Changes, device: str) -> None:
    file = directory / "config.json"
    fields = _merge(json.loads(file.read_text()), changes)
    kept = {path: path.read_bytes() for path in directory.glob("*.json") if path != file and "index" not in path.name}
    for weights in directory.glob("*.safetensors*"):
        weights.unlink()
    file.write_text(json.dumps(fields))
    model = _build_model(directory, fields, device)
    _draw_weights(model)
    model.save_pretrained(directory)
    for path, content in kept.items():
        path.write_bytes(content)
    _lengthen_speech(directory / "generation_config.json")


def _lengthen_speech(file: Path) -> None:
    """Let a talker speak for ten seconds, where there is one."""
    settings = json.loads(file.read_text()) if file.exists() else {}
    if "talker_max_new_tokens" in settings:
        file.write_text(json.dumps({**settings, "talker_max_new_tokens": _CODES}))


def _merge(fields: dict[str, Any], changes: Changes) -> dict[str, Any]:
    nested = {name: _merge(fields.get(name) or {}, value) for name, value in changes.items() if isinstance(value, dict)}
    merged = {**fields, **changes, **nested}
    layers = merged.get("num_hidden_layers")
    if isinstance(merged.get("layer_types"), list) and "layer_types" not in changes and layers:
        merged["layer_types"] = [merged["layer_types"][-1]] * layers
    return merged


def _build_model(directory: Path, fields: Mapping[str, Any], device: str) -> Any:
    """Build the model of a configuration, of diffusers or of transformers, with weights that are drawn later."""
    import diffusers
    import transformers

    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            if name := fields.get("_class_name"):
                return getattr(diffusers, name).from_config(dict(fields))
            cls = getattr(transformers, fields["architectures"][0])
            return cls(cls.config_class.from_pretrained(directory)).to(torch.bfloat16)
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def _draw_weights(model: torch.nn.Module) -> None:
    """Standard deviation 1/sqrt(fan in): with that of the library, logits are almost tied."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0.0, parameter[0].numel() ** -0.5)
