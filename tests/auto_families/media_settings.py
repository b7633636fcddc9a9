"""What copies of single multimodal types need besides the library's defaults: checkpoints say it, defaults do not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


def _no_arguments(config: Any) -> dict[str, Any]:
    return {}


def _keep(config: Any, processor: Any) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Settings:
    """``fields`` of the configuration by their paths, ``tokens`` and ``special`` of the tokenizer.

    ``processor`` is a type with a processor for this one, ``processor_class`` one that transformers does not list, and ``parts`` are arguments of its parts by modality, and ``classes`` those of parts that transformers does not list. ``arguments`` are those of the processor. ``finish`` changes both at the end. ``places`` are media in chats.
    """

    config: Callable[[], Any] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    special: tuple[str, ...] = ()
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    processor: str = ""
    processor_class: str = ""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    arguments: Callable[[Any], dict[str, Any]] = _no_arguments
    finish: Callable[[Any, Any], None] = _keep
    places: Mapping[str, str] = field(default_factory=dict)
    keeps_sizes: bool = False


_GLM_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}
_COMPASS_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [22, 22, 20]}
_GEMMA4_TOKENS = {
    "image_token": "<|image|>",
    "audio_token": "<|audio|>",
    "video_token": "<|video|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}


def _glm(processor: str = "", **fields: Any) -> Settings:
    return Settings(
        fields={"text_config.rope_parameters": _GLM_ROPE, **fields},
        processor=processor,
        places={"video": "<|begin_of_video|><|video|><|end_of_video|>"},
    )


def _one_more_token(config: Any) -> dict[str, Any]:
    return {"num_additional_image_tokens": 1}


def _patches(name: str, count: int = 64) -> Callable[[Any], dict[str, Any]]:
    return lambda config: {name: count}


def _granite() -> Any:
    from transformers import Granite4VisionConfig, GraniteConfig

    return Granite4VisionConfig(
        text_config=GraniteConfig().to_dict(),
        deepstack_layer_map=[[0, 0]],
        downsample_rate="2/4",
        vision_feature_select_strategy="full",
    )


def _perception() -> Any:
    from transformers import PerceptionLMConfig

    arguments = {"embed_dim": 1024, "depth": 23, "img_size": [112, 112], "ref_feat_shape": [8, 8]}
    fixed = {"global_pool": "", "use_post_transformer_norm": False, "init_values": 0.1}
    vision = {"architecture": "vit_pe_core_large_patch14_336", "model_args": {**arguments, **fixed}}
    return PerceptionLMConfig(
        vision_config={**vision, "hidden_size": 1024}, vision_use_cls_token=True, projector_pooling_ratio=2
    )


def _nemotron() -> Any:
    from transformers import NemotronH_Omni_Reasoning_V3_Config

    return NemotronH_Omni_Reasoning_V3_Config(audio_config={"projection_hidden_size": 4096, "projection_bias": False})


def _link_qwen2(config: Any, processor: Any) -> None:
    config.vision_config.hidden_size = config.text_config.hidden_size


def _use_token(text: str) -> Callable[[Any, Any], None]:
    """Return a function that sets ``text`` as the token of rows."""

    def change(config: Any, processor: Any) -> None:
        config.image_token_id = processor.tokenizer.convert_tokens_to_ids(text)

    return change


def _ovis(config: Any, processor: Any) -> None:
    config.image_token_id = processor.tokenizer.convert_tokens_to_ids("<IMG_ATOM>")
    config.hidden_size = config.text_config.hidden_size


def _use_soft_tokens(config: Any, processor: Any) -> None:
    config.image_token_id = processor.tokenizer.image_token_id


def _omni(config: Any, processor: Any) -> None:
    config = getattr(config, "thinker_config", config)
    ids = processor.tokenizer.convert_tokens_to_ids
    config.vision_start_token_id, config.vision_end_token_id = ids("<|vision_bos|>"), ids("<|vision_eos|>")
    config.audio_start_token_id, config.audio_end_token_id = ids("<|audio_bos|>"), ids("<|audio_eos|>")


def _diffusion() -> Any:
    from transformers import DiffusionGemmaConfig

    return DiffusionGemmaConfig(vision_config={})


def _gemma4(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        cls = getattr(transformers, f"{name}Config")
        parts = {each: cls.sub_configs[each]().to_dict() for each in ("vision_config", "audio_config")}
        return cls(**parts)

    return make


_OMNI_MARKS = {
    "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
    "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
}
_OMNI = {
    "tokens": {
        "image_token": "<|IMAGE|>",
        "video_token": "<|VIDEO|>",
        "audio_token": "<|AUDIO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    },
    "places": _OMNI_MARKS,
    "finish": _omni,
}


def _idefics3(processor: str = "") -> Settings:
    return Settings(
        processor=processor,
        fields={"vision_config.image_size": 128, "vision_config.patch_size": 16, "scale_factor": 2},
        parts={"image": {"size": {"longest_edge": 256}, "max_image_size": {"longest_edge": 128}}},
        arguments=_patches("image_seq_len", 16),
        keeps_sizes=True,
    )


def _gemma3(processor: str = "") -> Settings:
    return Settings(
        fields={"mm_tokens_per_image": 16},
        processor=processor,
        tokens={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
        arguments=_patches("image_seq_length", 16),
        finish=_use_soft_tokens,
    )


def _image_words(name: Callable[[str], str], **others: int) -> Callable[[Any, Any], None]:
    """Return a function that makes the vocabulary of codes of images, whose names are ``name`` of digits."""

    def change(config: Any, processor: Any) -> None:
        ids = processor.tokenizer.convert_tokens_to_ids
        codes = {name(str(code)): 960 + code for code in range(32)}
        config.vocabulary_map = {"<image>": ids("<image>"), **others, **codes}
        config.image_token_id = ids("<image>")

    return change


def _underscore(config: Any, processor: Any) -> None:
    """Make the tokenizer write a mark before all texts, as Fuyu's does."""

    class UnderscoringTokenizer(type(processor.tokenizer)):  # type: ignore[misc]
        def __call__(self, text: Any, **options: Any) -> Any:
            return super().__call__(f"_{text}" if isinstance(text, str) else [f"_{each}" for each in text], **options)

    processor.tokenizer.__class__ = UnderscoringTokenizer
    config.image_token_id = processor.image_token_id


def _chameleon_word(digits: str) -> str:
    return f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in digits)}Z"


SETTINGS: Mapping[str, Settings] = {
    "chameleon": Settings(
        fields={"vq_config.num_embeddings": 32, "vq_config.resolution": 64, "vq_config.base_channels": 32},
        parts={"image": {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}},
        arguments=_patches("image_seq_length", 16),
        special=("<racm3:break>", "<eoss>", "<sep>"),
        tokenizer={"sep_token": "<sep>"},
        finish=_image_words(_chameleon_word),
    ),
    "emu3": Settings(
        fields={"vq_config.codebook_size": 32, "vq_config.base_channels": 32, "vq_config.hidden_size": 128},
        parts={"image": {"min_pixels": 1024, "max_pixels": 4096}},
        tokens={"image_token": "<image>"},
        finish=_image_words(lambda digits: f"<|visual token {digits.zfill(6)}|>", **{"<|extra_200|>": 950}),
    ),
    "kosmos-2": Settings(processor_class="Kosmos2Processor", special=("<other>",), tokenizer={"unk_token": "<other>"}),
    "kosmos-2.5": Settings(
        processor_class="Kosmos2_5Processor",
        fields={"latent_query_num": 16, "vision_config.max_num_patches": 128},
        parts={"image": {"max_patches": 64}},
        arguments=_patches("num_image_tokens", 16),
    ),
    "deepseek_ocr2": Settings(
        fields={
            "text_config.mlp_layer_types": ["dense", "sparse"],
            "text_config.num_experts_per_tok": 2,
            "vision_config.encoder_config.hidden_size": 896,
            "vision_config.encoder_config.num_attention_heads": 14,
        },
        keeps_sizes=True,
    ),
    "deepseek_vl_hybrid": Settings(
        fields={"vision_config.image_size": 384}, arguments=_patches("num_image_tokens", 576), keeps_sizes=True
    ),
    "fuyu": Settings(
        finish=_underscore,
        special=("|SPEAKER|", "|NEWLINE|", "<0x00>", "<0x01>", "<0x02>", "<0x03>", "<0x04>"),
    ),
    "muse_glimmer": Settings(fields={"out_hidden_size": 6144, "vision_config.out_hidden_size": 6144}),
    "llama4": Settings(
        fields={"vision_config.hidden_size": 1408, "vision_config.vision_output_dim": 4096},
        finish=_use_token("<|patch|>"),
    ),
    "phi4_multimodal": Settings(keeps_sizes=True),
    "idefics2": Settings(special=("<end_of_utterance>",)),
    "aria": Settings(
        parts={"image": {"max_image_size": 490}},
        keeps_sizes=True,
        fields={"vision_config.patch_size": 14, "vision_config.image_size": 980},
    ),
    "aya_vision": Settings(arguments=lambda config: {"img_size": 112, "patch_size": 14, "downsample_factor": 2}),
    "cohere2_vision": Settings(keeps_sizes=True),
    "cohere_compass": Settings(
        fields={"text_config.rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _COMPASS_ROPE)}
    ),
    "cosmos3_omni": Settings(processor="qwen3_vl"),
    "deepseek_vl": Settings(arguments=_patches("num_image_tokens")),
    "fast_vlm": Settings(
        processor="llava",
        parts={"image": {"size": {"shortest_edge": 256}, "crop_size": {"height": 256, "width": 256}}},
        arguments=_patches("patch_size"),
    ),
    "gemma3n": Settings(
        tokens=_GEMMA4_TOKENS,
        fields={
            "vision_config.vocab_size": 128,
            "vision_config.vocab_offset": 768,
            "audio_config.vocab_size": 128,
            "audio_config.vocab_offset": 896,
        },
    ),
    "granite_speech": Settings(fields={"projector_config.encoder_hidden_size": 1024}),
    "granite_speech_plus": Settings(fields={"projector_config.encoder_hidden_size": 1024}),
    "nemotron_h_omni": Settings(
        config=_nemotron,
        classes={"audio": "ParakeetFeatureExtractor"},
        parts={"video": {"norm_mean": [0.5] * 3, "norm_std": [0.5] * 3}},
        special=("<so_embedding>", "<so_start>", "<so_end>", "<img>", "</img>"),
    ),
    "perception_lm": Settings(
        config=_perception,
        parts={"image": {"tile_size": 112}},
        arguments=lambda config: {"patch_size": 14, "pooling_ratio": 2},
    ),
    "diffusion_gemma": Settings(
        config=_diffusion,
        processor="gemma4",
        tokens=_GEMMA4_TOKENS,
        fields={"text_config.num_experts": 4, "text_config.top_k_experts": 2, "text_config.moe_intermediate_size": 64},
    ),
    "gemma3": _gemma3(),
    "shieldgemma2": _gemma3("gemma3"),
    "gemma4": Settings(config=_gemma4("Gemma4"), tokens=_GEMMA4_TOKENS),
    "gemma4_unified": Settings(config=_gemma4("Gemma4Unified"), tokens=_GEMMA4_TOKENS),
    "glm46v": _glm(),
    "glm4v": _glm(),
    "glm4v_moe": _glm("glm4v", **{"text_config.head_dim": 128}),
    "glm_ocr": _glm("glm46v", **{"text_config.head_dim": 128}),
    "glmga": _glm("glm46v"),
    "got_ocr2": Settings(keeps_sizes=True, parts={"image": {"size": {"height": 1024, "width": 1024}}}),
    "pp_chart2table": Settings(
        keeps_sizes=True,
        parts={"image": {"size": {"height": 1024, "width": 1024}}},
        special=("<img>", "</img>", "<imgpad>"),
        finish=_use_token("<imgpad>"),
        places={"image": f"<img>{'<imgpad>' * 256}</img>"},
    ),
    "granite4_vision": Settings(config=_granite),
    "hunyuan_vl": Settings(
        fields={
            "text_config.rope_parameters": {**_COMPASS_ROPE, "mrope_section": [16, 16, 16, 16]},
            "text_config.head_dim": 128,
        },
        places={"image": "<|image_start|><image><|image_end|>"},
        tokens={
            "image_token": "<image>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_newline_token": "<|image_newline|>",
        },
    ),
    "internvl": Settings(arguments=_patches("image_seq_length", 16)),
    "qianfan_ocr": Settings(
        arguments=_patches("image_seq_length", 16),
        tokens={"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"},
    ),
    "janus": Settings(fields={"vision_config.projection_dim": 4096}, arguments=_patches("num_image_tokens")),
    "llava": Settings(arguments=_one_more_token),
    "llava_next": Settings(arguments=_one_more_token),
    "llava_next_video": Settings(arguments=_one_more_token),
    "llava_onevision": Settings(arguments=_patches("num_image_tokens")),
    "ovis2": Settings(finish=_ovis, arguments=_patches("image_seq_length", 64)),
    "idefics3": _idefics3(),
    "smolvlm": _idefics3("idefics3"),  # the processor of its own requires num2words
    "qwen2_5_omni": Settings(**_OMNI),
    "qwen3_omni_moe": Settings(fields={"thinker_config.text_config.head_dim": 128}, **_OMNI),
    "qwen2_5_omni_thinker": Settings(processor="qwen2_5_omni", **_OMNI),
    "qwen2_vl": Settings(finish=_link_qwen2),
    "qwen3_omni_moe_thinker": Settings(processor="qwen3_omni_moe", fields={"text_config.head_dim": 128}, **_OMNI),
    "qwen3_vl_moe": Settings(processor="qwen3_vl"),
    "qwen4_exp": Settings(
        fields={
            "text_config.indexer_n_heads": 2,
            "text_config.indexer_kv_heads": 1,
            "text_config.indexer_head_dim": 256,
            "text_config.indexer_budget": 64,
            "text_config.indexer_compress_ratio": 4,
        }
    ),
    "step3p7": Settings(fields={"text_config.sliding_window": 16}),
}
