"""The model that draws descriptions: a small Qwen-Image."""

from pathlib import Path
from typing import Any

import torch

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _qwen, qwen2_5_vl, qwen_image
from omnibus_models.world import checkpoint_io, scenes, tokens

torchvision_cpu.install_operators()

FAMILY = "qwen_image"
#: What has weights.
LEARNT = ("vae", "text_encoder", "transformer")
LATENTS = 8  # channels
SCALE = 8  # pixels on a side of one latent
#: Latents on a side of an image.
LATENT_SIDE = scenes.SIDE // SCALE
_PATCH = 2
_READING, _PAINTING, _HEADS, _LAYERS = 64, 32, 2, 4
_CONTEXT = 1024


def tokenizer() -> Any:
    return tokens.train_tokenizer(qwen2_5_vl.SPECIAL, qwen2_5_vl.NAMES, qwen2_5_vl.TEMPLATE)


def build(seed: int) -> dict[str, Any]:
    """Untrained parts of the pipeline, by the names of its arguments."""
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    text_tokenizer = tokenizer()
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(**qwen_image.SCHEDULE),
        "vae": AutoencoderKLQwenImage(**_vae()),
        "text_encoder": Qwen2_5_VLForConditionalGeneration(_reader(text_tokenizer)),
        "tokenizer": text_tokenizer,
        "transformer": QwenImageTransformer2DModel(**_transformer()),
    }


def save(components: dict[str, Any], directory: Path) -> None:
    """Write a checkpoint as the library does, its numbers as bfloat16."""
    from diffusers import QwenImagePipeline

    learnt = {name: checkpoint_io.to_bfloat16(components[name]) for name in LEARNT}
    QwenImagePipeline(**{**components, **learnt}).save_pretrained(directory)
    checkpoint_io.declare_float32(directory / "text_encoder" / "config.json")


def _reader(text_tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig

    words = {**_qwen.text_config(text_tokenizer), "hidden_size": _READING, "max_position_embeddings": _CONTEXT}
    # The pipeline has no use for its eyes, which are there because the class has them.
    eyes = {
        **_qwen.vision_config(), "depth": 1, "fullatt_block_indexes": [0], "hidden_size": 16, "intermediate_size": 16,
        "num_heads": 1, "out_hidden_size": _READING, "patch_size": 4,
    }  # fmt: skip
    return Qwen2_5_VLConfig(text_config=words, vision_config=eyes, **qwen2_5_vl.media_entries(text_tokenizer))


def _transformer() -> dict[str, Any]:
    return {
        "patch_size": _PATCH,
        "in_channels": _PATCH**2 * LATENTS,
        "out_channels": LATENTS,
        "num_layers": _LAYERS,
        "attention_head_dim": _PAINTING,
        "num_attention_heads": _HEADS,
        "joint_attention_dim": _READING,
        "axes_dims_rope": (8, 12, 12),
    }


def _vae() -> dict[str, Any]:
    return {
        "base_dim": 8,
        "z_dim": LATENTS,
        "dim_mult": [1, 2, 2, 4],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [0.0] * LATENTS,
        "latents_std": [1.0] * LATENTS,
    }
