"""Choice of attention kernels in torch and transformers."""

import functools
from typing import Any

import torch
from torch import Tensor


def avoid_planned_kernels(device: str) -> None:
    """Disable cuDNN's attention kernels in this process, if ``device`` is a GPU.

    cuDNN plans each new shape, which takes up to 1.3 s on an H100. Prompts, media and the positions of an answer have
    another length each time, and torch's other kernels are as fast.
    """
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)


@functools.cache
def share_key_heads() -> None:
    """Let transformers read keys and values in place on a CPU.

    With a mask, transformers copies all keys and values that several query heads share, for each head, in every layer
    of every step. For 16 sequences of 2,000 positions, this takes two thirds of the attention. torch's kernel for CPUs
    gives bitwise equal results without the copies. On a GPU the option selects a slow kernel, so nothing changes there.
    Applies to the whole process; further calls change nothing.
    """
    from transformers.integrations import sdpa_attention

    use_gqa: Any = sdpa_attention.use_gqa_in_sdpa

    def use_gqa_in_sdpa(attention_mask: Tensor | None, key: Tensor, *value: Tensor) -> bool:
        shares: bool = key.device.type == "cpu" or use_gqa(attention_mask, key, *value)
        return shares

    sdpa_attention.use_gqa_in_sdpa = use_gqa_in_sdpa
