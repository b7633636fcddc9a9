"""Attention of vision towers on a GPU: all windows, images and frames of a batch in one call of a kernel.

Without it transformers attends to each of them by a call of its own, in every layer: to 81 windows of an image of
1008 x 1008 pixels in 28 of the 32 layers of Qwen2.5-VL, so that the GPU waits for the interpreter.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

#: Name of the implementation. "flash" in it has transformers hand over the lengths instead of cutting the batch itself.
_NAME = "packed_flash"
_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_MULTIPLE, _LARGEST_HEAD = 8, 256  # sizes of heads that the kernel takes


def use_packed_attention(module: nn.Module) -> None:
    """Let those parts of ``module`` that take packed sequences attend to all at once: on a GPU, with 16 bits.

    Elsewhere nothing changes. Sums are then made in another order; results are equal within rounding.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    parameter = next(module.parameters())
    if parameter.device.type != "cuda" or parameter.dtype not in _DTYPES:
        return
    ALL_ATTENTION_FUNCTIONS.register(_NAME, attend_packed)
    for part in module.modules():
        if hasattr(part, "config") and "cu_seqlens" in inspect.signature(part.forward).parameters and _fits(part):
            config: Any = part.config
            config._attn_implementation = _NAME


def attend_packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence of a packed batch, as an attention function of transformers.

    ``query``, ``key`` and ``value`` are [1, heads, T, width]; sequence i is from ``cu_seq_lens_q[i]`` to
    ``cu_seq_lens_q[i + 1]``, the longest has ``max_length_q`` positions. Returns [1, T, heads, width].
    """
    from torch.nn.attention.varlen import varlen_attn

    rows, keys, values = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    ends = cu_seq_lens_q.to(torch.int32)
    out: Any = varlen_attn(rows, keys, values, ends, ends, max_length_q, max_length_q, scale=scaling)
    return out[None], None


def _fits(part: nn.Module) -> bool:
    width = getattr(part, "head_dim", None)
    return isinstance(width, int) and width % _HEAD_MULTIPLE == 0 and width <= _LARGEST_HEAD
