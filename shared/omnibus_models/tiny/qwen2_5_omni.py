"""Tiny Qwen2.5-Omni: thinker, talker, DiT and BigVGAN with their real classes, and two voices."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models import torchvision_cpu
from omnibus_models.tiny import _chat_tokenizer, _qwen, _weights

torchvision_cpu.install_operators()

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|AUDIO|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
)
NAMES = {
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
_TEMPLATE = _chat_tokenizer.build_chat_template(
    image="<|vision_bos|><|IMAGE|><|vision_eos|>",
    video="<|vision_bos|><|VIDEO|><|vision_eos|>",
    audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
)
_VOICES = {"Chelsie": "<tts_text_bos>", "Ethan": "<tts_text_bos_single>"}
_CODES = 64  # audible codes; pad, begin, end and mask follow, as in the real codec
_MEL = 8
_REFERENCE_FRAMES = 20
_MAX_CODES = 96  # two seconds of audio


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model, tokenizer, processor and voices to ``directory``; ``llm_seed`` is only for the thinker's LLM."""
    from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

    tokenizer = _chat_tokenizer.train_tokenizer(SPECIAL, NAMES, _TEMPLATE)
    model = Qwen2_5OmniForConditionalGeneration(_build_config(tokenizer, wide)).eval()
    _weights.redraw_weights(model, seed)
    if llm_seed is not None:
        _weights.redraw_weights(nn.ModuleList([model.thinker.model, model.thinker.lm_head]), llm_seed)
    _amplify_audio_tower(model.thinker.audio_tower)
    _damp_waveform(model.token2wav)
    _weights.speak_words(model.thinker.lm_head.weight, tokenizer, stop_gain=2.0)
    # Ends of speech rarely win, so that an answer usually lasts its two seconds.
    _weights.soften_logits(model.talker.codec_head.weight, range(_CODES, _CODES + 8))
    _qwen.set_ends(model.generation_config, tokenizer)
    model.save_pretrained(directory)
    processor = Qwen2_5OmniProcessor(
        _qwen.image_processor(), _qwen.video_processor(), _feature_extractor(), tokenizer, chat_template=_TEMPLATE
    )
    processor.save_pretrained(directory)
    torch.save(_make_voices(tokenizer, seed), directory / "spk_dict.pt")
    _limit_speech(directory / "generation_config.json")


# Log-mel values differ little between audio clips: without this most clips would get the same answer.
_HEARING_GAIN = 4.0


@torch.no_grad()
def _amplify_audio_tower(audio_tower: Any) -> None:
    audio_tower.conv1.weight *= _HEARING_GAIN


@torch.no_grad()
def _damp_waveform(token2wav: Any) -> None:
    """Keep the waveform inside [-1, 1] and the coupling of blocks mild.

    Plain random residual branches grow from layer to layer until every sample is clipped. In the real DiT one layer of
    22 looks ahead, here one of two: half the weight partly compensates for that.
    """
    for name, parameter in token2wav.code2wav_bigvgan_model.named_parameters():
        if name.endswith("weight") and ("convs2" in name or name.startswith("conv_post")):
            parameter *= 0.3
    for block in token2wav.code2wav_dit_model.transformer_blocks:
        block.attn.to_out[0].weight *= 0.5


def _limit_speech(path: Path) -> None:
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "talker_max_new_tokens": _MAX_CODES}, indent=2))


def _make_voices(tokenizer: Any, seed: int) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed + 1)
    return {
        name: {
            "bos_token": tokenizer.convert_tokens_to_ids(token),
            "cond": torch.randn(1, _MEL, generator=generator),
            "ref_mel": torch.randn(1, _REFERENCE_FRAMES, _MEL, generator=generator),
        }
        for name, token in _VOICES.items()
    }


def _feature_extractor() -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(
        feature_size=128, sampling_rate=16000, hop_length=160, n_fft=400, chunk_length=30, return_attention_mask=True
    )


def _build_config(tokenizer: Any, wide: bool) -> Any:
    from transformers import Qwen2_5OmniConfig

    media = media_ids(tokenizer)
    return Qwen2_5OmniConfig(
        thinker_config=_thinker_config(tokenizer, media, wide),
        talker_config=_talker_config(tokenizer, media),
        token2wav_config={"dit_config": dit_config(_CODES + 8, _MEL), "bigvgan_config": bigvgan_config(_MEL)},
    )


def media_ids(tokenizer: Any) -> dict[str, int]:
    """Return the entries of configurations for media, with the ids of ``tokenizer``."""
    ids = tokenizer.convert_tokens_to_ids
    return {
        "image_token_index": ids("<|IMAGE|>"),
        "video_token_index": ids("<|VIDEO|>"),
        "audio_token_index": ids("<|AUDIO|>"),
        "vision_start_token_id": ids("<|vision_bos|>"),
        "vision_end_token_id": ids("<|vision_eos|>"),
        "audio_start_token_id": ids("<|audio_bos|>"),
        "audio_end_token_id": ids("<|audio_eos|>"),
    }


def _thinker_config(tokenizer: Any, media: dict[str, int], wide: bool) -> dict[str, Any]:
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "max_source_positions": 1500,
        "n_window": 100,
        "output_dim": _qwen.HIDDEN,
    }
    return {
        "audio_config": audio,
        "vision_config": _qwen.vision_config(),
        "text_config": _qwen.text_config(tokenizer, wide),
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        **media,
    }


def _talker_config(tokenizer: Any, media: dict[str, int]) -> dict[str, Any]:
    return {
        **codec_entries(tokenizer, _CODES),
        "embedding_size": _qwen.HIDDEN,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": _qwen.CONTEXT,
        "rope_parameters": dict(_qwen.ROPE),
        **media,
    }


def codec_entries(tokenizer: Any, sounds: int) -> dict[str, int]:
    """Return a talker's configuration entries for marks.

    They are marks in texts, and those that follow ``sounds`` audible codes.
    """
    ids = tokenizer.convert_tokens_to_ids
    return {
        "vocab_size": sounds + 8,
        "tts_text_start_token_id": ids("<tts_text_bos>"),
        "tts_text_end_token_id": ids("<tts_text_eod>"),
        "tts_text_pad_token_id": ids("<tts_pad>"),
        "tts_codec_pad_token_id": sounds,
        "tts_codec_start_token_id": sounds + 1,
        "tts_codec_end_token_id": sounds + 2,
        "tts_codec_mask_token_id": sounds + 3,
        "pad_token_id": sounds,
    }


def dit_config(codes: int, mel: int) -> dict[str, Any]:
    """Return a DiT for ``codes`` codes and ``mel`` bands.

    One layer looks ahead and one back by a block, as in the real model.
    """
    return {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 16,
        "emb_dim": 16,
        "num_embeds": codes,
        "mel_dim": mel,
        "block_size": 24,
        "look_ahead_layers": [1],
        "look_backward_layers": [0],
        "dropout": 0.0,
        "enc_emb_dim": mel,
        "enc_dim": 8,
        "enc_channels": [16, 16, 16, 16, 48],
        "enc_kernel_sizes": [5, 3, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 4, 1],
        "enc_attention_channels": 8,
        "enc_res2net_scale": 2,
        "enc_se_channels": 8,
    }


def bigvgan_config(mel: int) -> dict[str, Any]:
    return {
        "mel_dim": mel,
        "upsample_initial_channel": 64,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3, 5]],
        "upsample_rates": [5, 3, 2, 2, 2, 2],
        "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4],
    }
