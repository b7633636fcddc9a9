"""Tiny Qwen-Image-Edit: ``QwenImageEditPipeline`` with tiny Qwen-Image's parts and an image processor."""

from pathlib import Path
from typing import Any

import torch

from omnibus_models.tiny import _qwen, qwen2_5_vl, qwen_image

#: Pixels of a visual token, and tokens of an image: at most 112 x 112 pixels.
_TOKEN_PIXELS, _MIN_TOKENS, _MAX_TOKENS = 28**2, 4, 16


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write the pipeline to ``directory``; ``llm_seed`` is only for the text encoder's language model."""
    from diffusers import QwenImageEditPipeline
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor

    components = qwen_image.build_components(seed, llm_seed, base=8)
    _damp_encoder(components["vae"])
    _amplify_attention(components["transformer"])
    size = {"shortest_edge": _MIN_TOKENS * _TOKEN_PIXELS, "longest_edge": _MAX_TOKENS * _TOKEN_PIXELS}
    images = Qwen2VLImageProcessor(size=size, patch_size=_qwen.PATCH, merge_size=2, temporal_patch_size=2)
    processor = Qwen2_5_VLProcessor(
        images, components["tokenizer"], _qwen.video_processor(), chat_template=qwen2_5_vl.TEMPLATE
    )
    QwenImageEditPipeline(**components, processor=processor).save_pretrained(directory)


@torch.no_grad()
def _damp_encoder(vae: Any) -> None:
    """Make latents follow the image, as ``qwen_image`` makes colours follow the latents."""
    for name, parameter in vae.encoder.named_parameters():
        if name.endswith(("conv2.weight", "proj.weight")):
            parameter *= 0.3


@torch.no_grad()
def _amplify_attention(transformer: Any) -> None:
    """Amplify the effect of prompt and image, which random attention averages out."""
    for name, parameter in transformer.named_parameters():
        if ".attn.norm_" in name:
            parameter *= 2.0
        elif ".attn.to_out" in name or ".attn.to_add_out" in name:
            parameter *= 3.0
