"""A tiny pipeline without a family of its own: ``WanPipeline`` with a transformer of two layers."""

from pathlib import Path
from typing import Any

from omnibus_models.tiny import _weights, modular_image

_LATENTS = 16  # channels


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write the pipeline to ``directory``; ``llm_seed`` is only for the text encoder."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel

    modules: dict[str, Any] = {
        "text_encoder": modular_image.build_t5("UMT5"),
        "transformer": WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=_LATENTS,
            out_channels=_LATENTS,
            text_dim=32,
            freq_dim=64,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
        ),
        "vae": AutoencoderKLWan(
            base_dim=4,
            z_dim=_LATENTS,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
        ),
    }
    for name, module in modules.items():
        _weights.redraw_weights(module.eval(), llm_seed if name == "text_encoder" and llm_seed is not None else seed)
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    tokenizer = modular_image.build_tokenizer(512)
    WanPipeline(tokenizer=tokenizer, scheduler=scheduler, **modules).save_pretrained(directory)
