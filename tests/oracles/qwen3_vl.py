"""Qwen3-VL as the library runs it, whole and in one process."""

import functools
from pathlib import Path
from typing import Any

import torch

from omnibus_models import torchvision_cpu
from tests.models_oracle import Media, Messages, _decode_answer, _format_chat, _open_picture, _sample_video

torchvision_cpu.install_operators()


def generate_answer(checkpoint: Path, messages: Messages, media: Media, max_tokens: int) -> tuple[list[int], str]:
    """Greedy ids and text."""
    model, processor = _load_whole(checkpoint)
    tensors = make_inputs(checkpoint, messages, media)
    return _decode_answer(processor, tensors, model.generate(**tensors, max_new_tokens=max_tokens, do_sample=False))


def make_inputs(checkpoint: Path, messages: Messages, media: Media) -> dict[str, torch.Tensor]:
    """The joint processor's tensors."""
    _, processor = _load_whole(checkpoint)
    videos: list[Any] = []
    more: dict[str, Any] = {"video_metadata": [], "do_sample_frames": False}
    for frames, about in (_sample_video(data, 1) for data in media.get("video", ())):
        if len(frames) == 1:  # the library takes no fewer than two: the same one twice
            frames, about.frames_indices = frames.repeat(2, 0), [0, 0]
        videos.append(frames)
        more["video_metadata"].append(about)
    return dict(
        processor(
            text=[_format_chat(processor, messages)],
            images=[_open_picture(data) for data in media.get("image", ())] or None,
            videos=videos or None,
            return_tensors="pt",
            **(more if videos else {}),
        )
    )


@functools.cache
def _load_whole(checkpoint: Path) -> tuple[Any, Any]:
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

    model = Qwen3VLForConditionalGeneration.from_pretrained(checkpoint).eval()
    return model, AutoProcessor.from_pretrained(checkpoint)
