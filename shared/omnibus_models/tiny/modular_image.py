"""A tiny pipeline without a family of its own: ``FluxPipeline`` with one layer of each kind."""

from pathlib import Path
from typing import Any

from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _weights

torchvision_cpu.install_operators()

_SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
_WIDTH, _HEADS = 32, 4  # of text encoders


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write the pipeline to ``directory``; ``llm_seed`` is only for the text encoders."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    encoders = {"text_encoder": _build_clip(), "text_encoder_2": build_t5()}
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=_WIDTH,
        pooled_projection_dim=_WIDTH,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    modules: dict[str, Any] = {**encoders, "transformer": transformer, "vae": _build_vae()}
    for module in modules.values():
        _weights.redraw_weights(module.eval(), seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList(encoders.values()), llm_seed)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    tokenizers = {"tokenizer": build_tokenizer(77), "tokenizer_2": build_tokenizer(512)}
    FluxPipeline(scheduler=scheduler, **tokenizers, **modules).save_pretrained(directory)


def build_tokenizer(length: int) -> Any:
    """Return a tokenizer for texts of at most ``length`` tokens."""
    tokenizer = _chat_tokenizer.train_tokenizer(_SPECIAL, {}, "", bos="<s>", eos="</s>", pad="<pad>")
    tokenizer.model_max_length = length
    tokenizer.padding_side = "right"
    return tokenizer


def build_t5(kind: str = "T5", width: int = _WIDTH) -> Any:
    """Return the encoder of a T5, or of a UMT5, with rows of ``width``."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=_chat_tokenizer.VOCABULARY, d_model=width, d_kv=8, d_ff=64, num_layers=2, num_heads=_HEADS
    )
    return getattr(transformers, f"{kind}EncoderModel")(config)


def _build_clip() -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=_chat_tokenizer.VOCABULARY,
        hidden_size=_WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=_HEADS,
        projection_dim=_WIDTH,
        eos_token_id=2,
    )
    return CLIPTextModel(config)


def _build_vae() -> Any:
    from diffusers import AutoencoderKL

    # A latent is 4 x 4 pixels: a block that does not know the VAE would take 8.
    return AutoencoderKL(
        block_out_channels=(8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        norm_num_groups=2,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=0.5,
    )
