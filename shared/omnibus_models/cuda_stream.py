"""Streams of a GPU, so that an encoder's kernels and a language model's run at the same time."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def own_stream(device: str) -> AbstractContextManager[Any]:
    """A stream of its own on ``device``, for one thread that enters it again and again; nothing on a CPU."""
    if not device.startswith("cuda"):
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(torch.device(device)))
