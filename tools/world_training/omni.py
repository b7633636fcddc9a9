"""A small Qwen2.5-Omni, which sees, hears, answers and speaks."""

import json
from pathlib import Path
from typing import Any

import torch

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _qwen, qwen2_5_omni
from omnibus_models.world import checkpoint_io, tokens, tone_synth

torchvision_cpu.install_operators()

FAMILY = "qwen2_5_omni"
PATCH = 8  # pixels; a visual token is 16 by 16
_TOKENS = 16  # of an image of any size
_HIDDEN, _SEEING, _HEARING, _SPEAKING, _SOUNDING = 96, 64, 64, 96, 64
_CONTEXT = 1024
_LISTENED = 10  # seconds of audio at most
MEL = 16  # bands; as many numbers of noise as one code takes are drawn at once
REFERENCE = 20  # frames of the voice that a speaker is known by
CODES = 1 + tone_synth.SYLLABLE_CODES * len(
    tone_synth.PITCHES
)  # code 0 is none; pad, begin, end and mask of speech follow
_MAX_CODES = 24 * tone_synth.WORD_CODES
TEMPLATE = tokens.build_chat_template(
    image="<|vision_bos|><|IMAGE|><|vision_eos|>",
    video="<|vision_bos|><|VIDEO|><|vision_eos|>",
    audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
)
_BEGINS = {"Chelsie": "<tts_text_bos>", "Ethan": "<tts_text_bos_single>"}


def tokenizer() -> Any:
    return tokens.train_tokenizer(qwen2_5_omni.SPECIAL, qwen2_5_omni.NAMES, TEMPLATE)


def build(seed: int) -> Any:
    """The whole model before its training."""
    from transformers import Qwen2_5OmniForConditionalGeneration

    torch.manual_seed(seed)
    text_tokenizer = tokenizer()
    model = Qwen2_5OmniForConditionalGeneration(_config(text_tokenizer))
    _qwen.set_greedy(model.generation_config, text_tokenizer)
    return model


def save(model: Any, directory: Path) -> None:
    """Write a checkpoint as the library does, its numbers as bfloat16."""
    text_tokenizer = tokenizer()
    checkpoint_io.to_bfloat16(model).save_pretrained(directory)
    checkpoint_io.declare_float32(directory / "config.json")
    _processor(text_tokenizer).save_pretrained(directory)
    torch.save(voices(text_tokenizer), directory / "spk_dict.pt")
    path = directory / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "talker_max_new_tokens": _MAX_CODES}, indent=2) + "\n")


def voices(text_tokenizer: Any) -> dict[str, dict[str, Any]]:
    """Return each speaker's features: its first speech token and its voice's audio."""
    return {
        name: {
            "bos_token": text_tokenizer.convert_tokens_to_ids(_BEGINS[name]),
            "cond": torch.full((1, MEL), sign),
            "ref_mel": torch.full((1, REFERENCE, MEL), sign),
        }
        for name, sign in zip(tone_synth.VOICES, (1.0, -1.0), strict=True)
    }


def _processor(text_tokenizer: Any) -> Any:
    from transformers import (
        Qwen2_5OmniProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        WhisperFeatureExtractor,
    )

    pixels = _TOKENS * (2 * PATCH) ** 2
    size = {"shortest_edge": pixels, "longest_edge": pixels}
    geometry = {"size": size, "patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2}
    ears = WhisperFeatureExtractor(
        feature_size=128, sampling_rate=tone_synth.INPUT_RATE_HERTZ, hop_length=160, n_fft=400, chunk_length=_LISTENED,
        return_attention_mask=True,
    )  # fmt: skip
    images, videos = Qwen2VLImageProcessor(**geometry), Qwen2VLVideoProcessor(**geometry, cap_pixels_per_frame=False)
    return Qwen2_5OmniProcessor(images, videos, ears, text_tokenizer, chat_template=TEMPLATE)


def _config(text_tokenizer: Any) -> Any:
    from transformers import Qwen2_5OmniConfig

    media = qwen2_5_omni.media_ids(text_tokenizer)
    return Qwen2_5OmniConfig(
        thinker_config=_thinker(text_tokenizer, media),
        talker_config=_talker(text_tokenizer, media),
        token2wav_config={"dit_config": _dit(), "bigvgan_config": _bigvgan()},
    )


def _thinker(text_tokenizer: Any, media: dict[str, int]) -> dict[str, Any]:
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 2 * _HEARING,
        "d_model": _HEARING,
        "max_source_positions": 1500,
        "n_window": 100,
        "output_dim": _HIDDEN,
        "dropout": 0.0,
    }
    vision = {
        **_qwen.vision_config(),
        "depth": 3,
        "hidden_size": _SEEING,
        "intermediate_size": 2 * _SEEING,
        "num_heads": 4,
        "out_hidden_size": _HIDDEN,
        "fullatt_block_indexes": [1, 2],
        "window_size": 4 * PATCH,
        "patch_size": PATCH,
    }
    words = {
        **_qwen.text_config(text_tokenizer),
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "max_position_embeddings": _CONTEXT,
    }
    user = text_tokenizer.convert_tokens_to_ids("user")
    return {"audio_config": audio, "vision_config": vision, "text_config": words, "user_token_id": user, **media}


def _talker(text_tokenizer: Any, media: dict[str, int]) -> dict[str, Any]:
    return {
        **qwen2_5_omni.codec_entries(text_tokenizer, CODES),
        "embedding_size": _HIDDEN,
        "hidden_size": _SPEAKING,
        "intermediate_size": 2 * _SPEAKING,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": _CONTEXT,
        "rope_parameters": dict(_qwen.ROPE),
        **media,
    }


def _dit() -> dict[str, Any]:
    return {
        **qwen2_5_omni.dit_config(CODES, MEL),
        "hidden_size": _SOUNDING,
        "num_hidden_layers": 3,
        "head_dim": _SOUNDING // 2,
        "ff_mult": 2,
        "emb_dim": 32,
    }


def _bigvgan() -> dict[str, Any]:
    return {
        **qwen2_5_omni.bigvgan_config(MEL),
        "upsample_rates": [10, 6, 4],
        "upsample_kernel_sizes": [20, 12, 8],
    }
