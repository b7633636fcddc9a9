"""Estimated tokens of an image by model family, width and height.

The functions are pure and load no processor. Families cut and pad images by different rules: fixed sizes, squares of
pixels, or tiles of the resolution that fits best. Checkpoints may be configured differently. The real tokens are
counted after the encoder has run.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil

TokenRule = Callable[[int, int], int]


def image_tokens(family: str, width: int, height: int) -> int:
    """Return the tokens of an image for ``family``.

    The image has ``width`` x ``height`` pixels. Unknown families use Qwen2-VL's rule.
    """
    return RULES.get(family, _QWEN)(max(1, width), max(1, height))


def _squares(side: int, most: int) -> TokenRule:
    """Return a rule of one token per square of ``side`` pixels.

    The number of tokens is 4 to ``most``.
    """
    return lambda width, height: min(max(ceil(width / side) * ceil(height / side), 4), most)


def _fixed(count: int) -> TokenRule:
    """Return a rule of ``count`` tokens for each image."""
    return lambda width, height: count


def _aspect_tiles(side: int, per_tile: int, most: int) -> TokenRule:
    """Return a rule of tiles, in the grid closest in aspect ratio.

    If there are several tiles, the whole image is added as one more.
    """

    def count_tokens(width: int, height: int) -> int:
        columns, rows = _closest_grid(width, height, side, most)
        return per_tile * (columns * rows + (columns * rows > 1))

    return count_tokens


def _closest_grid(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Return InternVL's grid: of at most ``most`` tiles, the closest in aspect ratio.

    Of equally close grids it is the larger one, if the image is large.
    """
    best, least = (1, 1), float("inf")
    for columns, rows in _grids(most):
        distance = abs(width / height - columns / rows)
        larger = width * height > 0.5 * side * side * columns * rows
        if distance < least or (distance == least and larger):
            best, least = (columns, rows), distance
    return best


@cache
def _grids(most: int) -> tuple[tuple[int, int], ...]:
    """Return grids of at most ``most`` tiles, small ones first."""
    found = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    return tuple(sorted(found, key=lambda grid: grid[0] * grid[1]))


def _fitting_tiles(side: int, per_tile: int, grids: Sequence[tuple[int, int]], *, whole: bool = True) -> TokenRule:
    """Return a rule of tiles, of the best canvas.

    That canvas shows most of the image with the least waste. With ``whole``, the whole image is added as one more tile.
    """

    def count_tokens(width: int, height: int) -> int:
        columns, rows = max(grids, key=lambda grid: _canvas_worth(width, height, grid[0] * side, grid[1] * side))
        return per_tile * (columns * rows + whole)

    return count_tokens


def _canvas_worth(width: int, height: int, canvas_width: int, canvas_height: int) -> tuple[int, int]:
    """Return the image pixels on a canvas, and its unused pixels (negative)."""
    scale = min(canvas_width / width, canvas_height / height)
    shown = min(int(width * scale) * int(height * scale), width * height)
    return shown, shown - canvas_width * canvas_height


_QWEN = _squares(28, 16_384)
_MLLAMA_GRIDS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1))
#: By family. LLaVA-NeXT: canvases of 336; LLaVA-OneVision: of 384, up to nine of its tiles; Llama 3.2: 560, up to four.
RULES: dict[str, TokenRule] = {
    "gemma3": _fixed(256),
    "internvl": _aspect_tiles(448, 256, 12),
    "janus": _fixed(576),
    "llava": _fixed(576),
    "llava_next": _fitting_tiles(336, 576, ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))),
    "llava_onevision": _fitting_tiles(
        384, 729, tuple(grid for grid in _grids(36) if max(grid) <= 6 and grid[0] * grid[1] <= 9)
    ),
    "mllama": _fitting_tiles(560, 1601, _MLLAMA_GRIDS, whole=False),
    "qwen2_5_omni": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen2_vl": _QWEN,
    "qwen3_omni_moe": _squares(32, 16_384),
    "qwen3_vl": _squares(32, 16_384),
}
#: Families whose language model uses cross-attention to images, and reads none of their tokens.
CROSS_ATTENTION = frozenset({"mllama"})
