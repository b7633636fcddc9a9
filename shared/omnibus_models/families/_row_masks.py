"""Masks of a decode step whose rows have different lengths, by each model's own rules.

A model of transformers computes the masks of its layers (causal, sliding window, chunks) from the number of positions
before the query, one for the whole batch. Here this number may be a tensor [B], one for each row, as the slot cache
gives it in ``get_query_offset``. The rules of the model then hold for each row, without code for single classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface


def install_row_masks() -> None:
    """Let the library's mask functions take a tensor of query offsets. Calling it twice is harmless."""
    for name in ("sdpa", "eager"):
        original = ALL_MASK_ATTENTION_FUNCTIONS[name]
        if not hasattr(original, "omnibus_original"):
            AttentionMaskInterface.register(name, _by_row(original, adds=name == "eager"))


def _by_row(original: Callable[..., Any], *, adds: bool) -> Callable[..., Any]:
    """Return ``original`` for offsets of single rows. ``adds``: the mask is added to scores instead of bool."""

    def mask_rows(*, q_offset: Any = 0, **options: Any) -> Any:
        if not isinstance(q_offset, Tensor) or q_offset.ndim != 1:
            return original(q_offset=q_offset, **options)
        mask = _row_mask(q_offset, **options)
        dtype = options["dtype"]
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min) if adds else mask

    mask_rows.omnibus_original = original  # type: ignore[attr-defined]
    return mask_rows


def _row_mask(
    offsets: Tensor,
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    kv_offset: int,
    mask_function: Callable[..., Tensor],
    device: Any,
    **_: Any,
) -> Tensor:
    """Return the bool mask [B, 1, T, S] of queries at ``offsets`` [B] + [0, T)."""
    batch = torch.arange(batch_size, device=device)[:, None, None, None]
    heads = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
    queries = (offsets[:, None] + torch.arange(q_length, device=device))[:, None, :, None]
    keys = (torch.arange(kv_length, device=device) + kv_offset)[None, None, None]
    return mask_function(batch, heads, queries, keys).expand(batch_size, 1, q_length, kv_length)
