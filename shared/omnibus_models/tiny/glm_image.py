"""Tiny GLM-Image: ``GlmImagePipeline`` with a transformer and a prior of two layers."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights

torchvision_cpu.install_operators()

_CODES = 64
_BEGIN, _END = "<|dit_token_64|>", "<|dit_token_65|>"
#: Tokens of images come before those of text, in one table.
SPECIAL = (
    *(f"<|dit_token_{code}|>" for code in range(_CODES + 2)),
    "<|image|>",
    "<sop>",
    "<eop>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|user|>",
    "<|assistant|>",
)
NAMES = {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}"
    "{%- for part in message['content'] -%}"
    f"{{%- if part['type'] == 'image' -%}}{_BEGIN}<|image|>{_END}{{%- else -%}}{{{{ part['text'] }}}}{{%- endif -%}}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
)
_LATENTS = 4  # channels
_GLYPHS = 32


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write the pipeline to ``directory``; ``llm_seed`` is only for the prior's language model."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        GlmImagePipeline,
        GlmImageTransformer2DModel,
    )
    from transformers import ByT5Tokenizer, GlmImageForConditionalGeneration, T5Config, T5EncoderModel

    processor = _build_processor()
    prior = GlmImageForConditionalGeneration(_build_prior(processor.tokenizer)).eval()
    text_encoder = T5EncoderModel(T5Config(**_GLYPH_ENCODER)).eval()
    transformer = GlmImageTransformer2DModel(**_TRANSFORMER).eval()
    vae = AutoencoderKL(**_VAE).eval()
    for module in (prior, text_encoder, transformer, vae):
        _weights.redraw_weights(module, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([prior.model.language_model, prior.lm_head]), llm_seed)
    _damp_decoder(vae)
    prior_config = prior.generation_config
    prior_config._from_model_config = False
    prior_config.eos_token_id, prior_config.pad_token_id = _CODES + 1, processor.tokenizer.pad_token_id
    prior_config.do_sample, prior_config.temperature, prior_config.top_p = True, 0.9, 0.75
    # The pipeline does not handle an image that ends early. The released model has learned to avoid that.
    prior_config.suppress_tokens = [_CODES, _CODES + 1]
    pipeline = GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        processor=processor,
        text_encoder=text_encoder,
        vision_language_encoder=prior,
        vae=vae,
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(**_SCHEDULE),
    )
    pipeline.save_pretrained(directory)


@torch.no_grad()
def _damp_decoder(vae: Any) -> None:
    """Make colours follow the latents, which random residual branches alone would ignore."""
    for name, parameter in vae.decoder.named_parameters():
        if name.endswith(("conv2.weight", "to_out.0.weight")):
            parameter *= 0.1


def _build_processor() -> Any:
    from transformers import GlmImageImageProcessor, GlmImageProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, NAMES, TEMPLATE)
    tokenizer.add_special_tokens({"bos_token": _BEGIN})
    # Source images become 1 to 16 tokens.
    size = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    images = GlmImageImageProcessor(patch_size=16, merge_size=1, temporal_patch_size=1, size=size)
    return GlmImageProcessor(images, tokenizer, chat_template=TEMPLATE)


def _build_prior(tokenizer: Any) -> Any:
    from transformers import GlmImageConfig

    return GlmImageConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "vision_vocab_size": _CODES + 2,
            "hidden_size": _qwen.HIDDEN,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": _qwen.CONTEXT,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": _CODES + 1,
            "rope_parameters": {**_qwen.ROPE, "partial_rotary_factor": 1.0},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 64,
            "image_size": 128,
            "patch_size": 16,
            "spatial_merge_size": 1,
        },
        vq_config={"embed_dim": 16, "num_embeddings": _CODES, "latent_channels": 32},
        image_token_id=tokenizer.image_token_id,
        image_start_token_id=_CODES,
        image_end_token_id=_CODES + 1,
    )


_GLYPH_ENCODER = {
    "d_model": _GLYPHS,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 384,
    "is_encoder_decoder": False,
}
_TRANSFORMER = {
    "patch_size": 2,
    "in_channels": _LATENTS,
    "out_channels": _LATENTS,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "text_embed_dim": _GLYPHS,
    "time_embed_dim": 32,
    "condition_dim": 16,
    "prior_vq_quantizer_codebook_size": _CODES,
}
# A latent is 8 x 8 pixels, as in the released model: pipelines without a VAE assume that.
_VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [8, 8, 16, 16],
    "layers_per_block": 1,
    "latent_channels": _LATENTS,
    "norm_num_groups": 4,
    "latents_mean": [0.1, -0.2, 0.3, 0.0],
    "latents_std": [1.5, 0.8, 1.2, 1.0],
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "sample_size": 64,
}
#: Schedule of the released model.
_SCHEDULE = {
    "use_dynamic_shifting": True,
    "base_shift": 0.25,
    "max_shift": 0.75,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "time_shift_type": "linear",
    "shift": 1.0,
}
