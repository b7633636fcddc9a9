"""Keys and values of many sequences of different lengths in one cache."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from omnibus.errors import Fatal
from omnibus_llm.engine import kv_codec
from omnibus_llm.engine.kv_codec import CacheLayout, Layers
from omnibus_models.attention import Attention, Mask


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
        self._index = self._ends = torch.empty(0, dtype=torch.long)
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
        return kv_codec.cache_layers(cache)

    def pack(self, layers: Layers) -> tuple[dict[str, Any], np.ndarray]:
        """Return the metadata and the array of ``layers``, for another executor.

        Raises ``Fatal`` if the layers differ in shape, or their values from their keys.
        """
        if len({tensor.shape for pair in layers for tensor in pair}) > 1:
            raise Fatal("this model's keys and values differ in shape: declare the option L instead of P and D")
        return kv_codec.pack_cache(layers)

    def unpack(self, about: Mapping[str, Any], array: np.ndarray | None, length: int) -> Layers:
        """Restore a sequence of ``length`` positions from the output of ``pack``. Raises ``ProtocolError``."""
        return kv_codec.unpack_cache(about, array, length, self.layout)

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

    def begin_fixed_pass(self, index: Tensor, ends: Tensor, positions: int) -> None:
        """Choose slots for a pass that reads ``positions`` of each.

        ``index`` (int64 [B]) are the slots, from 0, and ``ends`` the positions to write. The shapes of the pass do not
        depend on the lengths.
        """
        self._index, self._ends, self._high = index, ends, positions
        self._rows = slice(0, len(index))

    def advance_slots(self, slots: Sequence[int]) -> None:
        """Keep the positions that the last forward pass wrote. Without this call the pass can be repeated."""
        for slot in slots:
            self.lengths[slot] += 1

    def attention_mask(self) -> Mask:
        """Return the attention mask of the next forward pass, bool [B, 1, 1, S]: True where a row may attend."""
        positions = torch.arange(self._high, device=self._ends.device)
        return (positions[None] <= self._ends[:, None])[:, None, None]

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
