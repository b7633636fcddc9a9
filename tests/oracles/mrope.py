"""Rotary positions of Qwen2-VL and Qwen2.5-VL, token by token.

They follow the papers. Qwen2-VL, arXiv:2409.12191, section 2.1: "In scenarios where the model's input encompasses
multiple modalities, position numbering for each modality is initialized by incrementing the maximum position ID of the
preceding modality by one."

Qwen2.5-VL, arXiv:2502.13923, section 2.1.1: temporal ids follow absolute time. Its authors' code in transformers 4.49
to 4.57 and vLLM 0.32 (``qwen2_5_vl.py: get_mrope_input_positions``) count so. In ``get_rope_index`` of transformers
5.16 to 5.24, text after a video begins ``max(height, width)`` after the video's first position, so time is left out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch


def compute_positions(
    kinds: Sequence[int], grids: Sequence[tuple[int, int, int]], paces: Sequence[float]
) -> list[list[int]]:
    """[T] of time, height and width. ``kinds`` are 0 for text. ``grids`` count rows; a pace is in positions per frame.

    Both are in the order of the prompt.
    """
    points: list[list[int]] = []
    media = iter(zip(grids, paces, strict=True))
    block: list[list[int]] = []
    for kind in kinds:
        if not block:
            start = max((max(place) for place in points), default=-1) + 1
            block = list(_walk_grid(start, *next(media))) if kind else [[start] * 3]
        points.append(block.pop(0))
    return points


def _walk_grid(start: int, grid: tuple[int, int, int], pace: float) -> Iterator[list[int]]:
    for frame in range(grid[0]):
        for row in range(grid[1]):
            for column in range(grid[2]):
                yield [start + int(np.float32(frame) * np.float32(pace)), start + row, start + column]


def correct_positions(model: Any) -> None:
    """Patch the library's whole ``model`` to count positions by the rule above.

    It is a Qwen2-VL or Qwen2.5-VL.
    """
    merge = model.config.vision_config.spatial_merge_size
    per_second = getattr(model.config.vision_config, "tokens_per_second", None)

    def get_rope_index(
        ids: torch.Tensor,
        mm_token_type_ids: torch.Tensor,
        image_grid_thw: torch.Tensor | None = None,
        video_grid_thw: torch.Tensor | None = None,
        second_per_grid_ts: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kinds = mm_token_type_ids[0].tolist()
        grids = {1: iter(_list_grids(image_grid_thw, merge)), 2: iter(_list_grids(video_grid_thw, merge))}
        seconds = iter([] if second_per_grid_ts is None else [float(each) for each in second_per_grid_ts])
        order = [kind for kind, before in zip(kinds, [0, *kinds], strict=False) if kind and not before]
        paces = [next(seconds) * per_second if kind == 2 and per_second else 1.0 for kind in order]
        points = torch.tensor(compute_positions(kinds, [next(grids[kind]) for kind in order], paces)).T[:, None]
        return points, points.max().reshape(1, 1) + 1 - ids.shape[1]

    model.model.get_rope_index = get_rope_index


def _list_grids(grids: torch.Tensor | None, merge: int) -> list[tuple[int, int, int]]:
    return [] if grids is None else [(t, h // merge, w // merge) for t, h, w in grids.tolist()]
