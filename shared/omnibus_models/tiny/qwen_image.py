"""Tiny Qwen-Image: ``QwenImagePipeline`` with a transformer of two layers."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights, qwen2_5_vl

torchvision_cpu.install_operators()

_LATENTS = 4  # channels
_HEADS, _WIDTH = 3, 16


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write the pipeline to ``directory``; ``llm_seed`` is only for the text encoder's language model."""
    from diffusers import QwenImagePipeline

    QwenImagePipeline(**build_components(seed, llm_seed)).save_pretrained(directory)


def build_components(seed: int, llm_seed: int | None = None, base: int = 16) -> dict[str, Any]:
    """Return the common components of Qwen-Image's pipelines, by their argument names.

    ``base`` is the number of channels of most layers of the VAE. The last ones have twice as many.
    """
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLForConditionalGeneration

    tokenizer = _chat_tokenizer.train_tokenizer(qwen2_5_vl.SPECIAL, qwen2_5_vl.NAMES, qwen2_5_vl.TEMPLATE)
    text_encoder = Qwen2_5_VLForConditionalGeneration(qwen2_5_vl.build_config(tokenizer)).eval()
    transformer = QwenImageTransformer2DModel(**_transformer_config()).eval()
    vae = AutoencoderKLQwenImage(**_vae_config(base)).eval()
    for module in (text_encoder, transformer, vae):
        _weights.redraw_weights(module, seed)
    _damp_decoder(vae)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([text_encoder.model.language_model, text_encoder.lm_head]), llm_seed)
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(**SCHEDULE),
        "vae": vae,
        "text_encoder": text_encoder,
        "tokenizer": tokenizer,
        "transformer": transformer,
    }


@torch.no_grad()
def _damp_decoder(vae: Any) -> None:
    """Make colours follow the latents, which random residual branches alone would ignore."""
    for name, parameter in vae.decoder.named_parameters():
        if name.endswith(("conv2.weight", "proj.weight")):
            parameter *= 0.3


#: Schedule of the released model.
SCHEDULE = {
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "shift_terminal": 0.02,
    "time_shift_type": "exponential",
    "shift": 1.0,
}


def _transformer_config() -> dict[str, Any]:
    return {
        "patch_size": 2,
        "in_channels": 4 * _LATENTS,
        "out_channels": _LATENTS,
        "num_layers": 2,
        "attention_head_dim": _WIDTH,
        "num_attention_heads": _HEADS,
        "joint_attention_dim": _qwen.HIDDEN,
        "axes_dims_rope": (8, 4, 4),
    }


def _vae_config(base: int) -> dict[str, Any]:
    # A latent is 8 x 8 pixels, as in the released model: pipelines without a VAE assume that.
    return {
        "base_dim": base,
        "z_dim": _LATENTS,
        "dim_mult": [1, 1, 1, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [0.1, -0.2, 0.3, 0.0],
        "latents_std": [1.5, 0.8, 1.2, 1.0],
    }
