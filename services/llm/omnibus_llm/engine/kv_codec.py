"""Keys and values of one sequence as one array, for another executor. No pickle."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus.errors import ProtocolError
from omnibus_models.device_copy import empty_on_host, finish_copies

#: Keys and values [heads, T, head_dim] of each layer.
Layers = Sequence[tuple[Tensor, Tensor]]

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class CacheLayout(NamedTuple):
    """Layers of a cache: ``layers`` of self-attention, then ``aside`` of cross-attention.

    Those of cross-attention have their own number of rows.
    """

    layers: int
    heads: int
    width: int
    aside: int = 0


def cache_layers(cache: DynamicCache) -> Layers:
    """Return the one sequence of ``cache``, without a copy."""
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def pack_cache(layers: Layers, aside: int = 0) -> tuple[dict[str, Any], np.ndarray]:
    """Return the metadata of ``layers`` and its array.

    The array is [layers, 2, heads, T, head_dim], and the metadata contain ``dtype``. If the last layers are of
    cross-attention (``aside``), with R rows, the array is flat, with theirs last, and ``rows`` is R. numpy has no
    bfloat16, so its words travel as int16.
    """
    parts = [layers[: len(layers) - aside], layers[len(layers) - aside :]]
    shapes = [(len(part), 2, *part[0][0].shape) for part in parts if part]
    some = layers[0][0]
    buffer = empty_on_host((sum(map(math.prod, shapes)),), some.dtype, some.device)
    for place, part in zip(_split_views(buffer, shapes), parts, strict=False):
        for index, pair in enumerate(part):
            for half, tensor in enumerate(pair):
                place[index, half].copy_(tensor, non_blocking=True)
    finish_copies(some.device)
    about: dict[str, Any] = {"dtype": str(buffer.dtype).removeprefix("torch.")}
    if aside:
        about["rows"] = shapes[1][3]
    else:
        buffer = buffer.view(shapes[0])
    words = buffer.view(torch.int16) if buffer.dtype == torch.bfloat16 else buffer
    return about, words.numpy()


def unpack_cache(about: Mapping[str, Any], array: np.ndarray | None, length: int, layout: CacheLayout) -> Layers:
    """Return the sequence of ``length`` positions that ``pack_cache`` packed, without a copy.

    ``layout`` is that of the model that will continue. Raises ``ProtocolError`` for keys and values of another model or
    another length.
    """
    dtype = _DTYPES.get(str(about.get("dtype")))
    rows = about.get("rows") if layout.aside else 0
    shapes = _array_shapes(layout, length, rows) if isinstance(rows, int) and rows >= 0 else []
    target_shape = (sum(map(math.prod, shapes)),) if layout.aside else tuple(*shapes)
    if dtype is None or array is None or array.shape != target_shape or array.dtype.itemsize != dtype.itemsize:
        content = "nothing" if array is None else f"{array.dtype} {array.shape}"
        raise ProtocolError(
            f"the cache is {content} of {about.get('dtype')}, not {target_shape}: prefill and decode must run one model"
        )
    whole = torch.from_numpy(array).view(dtype).flatten()
    return [(pair[0], pair[1]) for place in _split_views(whole, shapes) for pair in place]


def _array_shapes(layout: CacheLayout, length: int, rows: int) -> list[tuple[int, ...]]:
    each = [(layout.layers, length), *([(layout.aside, rows)] if layout.aside else [])]
    return [(count, 2, layout.heads, size, layout.width) for count, size in each]


def _split_views(whole: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Cut ``whole`` [n] into one tensor for each shape, without a copy."""
    pieces = whole.split([math.prod(shape) for shape in shapes])
    return [piece.view(*shape) for piece, shape in zip(pieces, shapes, strict=True)]
