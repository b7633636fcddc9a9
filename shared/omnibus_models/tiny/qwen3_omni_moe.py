"""Tiny Qwen3-Omni: thinker and talker with experts, code predictor and Code2Wav with their real classes."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights, qwen3_vl

torchvision_cpu.install_operators()

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)
_NAMES = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
_TEMPLATE = _chat_tokenizer.build_chat_template(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
    audio="<|audio_start|><|audio_pad|><|audio_end|>",
)
_PATCH = qwen3_vl.vision_config()["patch_size"]
_CODES = 64  # of each group
_GROUPS = 4
_MARKS = 1024  # ids of the talker after its codes: the library never samples them, except the end
_VOICES = ("aiden", "chelsie", "ethan")
_FRAMES = 48  # four seconds of audio
_SECONDS = 13  # positions that a second of video takes
_TALKER = 48  # hidden width
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}


def write(directory: Path, seed: int, llm_seed: int | None = None) -> None:
    """Write model, tokenizer and processor to ``directory``; ``llm_seed`` is only for the thinker's LLM."""
    from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, _NAMES, _TEMPLATE)
    model = Qwen3OmniMoeForConditionalGeneration(_build_config(tokenizer)).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.thinker.model, model.thinker.lm_head]), llm_seed)
    _amplify_weights(model)
    _weights.speak_words(model.thinker.lm_head.weight, tokenizer, stop_gain=2.0)
    # The end of speech rarely wins, so that an answer usually lasts for a while.
    _weights.soften_logits(model.talker.codec_head.weight, [_CODES])
    for each in (model, model.thinker):
        _qwen.set_ends(each.generation_config, tokenizer)
    model.save_pretrained(directory)
    processor = Qwen3OmniMoeProcessor(
        _qwen.image_processor(_PATCH),
        _qwen.video_processor(_PATCH),
        _feature_extractor(),
        tokenizer,
        chat_template=_TEMPLATE,
    )
    processor.save_pretrained(directory)
    _limit_speech(directory / "generation_config.json")


# Log-mel values differ little between audio clips: without this most clips would get the same answer.
_HEARING_GAIN = 4.0
# Plain random residual branches grow from step to step until every sample is clipped.
_BRANCH = 0.2
_LOUDNESS = 0.06


@torch.no_grad()
def _amplify_weights(model: Any) -> None:
    """Scale up weights without effect after ``redraw_weights``.

    They are experts, and parameters that training starts close to zero.
    """
    _weights.sharpen_attention(model.thinker.model)
    model.thinker.audio_tower.conv2d1.weight *= _HEARING_GAIN
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            parameter *= parameter.shape[1] ** 0.5
        elif name.endswith((".scale", ".gamma")):
            parameter.fill_(0.5)
    for step in model.code2wav.decoder:
        for up in (module for module in step.modules() if isinstance(module, nn.ConvTranspose1d)):
            up.weight *= (up.out_channels * up.stride[0] / up.in_channels) ** 0.5
        for branch in (module for module in step.modules() if hasattr(module, "conv2")):
            branch.conv2.conv.weight *= _BRANCH
    model.code2wav.decoder[-1].conv.weight *= _LOUDNESS


def _limit_speech(path: Path) -> None:
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "talker_max_new_tokens": _FRAMES + 1}, indent=2))


def _feature_extractor() -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(
        feature_size=128, sampling_rate=16000, hop_length=160, n_fft=400, chunk_length=30, return_attention_mask=True
    )


def _build_config(tokenizer: Any) -> Any:
    from transformers import Qwen3OmniMoeConfig

    ids = tokenizer.convert_tokens_to_ids
    media = {
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "audio_token_id": ids("<|audio_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "audio_start_token_id": ids("<|audio_start|>"),
        "position_id_per_seconds": _SECONDS,
    }
    return Qwen3OmniMoeConfig(
        thinker_config=_thinker_config(tokenizer, media),
        talker_config=_talker_config(media),
        code2wav_config=_code2wav_config(),
        im_start_token_id=ids("<|im_start|>"),
        im_end_token_id=ids("<|im_end|>"),
        tts_pad_token_id=ids("<tts_pad>"),
        tts_bos_token_id=ids("<tts_text_bos>"),
        tts_eos_token_id=ids("<tts_text_eod>"),
        system_token_id=ids("system"),
        user_token_id=ids("user"),
        assistant_token_id=ids("assistant"),
    )


def _thinker_config(tokenizer: Any, media: dict[str, int]) -> dict[str, Any]:
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "n_window": 50,
        "n_window_infer": 400,
        "downsample_hidden_size": 8,
        "output_dim": _qwen.HIDDEN,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return {
        "audio_config": audio,
        "vision_config": qwen3_vl.vision_config(),
        "text_config": {**qwen3_vl.text_config(tokenizer), **experts},
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        **media,
    }


def _talker_config(media: dict[str, int]) -> dict[str, Any]:
    decoder = {
        "hidden_size": _TALKER,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": _qwen.CONTEXT,
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    }
    marks = ("eos_token", "nothink", "think_bos", "think_eos", "pad", "bos")
    return {
        "num_code_groups": _GROUPS,
        "thinker_hidden_size": _qwen.HIDDEN,
        "accept_hidden_layer": 2,
        "text_config": {**decoder, **experts, "vocab_size": _CODES + _MARKS, "rope_parameters": dict(_MROPE)},
        "code_predictor_config": {
            **decoder,
            "vocab_size": _CODES,
            "num_code_groups": _GROUPS,
            "rope_parameters": dict(_ROPE),
        },
        "speaker_id": {voice: _CODES + len(marks) + index for index, voice in enumerate(_VOICES)},
        "spatial_merge_size": 2,
        **{f"codec_{mark}_id": _CODES + index for index, mark in enumerate(marks)},
        **media,
    }


def _code2wav_config() -> dict[str, Any]:
    return {
        "codebook_size": _CODES,
        "num_quantizers": _GROUPS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "sliding_window": 8,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "decoder_dim": 64,
        "rope_parameters": dict(_ROPE),
    }
