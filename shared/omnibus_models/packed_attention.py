"""Packed attention of vision towers on a GPU: one kernel call for all parts of a batch.

Parts are windows, images and frames. Without it, transformers calls a kernel for each of them in every layer. In
Qwen2.5-VL, an image of 1008 x 1008 pixels has 81 windows in 28 of 32 layers. The GPU would wait for the interpreter.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

#: Name of the implementation. With "flash" in it, transformers passes the lengths instead of cutting the batch itself.
_NAME = "packed_flash"
_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_MULTIPLE, _LARGEST_HEAD = 8, 256  # sizes of heads that the kernel supports


def use_packed_attention(module: nn.Module) -> None:
    """Enable packed attention for ``module`` on a GPU with 16-bit weights.

    It applies to parts that take packed sequences. Elsewhere nothing changes. The order of sums differs, so results are
    equal within rounding.
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
    """Attend within each sequence of a packed batch.

    This is an attention function of transformers. ``query``, ``key`` and ``value`` are [1, heads, T, width]. Sequence i
    is from ``cu_seq_lens_q[i]`` to ``cu_seq_lens_q[i + 1]``, and the longest has ``max_length_q`` positions. Returns
    [1, T, heads, width].
    """
    from torch.nn.attention.varlen import varlen_attn

    rows, keys, values = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    ends = cu_seq_lens_q.to(torch.int32)
    out: Any = varlen_attn(rows, keys, values, ends, ends, max_length_q, max_length_q, scale=scaling)
    return out[None], None


def _fits(part: nn.Module) -> bool:
    width = getattr(part, "head_dim", None)
    return isinstance(width, int) and width % _HEAD_MULTIPLE == 0 and width <= _LARGEST_HEAD
