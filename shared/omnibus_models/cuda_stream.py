"""GPU streams that run an encoder's kernels concurrently with a language model's."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def own_stream(device: str) -> AbstractContextManager[Any]:
    """Return a new stream on ``device``: a null context on a CPU.

    It is for one thread, which may enter it repeatedly.
    """
    if not device.startswith("cuda"):
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(torch.device(device)))
