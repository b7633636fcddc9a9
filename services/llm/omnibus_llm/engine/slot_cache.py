"""Keys and values of many sequences of different lengths in one cache.

Keys and values of one sequence as one array, for another executor. No pickle.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from omnibus.errors import Fatal, ProtocolError
from omnibus_models.attention import Attention, Mask
from omnibus_models.device import empty_on_host, finish_copies

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


class SlotCache(Cache):
    """A ``transformers`` cache of ``slots`` sequences of up to ``context`` positions.

    The occupied slots are always 0 .. n-1. When one is removed, the last sequence is copied into the hole. A decode
    step of all sequences then reads a view of the cache instead of a gathered copy. The first ``insert`` allocates the
    memory: per layer two tensors [slots, heads, context, head_dim].
    """

    def __init__(self, slots: int, context: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.context = context
        self.lengths: list[int] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows: slice | Tensor = slice(0, 0)
        self._index = self._ends = self._positions = torch.empty(0, dtype=torch.long)
        self._high = 0

    @property
    def layout(self) -> CacheLayout:
        """Layout of the stored layers; available after the first ``insert``."""
        _, heads, _, width = self._keys[0].shape
        return CacheLayout(len(self._keys), heads, width)

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one position in all layers; 0 before the first ``insert``."""
        return sum(each.shape[1] * each.shape[3] * each.element_size() for each in (*self._keys, *self._values))

    def filled_layers(self, cache: DynamicCache, attention: Attention | None) -> Layers:
        """Return the layers to keep of the one sequence in ``cache``.

        Makes no copy. ``attention`` is that of its prompt.
        """
        return cache_layers(cache)

    def pack(self, layers: Layers) -> tuple[dict[str, Any], np.ndarray]:
        """Return the metadata and the array of ``layers``, for another executor.

        Raises ``Fatal`` if the layers differ in shape, or their values from their keys.
        """
        if len({tensor.shape for pair in layers for tensor in pair}) > 1:
            raise Fatal("this model's keys and values differ in shape: declare the option L instead of P and D")
        return pack_cache(layers)

    def unpack(self, about: Mapping[str, Any], array: np.ndarray | None, length: int) -> Layers:
        """Restore a sequence of ``length`` positions from the output of ``pack``. Raises ``ProtocolError``."""
        return unpack_cache(about, array, length, self.layout)

    def insert(self, layers: Layers) -> int:
        """Copy one sequence into the next free slot; returns the slot.

        ``layers`` are keys and values [heads, T, head_dim] per layer.
        """
        if not self._keys:
            self._allocate_slots(layers)
        slot, length = len(self.lengths), layers[0][0].shape[1]
        for index, (keys, values) in enumerate(layers):
            self._keys[index][slot, :, :length] = keys
            self._values[index][slot, :, :length] = values
        self.lengths.append(length)
        return slot

    def occupy_slots(self, count: int, length: int) -> list[int]:
        """Occupy ``count`` slots of ``length`` positions with any content, for measurements.

        All other slots are free afterwards. Returns the occupied slots.
        """
        self.lengths = [length] * count
        return list(range(count))

    def remove(self, slot: int, wipe: bool = False) -> None:
        """Free ``slot``; the last sequence moves into it. ``wipe`` clears values that are not numbers.

        A masked position has weight zero, but zero times NaN is NaN: a slot must not keep any.
        """
        last = len(self.lengths) - 1
        used_length = self.lengths[last]
        for tensor in (*self._keys, *self._values):
            if wipe:
                tensor[slot].zero_()
            if slot != last:
                tensor[slot, :, :used_length] = tensor[last, :, :used_length]
        self.lengths[slot] = used_length
        self.lengths.pop()

    def begin_pass(self, slots: Sequence[int]) -> None:
        """Choose the slots of the next forward pass, in ascending order: one new position for each."""
        self._choose_rows(slots, self._keys[0].device)

    def _choose_rows(self, slots: Sequence[int], device: torch.device) -> None:
        whole = len(slots) == slots[-1] + 1
        self._index = torch.tensor(slots, device=device)
        self._ends = torch.tensor([self.lengths[slot] for slot in slots], device=device)
        self._rows = slice(0, len(slots)) if whole else self._index
        self._high = max(self.lengths[slot] for slot in slots) + 1
        self._positions = torch.arange(self._high, device=device)

    def begin_fixed_pass(self, index: Tensor, ends: Tensor, positions: int) -> None:
        """Choose slots for a pass that reads ``positions`` of each.

        ``index`` (int64 [B]) are the slots, from 0, and ``ends`` the positions to write. The shapes of the pass do not
        depend on the lengths.
        """
        self._index, self._ends, self._high = index, ends, positions
        self._positions = torch.arange(positions, device=ends.device)
        self._rows = slice(0, len(index))

    def pass_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that the chosen pass depends on, and those that it changes."""
        return (self._index, self._ends, self._positions, *self._keys, *self._values)

    @contextmanager
    def use_tensors(self, is_whole: bool, rows: int, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Use ``tensors``, as ``pass_tensors`` returned them, for a pass of ``rows`` until the block ends.

        ``is_whole``: its slots are the first ones. A pass that is recorded gets other objects.
        """
        own = self._keys, self._values
        self._index, self._ends, self._positions, *layers = tensors
        self._keys, self._values = layers[: len(own[0])], layers[len(own[0]) :]
        self._rows = slice(0, rows) if is_whole else self._index
        self._high = self._positions.shape[0]
        try:
            yield
        finally:
            self._keys, self._values = own

    def advance_slots(self, slots: Sequence[int]) -> None:
        """Keep the positions that the last forward pass wrote. Without this call the pass can be repeated."""
        for slot in slots:
            self.lengths[slot] += 1

    def attention_mask(self) -> Mask:
        """Return the attention mask of the next forward pass, bool [B, 1, 1, S]: True where a row may attend."""
        return (self._positions[None] <= self._ends[:, None])[:, None, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one position per row; returns all positions up to the longest row.

        The new position is [B, heads, 1, head_dim].
        """
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._index, :, self._ends] = key_states[:, :, 0]
        values[self._index, :, self._ends] = value_states[:, :, 0]
        return keys[self._rows, :, : self._high], values[self._rows, :, : self._high]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._high - 1

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """Return the place of each row's new position, [B], for models that compute masks themselves."""
        return self._ends

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._high, 0

    def _allocate_slots(self, layers: Layers) -> None:
        for keys, values in layers:
            self._keys.append(self._allocate_slot_rows(keys))
            self._values.append(self._allocate_slot_rows(values))  # narrower than keys in some models (MLA)

    def _allocate_slot_rows(self, rows: Tensor) -> Tensor:
        heads, _, width = rows.shape
        return zeros((self.slots, heads, self.context, width), rows)


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros with the dtype and device of ``like``. On a CPU, they take memory only once they are written.

    torch writes its zeros. All positions of all slots are gigabytes, of which most are never used.
    """
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.zeros(math.prod(shape) * like.itemsize, np.uint8)).view(like.dtype).view(shape)
