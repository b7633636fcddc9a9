"""Rotary positions of the Qwen families (M-RoPE): time, height and width of every token.

A text token has one position on all three axes. An image or a video begins at the next free position and counts along
its grid; a video's time is in positions per second. The next item begins at the largest position so far plus one.

Source: Qwen2-VL, arXiv:2409.12191, section 2.1 ("the position numbering for each modality is initialized by
incrementing the maximum position ID of the preceding modality by one"). For time, see Qwen2.5-VL, arXiv:2502.13923,
section 2.1.1. ``get_rope_index`` of transformers 4.57 and ``get_mrope_input_positions`` of vLLM 0.32 do this.
transformers 5.16 to 5.24 ignore time for Qwen2-VL and Qwen2.5-VL, so that text begins inside a long video. Times
between two positions are rounded down, as vLLM does for all models; transformers keeps the fractions only for
Qwen3-Omni.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from omnibus_models.contract import Encoded


def count_positions(
    ids: Tensor, slots: Mapping[int, str], media: Sequence[Encoded], merge: int, per_second: float | None
) -> tuple[Tensor, int]:
    """Return int64 [3, 1, T] for ``ids`` [1, T], and generated tokens' offset.

    ``slots`` are the ids that represent ``media``, with their modality. ``merge`` is the side of the square of patches
    that becomes one row. With ``per_second`` None, frames of a video are one position apart at any distance in time.
    """
    waiting = {kind: iter([item for item in media if item.meta["modality"] == kind]) for kind in slots.values()}
    open_slots = torch.isin(ids[0], torch.tensor(sorted(slots))).nonzero()[:, 0].tolist()
    pieces: list[Tensor] = []
    cursor = following = 0
    while open_slots:
        item, start = next(waiting[slots[int(ids[0, open_slots[0]])]]), open_slots[0]
        open_slots = open_slots[item.embeds.shape[0] :]
        if item.meta["modality"] == "audio":  # counts like text
            continue
        pieces.append(_count_up(start - cursor) + following)
        pieces.append(_grid_positions(item.meta, merge, per_second) + following + start - cursor)
        cursor, following = start + item.embeds.shape[0], int(pieces[-1].max()) + 1
    pieces.append(_count_up(ids.shape[1] - cursor) + following)
    positions = torch.cat(pieces, dim=1)
    return positions[:, None], int(positions.max()) + 1 - ids.shape[1]


def _count_up(length: int) -> Tensor:
    return torch.arange(length).expand(3, -1)


def _grid_positions(meta: Mapping[str, Any], merge: int, per_second: float | None) -> Tensor:
    frames, height, width = meta["grid_thw"]
    axes = (_frame_positions(meta, frames, per_second), torch.arange(height // merge), torch.arange(width // merge))
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)


def _frame_positions(meta: Mapping[str, Any], frames: int, per_second: float | None) -> Tensor:
    if per_second is None or meta["modality"] != "video":
        return torch.arange(frames)
    if "seconds" in meta:  # no constant rate
        return torch.tensor([int(float(second) * per_second) for second in meta["seconds"]])
    # In the precision of the joint processor.
    return (torch.arange(frames) * torch.tensor(meta["second_per_grid"], dtype=torch.float32) * per_second).long()
