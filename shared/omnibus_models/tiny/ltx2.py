"""Tiny LTX-2: ``LTX2Pipeline`` with two layers, for short videos with audio."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights

torchvision_cpu.install_operators()

SPECIAL = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<image_soft_token>")
_WIDTH, _LAYERS = 32, 2  # of the language model
_LATENTS = 8  # channels of the video's latents, and of those of the audio at one point in time
_MEL = 16  # bins
_RATE = 8000  # samples per second: 80 for each of 100 spectra


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write the pipeline to ``directory``; ``llm_seed`` is only for the text encoder's language model."""
    from diffusers import FlowMatchEulerDiscreteScheduler, LTX2Pipeline, LTX2VideoTransformer3DModel
    from diffusers.pipelines.ltx2 import LTX2TextConnectors
    from transformers import Gemma3ForConditionalGeneration

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, {}, "", bos="<bos>", eos="<eos>", pad="<pad>")
    components = {
        "text_encoder": Gemma3ForConditionalGeneration(build_gemma(tokenizer)),
        "connectors": LTX2TextConnectors(**connectors_config()),
        "transformer": LTX2VideoTransformer3DModel(**transformer_config()),
        **build_decoders(),
    }
    for module in components.values():
        _weights.redraw_weights(module.eval(), seed)
    if llm_seed is not None:
        encoder = components["text_encoder"]
        _weights.redraw_weights(nn.ModuleList([encoder.model.language_model, encoder.lm_head]), llm_seed)
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULE)
    LTX2Pipeline(scheduler=scheduler, tokenizer=tokenizer, **components).save_pretrained(directory)


def build_decoders() -> dict[str, Any]:
    """Return the VAEs and the vocoder.

    The VAEs' latents have means and deviations, as in released ones.
    """
    from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

    components = {
        "vae": AutoencoderKLLTX2Video(**_vae_config()),
        "audio_vae": AutoencoderKLLTX2Audio(
            base_channels=_LATENTS,
            ch_mult=(1, 1, 1),
            num_res_blocks=1,
            resolution=32,
            latent_channels=_LATENTS * 4 // _MEL,
            mel_bins=_MEL,
        ),
    }
    for module in components.values():
        module.latents_mean.copy_(torch.linspace(-0.3, 0.2, _LATENTS))
        module.latents_std.copy_(torch.linspace(0.7, 1.4, _LATENTS))
    vocoder = LTX2Vocoder(
        in_channels=2 * _MEL,
        hidden_channels=32,
        upsample_kernel_sizes=[11, 8, 8],
        upsample_factors=[5, 4, 4],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
        output_sampling_rate=_RATE,
    )
    return {**components, "vocoder": vocoder}


#: Schedule of the released model.
SCHEDULE = {
    "use_dynamic_shifting": True,
    "base_shift": 0.95,
    "max_shift": 2.05,
    "base_image_seq_len": 1024,
    "max_image_seq_len": 4096,
    "shift_terminal": 0.1,
    "time_shift_type": "exponential",
    "shift": 1.0,
}


def build_gemma(tokenizer: Any) -> Any:
    from transformers import Gemma3Config

    language = {
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": _LAYERS,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "max_position_embeddings": _qwen.CONTEXT,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 56,
        "patch_size": _qwen.PATCH,
        "vision_use_head": False,
    }
    return Gemma3Config(
        text_config=language,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
        tie_word_embeddings=False,
    )


def connectors_config() -> dict[str, Any]:
    # Without learned registers, since their thousand rows would outweigh the few of a prompt.
    heads = {
        "num_attention_heads": 2,
        "attention_head_dim": _WIDTH // 2,
        "num_layers": 1,
        "num_learnable_registers": None,
    }
    return {
        "caption_channels": _WIDTH,
        "text_proj_in_factor": _LAYERS + 1,
        **{f"{kind}_connector_{name}": value for kind in ("video", "audio") for name, value in heads.items()},
        "rope_double_precision": False,
        "rope_type": "split",
    }


def transformer_config() -> dict[str, Any]:
    return {
        "in_channels": _LATENTS,
        "out_channels": _LATENTS,
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "cross_attention_dim": 24,
        "vae_scale_factors": (8, 8, 8),
        "audio_in_channels": _LATENTS,
        "audio_out_channels": _LATENTS,
        "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 8,
        "audio_cross_attention_dim": 16,
        "num_layers": 2,
        "caption_channels": _WIDTH,
        "rope_double_precision": False,
        "rope_type": "split",
        "perturbed_attn": True,
    }


def _vae_config() -> dict[str, Any]:
    # A latent is 8 x 8 pixels of 8 frames.
    return {
        "latent_channels": _LATENTS,
        "block_out_channels": (8, 16, 16),
        "down_block_types": ("LTX2VideoDownBlock3D",) * 3,
        "decoder_block_out_channels": (8, 16, 16),
        "layers_per_block": (1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1),
        "spatio_temporal_scaling": (True, True, True),
        "decoder_spatio_temporal_scaling": (True, True, True),
        "decoder_inject_noise": (False,) * 4,
        "downsample_type": ("spatiotemporal",) * 3,
        "upsample_residual": (False,) * 3,
        "upsample_factor": (1, 1, 1),
        "patch_size": 1,
        "patch_size_t": 1,
        "encoder_causal": True,
        "decoder_causal": False,
    }
