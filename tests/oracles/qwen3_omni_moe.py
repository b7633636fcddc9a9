"""Qwen3-Omni as the library runs it, whole and in one process."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch

from omnibus_models import torchvision_cpu
from tests.models_oracle import (
    Media,
    Messages,
    _decode_answer,
    _decode_samples,
    _format_chat,
    _omni_videos,
    _open_picture,
)

torchvision_cpu.install_operators()


class OmniMoeAnswer(NamedTuple):
    """Ids and text; frames of codes, a list of numbers each, and the waveform that they become, float32 [n]."""

    ids: list[int]
    text: str
    frames: list[list[int]]
    wave: torch.Tensor


def generate_answer(
    checkpoint: Path, messages: Messages, media: Media, max_tokens: int, voice: str, max_frames: int
) -> OmniMoeAnswer:
    """Spoken greedy answer, with all of its tokens (see ``models_oracle.omni_answer``)."""
    model, processor = load_whole(checkpoint)
    tensors = make_inputs(checkpoint, messages, media)
    codes: list[torch.Tensor] = []
    hook = model.code2wav.register_forward_pre_hook(lambda _module, args: codes.append(args[0]))
    try:
        out, wave = model.generate(
            **tensors,
            speaker=voice,
            thinker_max_new_tokens=max_tokens + 1,
            thinker_eos_token_id=model.config.im_end_token_id,
            thinker_do_sample=False,
            talker_max_new_tokens=max_frames + 1,  # the last one never becomes a frame
            talker_do_sample=False,
            talker_top_k=None,
            talker_top_p=None,
            talker_temperature=None,
            talker_repetition_penalty=1.0,
        )
    finally:
        hook.remove()
    ids, text = _decode_answer(processor, tensors, out, max_tokens)
    return OmniMoeAnswer(ids, text, codes[0][0].T.tolist(), wave.reshape(-1))


def generate_text(checkpoint: Path, messages: Messages, media: Media, max_tokens: int) -> tuple[list[int], str]:
    """The thinker's greedy ids and text."""
    model, processor = load_whole(checkpoint)
    tensors = make_inputs(checkpoint, messages, media)
    return _decode_answer(
        processor, tensors, model.thinker.generate(**tensors, max_new_tokens=max_tokens, do_sample=False)
    )


def make_inputs(checkpoint: Path, messages: Messages, media: Media) -> dict[str, torch.Tensor]:
    """The joint processor's tensors."""
    _, processor = load_whole(checkpoint)
    videos, rate = _omni_videos(media)
    return dict(
        processor(
            text=_format_chat(processor, messages),
            images=[_open_picture(data) for data in media.get("image", ())] or None,
            videos=videos or None,
            audio=[_decode_samples(data) for data in media.get("audio", ())] or None,
            return_tensors="pt",
            padding=True,
            videos_kwargs={"do_sample_frames": False, "fps": rate},
        )
    )


@functools.cache
def load_whole(checkpoint: Path) -> tuple[Any, Any]:
    """Model and joint processor."""
    from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration

    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint).eval()
    # The library counts the talker's positions by a configuration without audio.
    model.talker.config.audio_config = model.thinker.config.audio_config
    return model, AutoProcessor.from_pretrained(checkpoint)
