"""Images of the whole Janus model.

As in ``tests.models_oracle``, tokens and colours are the library's own.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests import models_oracle  # noqa: F401 - installs the library's requirements


def generate_image(
    checkpoint: Path, prompt: str, seed: int, guidance: float | None = None
) -> tuple[list[int], np.ndarray]:
    """Tokens of an image, and its pixels before rounding.

    Pixels are [height, width, 3] in [0, 255].
    """
    model, processor = _load_whole(checkpoint)
    options = {} if guidance is None else {"guidance_scale": guidance}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        tokens = model.generate(
            **make_inputs(checkpoint, prompt), generation_mode="image", do_sample=True, max_length=500, **options
        )
        pixels = model.decode_image_tokens(tokens)[0]
    eyes = processor.image_processor
    colours = pixels * torch.tensor(eyes.image_std) + torch.tensor(eyes.image_mean)
    return tokens[0].tolist(), (colours.clamp(0, 1) * 255).numpy()


def make_inputs(checkpoint: Path, prompt: str) -> dict[str, torch.Tensor]:
    """Tensors of the joint processor for an image."""
    _, processor = _load_whole(checkpoint)
    messages = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return dict(processor(text=[text], generation_mode="image", return_tensors="pt"))


def chat_ids(checkpoint: Path, text: str) -> list[int]:
    """The joint processor's ids of one message."""
    _, processor = _load_whole(checkpoint)
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    chat = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids: list[int] = processor(text=[chat], return_tensors="pt")["input_ids"][0].tolist()
    return ids


@functools.cache
def _load_whole(checkpoint: Path) -> tuple[Any, Any]:
    from transformers import AutoProcessor, JanusForConditionalGeneration

    model = JanusForConditionalGeneration.from_pretrained(checkpoint).eval()
    return model, AutoProcessor.from_pretrained(checkpoint)
