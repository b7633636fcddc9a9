"""Answers of whole models with a vision tower and plain positions.

They are LLaVA-1.5, NeXT, OneVision and InternVL3. As in ``tests.models_oracle``, files are decoded there, and the rest
is the library's own.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests import models_oracle as oracle
from tests.models_oracle import Media, Messages


def generate_answer(checkpoint: Path, messages: Messages, media: Media, max_tokens: int) -> tuple[list[int], str]:
    """Greedy ids and text of the whole model in one process."""
    model, processor = _load_whole(checkpoint)
    tensors = make_inputs(checkpoint, messages, media)
    out = model.generate(**tensors, max_new_tokens=max_tokens, do_sample=False)
    ids = out[0, tensors["input_ids"].shape[1] :].tolist()
    return ids, processor.tokenizer.decode(ids, skip_special_tokens=True)


def make_inputs(checkpoint: Path, messages: Messages, media: Media) -> dict[str, torch.Tensor]:
    """Tensors of the joint processor, from a chat by ``apply_chat_template``."""
    _, processor = _load_whole(checkpoint)
    waiting = {
        "image": map(oracle._open_picture, media.get("image", ())),
        "video": (_sample_video(processor, data) for data in media.get("video", ())),
    }
    chat = [
        {"role": one["role"], "content": [_convert_part(part, waiting) for part in _list_parts(one)]}
        for one in messages
    ]
    options = {"do_sample_frames": False} if media.get("video") else {}
    tensors = processor.apply_chat_template(
        chat,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        processor_kwargs=options,
    )
    return dict(tensors)


def _sample_video(processor: Any, data: bytes) -> Any:
    """Two frames per second, chosen by the library's own processor."""
    from transformers.video_utils import VideoMetadata

    frames, rate = oracle._all_frames(data)
    indices = processor.video_processor.sample_frames(VideoMetadata(len(frames), fps=rate), fps=2)
    return frames[np.asarray(indices)]


def _list_parts(message: Any) -> Sequence[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _convert_part(part: Any, waiting: Any) -> dict[str, Any]:
    kind = part["type"]
    return dict(part) if kind == "text" else {"type": kind, kind: next(waiting[kind])}


@functools.cache
def _load_whole(checkpoint: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(checkpoint).eval()
    return model, AutoProcessor.from_pretrained(checkpoint)
