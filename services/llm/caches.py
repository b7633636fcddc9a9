"""Keys and values of one sequence as one array, so that they can go to another executor. No pickle."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus.errors import ProtocolError

#: Keys and values [heads, T, head_dim] of each layer.
Layers = Sequence[tuple[Tensor, Tensor]]

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def layers(cache: DynamicCache) -> Layers:
    """The one sequence of ``cache``, without a copy."""
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def pack(filled: Layers) -> tuple[dict[str, Any], np.ndarray]:
    """``filled`` as an array [layers, 2, heads, T, head_dim] and what it holds: ``dtype``.

    numpy has no bfloat16, so its words travel as int16.
    """
    keys = filled[0][0]
    packed = torch.empty((len(filled), 2, *keys.shape), dtype=keys.dtype)
    for index, pair in enumerate(filled):
        for part, stored in enumerate(pair):
            packed[index, part].copy_(stored)
    words = packed.view(torch.int16) if packed.dtype == torch.bfloat16 else packed
    return {"dtype": str(packed.dtype).removeprefix("torch.")}, words.numpy()


def unpack(about: dict[str, Any], packed: np.ndarray | None, length: int, layout: tuple[int, int, int]) -> Layers:
    """What ``pack`` made, without a copy.

    ``layout`` is layers, heads and head_dim of the model that is to go on with it. Raises ``ProtocolError``
    for keys and values of another model or another length.
    """
    dtype = _DTYPES.get(str(about.get("dtype")))
    count, heads, width = layout
    wanted = (count, 2, heads, length, width)
    if dtype is None or packed is None or packed.shape != wanted or packed.dtype.itemsize != dtype.itemsize:
        found = "nothing" if packed is None else f"{packed.dtype} {packed.shape}"
        raise ProtocolError(
            f"the cache is {found} of {about.get('dtype')}, not {wanted}: prefill and decode must run one model"
        )
    whole = torch.from_numpy(packed).view(dtype)
    return [(pair[0], pair[1]) for pair in whole]
