"""Small random copies of pipelines that diffusers has in blocks: the same classes with one or two layers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

from omnibus_models.tiny import _chat_tokenizer, _weights, ltx2, modular_image, qwen2_5_vl, qwen3_vl

#: A part of a pipeline: its class and the arguments of its constructor, or a function that makes it; else a setting.
Part = bool | tuple[str, Mapping[str, Any]] | Callable[[], Any]

_WIDTH = 32  # of rows of text encoders, with two heads of 16
_VOCABULARY = 700
_DECODER = {
    "hidden_size": _WIDTH,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 9000,
}
_MROPE = {"rope_type": "default", "mrope_section": [3, 3, 2], "rope_theta": 1e4}
_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": _WIDTH}
_PIXTRAL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "head_dim": 8}


def _qwen_tokenizer() -> Any:
    tokenizer = _chat_tokenizer.train_tokenizer(qwen2_5_vl.SPECIAL, qwen2_5_vl.NAMES, qwen2_5_vl.TEMPLATE)
    tokenizer.padding_side = "right"
    return tokenizer


def _qwen2_vl_processor() -> Any:
    tokenizer = _qwen_tokenizer()
    images = transformers.Qwen2VLImageProcessor(min_pixels=28 * 28 * 4, max_pixels=28 * 28 * 16)
    videos = transformers.Qwen2VLVideoProcessor()
    return transformers.Qwen2VLProcessor(images, tokenizer, videos, chat_template=qwen2_5_vl.TEMPLATE)


def _qwen3_vl_processor() -> Any:
    tokenizer = _qwen_tokenizer()
    return transformers.Qwen3VLProcessor(
        qwen3_vl.image_processor(), tokenizer, qwen3_vl.video_processor(), chat_template=qwen2_5_vl.TEMPLATE
    )


def _text_model(cls: str, layers: int = 2) -> Callable[[], Any]:
    """Return a function that makes a language model of ``cls``."""

    def make_model() -> Any:
        kind = getattr(transformers, cls)
        config = {**_DECODER, "num_hidden_layers": layers}
        if "3VL" in cls:
            return kind(
                kind.config_class(
                    text_config={**config, "rope_scaling": _MROPE, "rope_parameters": _MROPE},
                    vision_config={**_VISION, "deepstack_visual_indexes": [0]},
                )
            )
        if "VL" in cls:
            return kind(kind.config_class(**config, rope_scaling=_MROPE, rope_parameters=_MROPE))
        if "Mistral3" in cls:
            text, vision = {**config, "model_type": "mistral"}, {**_PIXTRAL, "model_type": "pixtral"}
            return kind(kind.config_class(text_config=text, vision_config=vision))
        return kind(kind.config_class(**config))

    return make_model


def _t5_encoder(kind: str = "T5", width: int = _WIDTH) -> Callable[[], Any]:
    return lambda: modular_image.build_t5(kind, width)


def _gemma_tokenizer() -> Any:
    return _chat_tokenizer.train_tokenizer(ltx2.SPECIAL, {}, "", bos="<bos>", eos="<eos>", pad="<pad>")


def _clip_text(cls: str = "CLIPTextModelWithProjection") -> Callable[[], Any]:
    def make_clip() -> Any:
        config = transformers.CLIPTextConfig(
            vocab_size=_VOCABULARY, hidden_size=_WIDTH, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, projection_dim=_WIDTH, eos_token_id=2,
        )  # fmt: skip
        return getattr(transformers, cls)(config)

    return make_clip


def _clip_vision() -> Any:
    config = transformers.CLIPVisionConfig(
        hidden_size=_WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=32,
        patch_size=8, projection_dim=_WIDTH,
    )  # fmt: skip
    return transformers.CLIPVisionModel(config)


def _siglip_vision() -> Any:
    config = transformers.SiglipVisionConfig(
        hidden_size=12, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
    )
    return transformers.SiglipVisionModel(config)


def _text_tokenizer(length: int = 512) -> Callable[[], Any]:
    return lambda: modular_image.build_tokenizer(length)


_FLOW: Part = ("FlowMatchEulerDiscreteScheduler", {})
_SHIFTED: Part = ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True})
_UNIPC: Part = (
    "UniPCMultistepScheduler",
    {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0},
)
_BLOCKS_2D = {
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "block_out_channels": (8, 8, 8),
    "norm_num_groups": 2,
    "layers_per_block": 1,
}
_FOUR_BLOCKS = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (4,) * 4,
}
_KL: tuple[str, Mapping[str, Any]] = (
    "AutoencoderKL",
    {**_BLOCKS_2D, "latent_channels": 4, "use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.1},
)
_KL_FLUX2: Part = ("AutoencoderKLFlux2", {**_BLOCKS_2D, "latent_channels": 4})
_QWEN_STATISTICS = {"latents_mean": [0.1] * 4, "latents_std": [1.5] * 4}
_KL_QWEN: Part = (
    "AutoencoderKLQwenImage",
    {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, **_QWEN_STATISTICS},
)
_KL_QWEN21: Part = (
    "AutoencoderKLQwenImage21",
    {
        "base_dim": 8, "decoder_base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1, 1], "num_res_blocks": 1,
        **_QWEN_STATISTICS,
    },
)  # fmt: skip
_KL_WAN: Part = (
    "AutoencoderKLWan",
    {
        "base_dim": 4,
        "z_dim": 16,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
    },
)
_WAN_TRANSFORMER = {
    "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 16, "out_channels": 16, "text_dim": _WIDTH,
    "freq_dim": 64, "ffn_dim": 32, "num_layers": 2,
}  # fmt: skip
_WAN_TEXT: Mapping[str, Part] = {"text_encoder": _t5_encoder("UMT5"), "tokenizer": _text_tokenizer(), "vae": _KL_WAN}
_FLUX: Mapping[str, Part] = {
    "text_encoder": _clip_text("CLIPTextModel"),
    "text_encoder_2": _t5_encoder(),
    "tokenizer": _text_tokenizer(77),
    "tokenizer_2": _text_tokenizer(),
    "vae": _KL,
    "scheduler": _SHIFTED,
    "transformer": (
        "FluxTransformer2DModel",
        {
            "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
            "num_attention_heads": 2, "joint_attention_dim": _WIDTH, "pooled_projection_dim": _WIDTH,
            "axes_dims_rope": (4, 4, 8), "guidance_embeds": True,
        },
    ),
}  # fmt: skip
_FLUX2 = {
    "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
    "joint_attention_dim": 3 * _WIDTH, "axes_dims_rope": (4, 4, 4, 4),
}  # fmt: skip
_KLEIN: Mapping[str, Part] = {
    "text_encoder": _text_model("Qwen3ForCausalLM", 27),
    "tokenizer": _qwen_tokenizer,
    "vae": _KL_FLUX2,
    "scheduler": _SHIFTED,
    "transformer": ("Flux2Transformer2DModel", {**_FLUX2, "guidance_embeds": False}),
}
_QWEN_IMAGE = {
    "in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
    "joint_attention_dim": _WIDTH, "axes_dims_rope": (8, 4, 4),
}  # fmt: skip
_QWEN21: Mapping[str, Part] = {
    "text_encoder": _text_model("Qwen3VLForConditionalGeneration"),
    "processor": _qwen3_vl_processor,
    "vae": _KL_QWEN21,
    "scheduler": _SHIFTED,
    "transformer": (
        "QwenImage21Transformer2DModel",
        {
            "in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
            "context_in_dim": _WIDTH, "axes_dims_rope": (4, 6, 6),
        },
    ),
}  # fmt: skip
_HELIOS = {**_WAN_TRANSFORMER, "rope_dim": (4, 4, 4)}
_LTX_VAE = {
    "latent_channels": 8, "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8),
    "layers_per_block": (1,) * 5, "decoder_layers_per_block": (1,) * 5,
    "spatio_temporal_scaling": (True, True, False, False),
    "decoder_spatio_temporal_scaling": (True, True, False, False),
    "decoder_inject_noise": (False,) * 5, "upsample_residual": (False,) * 4, "upsample_factor": (1,) * 4,
    "patch_size": 1, "patch_size_t": 1,
}  # fmt: skip

_LTX2: Mapping[str, Part] = {
    "text_encoder": lambda: transformers.Gemma3ForConditionalGeneration(ltx2.build_gemma(_gemma_tokenizer())),
    "tokenizer": _gemma_tokenizer,
    "connectors": lambda: diffusers.pipelines.ltx2.LTX2TextConnectors(**ltx2.connectors_config()),
    "transformer": lambda: diffusers.LTX2VideoTransformer3DModel(**ltx2.transformer_config()),
    "vae": lambda: ltx2.build_decoders()["vae"],
    "audio_vae": lambda: ltx2.build_decoders()["audio_vae"],
    "vocoder": lambda: ltx2.build_decoders()["vocoder"],
}

_KREA2: Mapping[str, Part] = {
    "text_encoder": _text_model("Qwen3VLModel", 36),
    "tokenizer": _qwen_tokenizer,
    "vae": _KL_QWEN,
    "scheduler": _SHIFTED,
    "transformer": (
        "Krea2Transformer2DModel",
        {
            "in_channels": 16, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 32, "timestep_embed_dim": 8, "text_hidden_dim": _WIDTH,
            "num_text_layers": 12, "text_num_attention_heads": 2, "text_num_key_value_heads": 1,
            "text_intermediate_size": 16, "num_layerwise_text_blocks": 1, "num_refiner_text_blocks": 1,
            "axes_dims_rope": (4, 2, 2),
        },
    ),
}  # fmt: skip

_WAN: Mapping[str, Part] = {
    **_WAN_TEXT, "transformer": ("WanTransformer3DModel", _WAN_TRANSFORMER), "scheduler": _UNIPC
}  # fmt: skip

_QWEN: Mapping[str, Part] = {
    "text_encoder": lambda: transformers.Qwen2_5_VLForConditionalGeneration(qwen2_5_vl.build_config(_qwen_tokenizer())),
    "tokenizer": _qwen_tokenizer,
    "vae": _KL_QWEN,
    "scheduler": _SHIFTED,
    "transformer": ("QwenImageTransformer2DModel", {**_QWEN_IMAGE, "joint_attention_dim": 64}),
}
_QWEN_EDIT: Mapping[str, Part] = {**_QWEN, "processor": _qwen2_vl_processor}

#: Parts of a copy of each pipeline, by its class.
COPIES: dict[str, Mapping[str, Part]] = {
    "AnimaModularPipeline": {
        "text_encoder": _text_model("Qwen3Model"),
        "tokenizer": _qwen_tokenizer,
        "t5_tokenizer": _text_tokenizer(),
        "text_conditioner": (
            "AnimaTextConditioner",
            {
                "source_dim": _WIDTH, "target_dim": _WIDTH, "model_dim": _WIDTH, "num_layers": 1,
                "num_attention_heads": 2, "target_vocab_size": _VOCABULARY, "min_sequence_length": 16,
            },
        ),
        "transformer": (
            "CosmosTransformer3DModel",
            {
                "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16,
                "num_layers": 2, "mlp_ratio": 2.0, "text_embed_dim": _WIDTH, "adaln_lora_dim": 4,
                "max_size": (4, 32, 32), "extra_pos_embed_type": None,
            },
        ),
        "vae": _KL_QWEN,
        "scheduler": _FLOW,
    },
    "Cosmos3OmniModularPipeline": {
        "text_tokenizer": _qwen_tokenizer,
        "transformer": (
            "Cosmos3OmniTransformer",
            {
                "head_dim": 6, "hidden_act": "relu2", "hidden_size": 12, "intermediate_size": 12, "latent_channel": 16,
                "latent_patch_size": 1, "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
                "patch_latent_dim": 16, "qk_norm_for_text": False, "rope_axes_dim": [1, 1, 1],
                "vocab_size": _VOCABULARY,
            },
        ),
        "vae": _KL_WAN,
        "scheduler": _UNIPC,
    },
    "ErnieImageModularPipeline": {
        "text_encoder": _text_model("Mistral3Model"),
        "tokenizer": _qwen_tokenizer,
        "vae": _KL_FLUX2,
        "scheduler": _FLOW,
        "transformer": (
            "ErnieImageTransformer2DModel",
            {
                "hidden_size": 32, "num_attention_heads": 2, "num_layers": 2, "ffn_hidden_size": 32, "in_channels": 16,
                "out_channels": 16, "text_in_dim": _WIDTH, "rope_axes_dim": (4, 6, 6),
            },
        ),
    },
    "FluxModularPipeline": _FLUX,
    # It resizes images to a megapixel.
    "FluxKontextModularPipeline": {**_FLUX, "vae": ("AutoencoderKL", {**_KL[1], **_FOUR_BLOCKS})},
    "Flux2ModularPipeline": {
        "text_encoder": _text_model("Mistral3ForConditionalGeneration", 30),
        "tokenizer": _qwen3_vl_processor,
        "vae": _KL_FLUX2,
        "scheduler": _SHIFTED,
        "transformer": ("Flux2Transformer2DModel", _FLUX2),
    },
    "Flux2KleinModularPipeline": _KLEIN,
    "Flux2KleinBaseModularPipeline": {**_KLEIN, "is_distilled": False},
    "HeliosModularPipeline": {
        **_WAN_TEXT,
        "transformer": ("HeliosTransformer3DModel", _HELIOS),
        "scheduler": ("HeliosScheduler", {"stage_range": [0, 1], "stages": 1, "use_dynamic_shifting": True}),
    },
    "HeliosPyramidModularPipeline": {
        **_WAN_TEXT,
        "transformer": ("HeliosTransformer3DModel", _HELIOS),
        "scheduler": ("HeliosScheduler", {"use_dynamic_shifting": True}),
    },
    "HunyuanVideo15ModularPipeline": {
        "text_encoder": _text_model("Qwen2_5_VLTextModel", 4),
        "tokenizer": _qwen_tokenizer,
        "text_encoder_2": _t5_encoder(),
        "tokenizer_2": transformers.ByT5Tokenizer,
        "image_encoder": _siglip_vision,
        "feature_extractor": lambda: transformers.SiglipImageProcessor(size={"height": 32, "width": 32}),
        "vae": (
            "AutoencoderKLHunyuanVideo15",
            {
                "latent_channels": 4, "block_out_channels": (16, 16), "layers_per_block": 1,
                "spatial_compression_ratio": 4, "temporal_compression_ratio": 2, "downsample_match_channel": False,
                "upsample_match_channel": False,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 7.0}),
        "transformer": (
            "HunyuanVideo15Transformer3DModel",
            {
                "in_channels": 9, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1,
                "num_refiner_layers": 1, "mlp_ratio": 2.0, "text_embed_dim": _WIDTH, "text_embed_2_dim": _WIDTH,
                "image_embed_dim": 12, "rope_axes_dim": (2, 2, 4), "target_size": 16, "task_type": "t2v",
            },
        ),
    },
    "Ideogram4ModularPipeline": {
        "text_encoder": _text_model("Qwen3VLModel", 36),
        "tokenizer": _qwen_tokenizer,
        "vae": _KL_FLUX2,
        "scheduler": _FLOW,
        **dict.fromkeys(
            ("transformer", "unconditional_transformer"),
            (
                "Ideogram4Transformer2DModel",
                {
                    "in_channels": 16, "num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
                    "intermediate_size": 32, "adaln_dim": 16, "llm_features_dim": 13 * _WIDTH,
                    "mrope_section": (4, 2, 2),
                },
            ),
        ),
    },
    "Krea2ModularPipeline": _KREA2,
    "Krea2TurboModularPipeline": _KREA2,
    "EchoModularPipeline": _LTX2,
    "LTXModularPipeline": {
        "text_encoder": _t5_encoder(),
        "tokenizer": _text_tokenizer(),
        "vae": ("AutoencoderKLLTXVideo", _LTX_VAE),
        "scheduler": _SHIFTED,
        "transformer": (
            "LTXVideoTransformer3DModel",
            {
                "in_channels": 8, "out_channels": 8, "num_attention_heads": 4, "attention_head_dim": 8,
                "cross_attention_dim": 32, "num_layers": 1, "caption_channels": _WIDTH,
            },
        ),
    },
    "LTX2ModularPipeline": {**_LTX2, "scheduler": ("FlowMatchEulerDiscreteScheduler", ltx2.SCHEDULE)},
    "QwenImageModularPipeline": _QWEN,
    "QwenImageEditModularPipeline": _QWEN_EDIT,
    "QwenImageEditPlusModularPipeline": _QWEN_EDIT,
    "QwenImage21ModularPipeline": _QWEN21,
    "QwenImage21TurboModularPipeline": _QWEN21,
    "StableDiffusion3ModularPipeline": {
        "text_encoder": _clip_text(),
        "text_encoder_2": _clip_text(),
        "text_encoder_3": _t5_encoder(width=2 * _WIDTH),
        "tokenizer": _text_tokenizer(77),
        "tokenizer_2": _text_tokenizer(77),
        "tokenizer_3": _text_tokenizer(),
        "vae": _KL,
        "scheduler": _FLOW,
        "transformer": (
            "SD3Transformer2DModel",
            {
                "sample_size": 32, "patch_size": 2, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8,
                "num_attention_heads": 4, "caption_projection_dim": 32, "joint_attention_dim": 2 * _WIDTH,
                "pooled_projection_dim": 2 * _WIDTH, "out_channels": 4,
            },
        ),
    },
    "StableDiffusionXLModularPipeline": {
        "text_encoder": _clip_text("CLIPTextModel"),
        "text_encoder_2": _clip_text(),
        "tokenizer": _text_tokenizer(77),
        "tokenizer_2": _text_tokenizer(77),
        "vae": ("AutoencoderKL", {**_BLOCKS_2D, "latent_channels": 4}),
        "scheduler": ("EulerDiscreteScheduler", {"beta_schedule": "scaled_linear", "timestep_spacing": "leading"}),
        "unet": (
            "UNet2DConditionModel",
            {
                "block_out_channels": (8, 16), "layers_per_block": 1, "sample_size": 32, "in_channels": 4,
                "out_channels": 4, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "attention_head_dim": (2, 4),
                "use_linear_projection": True, "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
                "transformer_layers_per_block": (1, 1), "projection_class_embeddings_input_dim": 6 * 8 + _WIDTH,
                "cross_attention_dim": 2 * _WIDTH, "norm_num_groups": 4,
            },
        ),
    },
    "WanImage2VideoModularPipeline": {
        **_WAN,
        "image_encoder": _clip_vision,
        "image_processor": lambda: transformers.CLIPImageProcessor(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ),
        "transformer": (
            "WanTransformer3DModel",
            {**_WAN_TRANSFORMER, "in_channels": 36, "image_dim": _WIDTH, "added_kv_proj_dim": 24},
        ),
    },
    "WanModularPipeline": _WAN,
    "Wan22ModularPipeline": {**_WAN, "transformer_2": _WAN["transformer"]},
    "Wan22VaceModularPipeline": {
        **_WAN_TEXT,
        "scheduler": _UNIPC,
        **dict.fromkeys(
            ("transformer", "transformer_2"),
            (
                "WanVACETransformer3DModel",
                {**_WAN_TRANSFORMER, "num_layers": 3, "vace_layers": [0, 2], "vace_in_channels": 96},
            ),
        ),
    },
    "ZImageModularPipeline": {
        "text_encoder": _text_model("Qwen3Model"),
        "tokenizer": _qwen_tokenizer,
        "vae": _KL,
        "scheduler": _FLOW,
        "transformer": (
            "ZImageTransformer2DModel",
            {
                "in_channels": 4, "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2,
                "cap_feat_dim": _WIDTH, "axes_dims": [8, 4, 4], "axes_lens": [512, 64, 64],
            },
        ),
    },
}  # fmt: skip


def write_copy(cls: Any, directory: Path) -> None:
    """Write a copy of a pipeline of ``cls``, which is in ``COPIES``, with the index of a checkpoint in blocks."""
    index: dict[str, Any] = {"_class_name": cls.__name__, "_blocks_class_name": cls.default_blocks_name}
    for part, recipe in COPIES[cls.__name__].items():
        if isinstance(recipe, bool):
            index[part] = recipe
            continue
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(len(index))
            built = recipe() if callable(recipe) else getattr(diffusers, recipe[0])(**recipe[1])
        if isinstance(built, nn.Module):
            _weights.redraw_weights(built.eval(), len(index))
        built.save_pretrained(directory / part)
        hint = [_find_library(type(built)), type(built).__name__]
        index[part] = [*hint, {"type_hint": hint, "pretrained_model_name_or_path": None, "subfolder": part}]
    (directory / "modular_model_index.json").write_text(json.dumps(index))


def _find_library(cls: Any) -> str:
    """Return the library of ``cls`` in an index: the pipeline's, for a class of its own."""
    library, *packages = cls.__module__.split(".")
    return packages[-2] if library == "diffusers" and not hasattr(diffusers, cls.__name__) else library
