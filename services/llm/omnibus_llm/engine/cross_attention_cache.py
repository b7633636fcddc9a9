"""The slot cache of decoders with cross-attention: some of their layers attend to rows of an encoder.

Slots of decoders with both kinds of attention in each layer.

A layer attends to earlier tokens and to rows of an encoder, as in Whisper.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus_llm.engine.decode_pass import DecodePass
from omnibus_llm.engine.slot_cache import CacheLayout, Layers, SlotCache, pack_cache, zeros
from omnibus_models.attention import Attention, Crossing, Mask
from omnibus_models.contract import Decoder


class _CrossedLayer(NamedTuple):
    """Keys and values of a cross-attention layer in one step.

    They are [B, heads, R, head_dim]. The attributes are those that the library reads.
    """

    keys: Tensor | None = None
    values: Tensor | None = None
    is_initialized: bool = False


class CrossCache(SlotCache):
    """Slots that also hold the rows that layers ``cross_layers`` attend to.

    Sequences may have different numbers of rows. Only rows that an answer attends to are kept. Memory for them is
    allocated on arrival, for all slots, and grows to the most that a sequence has had. A sequence without rows holds
    one row of zeros, to which attention adds nothing, so that it can share a step with others.
    """

    def __init__(self, slots: int, context: int, layers: int, cross_layers: Sequence[int]) -> None:
        super().__init__(slots, context)
        self.rows: list[int] = []  # of each sequence
        self._crossed = tuple(sorted(cross_layers))
        self._back = tuple(layer for layer in range(layers) if layer not in cross_layers)
        self._place = {layer: place for place, layer in enumerate(self._back)}
        self._stored: list[Tensor] = []  # keys, values, keys ... [slots, heads, R, head_dim]
        self._counts = torch.empty(0, dtype=torch.long)
        self._most = 0

    @property
    def layout(self) -> CacheLayout:
        return super().layout._replace(aside=len(self._crossed))

    def filled_layers(self, cache: DynamicCache, attention: Attention | None) -> Layers:
        """Return the layers of self-attention first, those of cross-attention last."""
        kept_rows = None if attention is None else attention.answer_rows
        all_layers = cache.layers
        nothing = all_layers[self._back[0]].keys[0][:, :0]
        back = [(all_layers[layer].keys[0], all_layers[layer].values[0]) for layer in self._back]
        if kept_rows is None:
            return [*back, *((nothing, nothing) for _ in self._crossed)]
        return [
            *back,
            *(
                (all_layers[layer].keys[0][:, kept_rows], all_layers[layer].values[0][:, kept_rows])
                for layer in self._crossed
            ),
        ]

    def pack(self, layers: Layers) -> tuple[dict[str, Any], np.ndarray]:
        return pack_cache(layers, len(self._crossed))

    def insert(self, layers: Layers) -> int:
        back, aside = layers[: len(self._back)], layers[len(self._back) :]
        cross_tensors = [tensor for pair in aside for tensor in pair]
        rows = cross_tensors[0].shape[1]
        self._widen_rows(cross_tensors, rows)
        slot = len(self.rows)
        for stored_tensor, new in zip(self._stored, cross_tensors, strict=False):
            stored_tensor[slot, :, :1] = 0
            stored_tensor[slot, :, :rows] = new
        super().insert(back)
        self.rows.append(rows)
        return slot

    def occupy_slots(self, count: int, length: int) -> list[int]:
        slots = super().occupy_slots(count, length)
        self.rows = [0] * len(slots)
        return slots

    def remove(self, slot: int, wipe: bool = False) -> None:
        last = len(self.rows) - 1
        used_rows = max(1, self.rows[last])
        for tensor in self._stored:
            if wipe:
                tensor[slot].zero_()
            if slot != last:
                tensor[slot, :, :used_rows] = tensor[last, :, :used_rows]
        self.rows[slot] = self.rows[last]
        self.rows.pop()
        super().remove(slot, wipe)

    def begin_pass(self, slots: Sequence[int]) -> None:
        super().begin_pass(slots)
        counts = [self.rows[slot] for slot in slots]
        self._most = max(counts)
        if self._most:
            self._counts = torch.tensor(counts, device=self._ends.device)
        self.layers = self._crossed_layers() if self._most else []

    def attention_mask(self) -> Mask:
        mask: Any = super().attention_mask()
        if not self._most:
            return mask
        rows = torch.arange(self._most, device=self._counts.device)
        visible_rows = rows[None] < self._counts.clamp(min=1)[:, None]
        return Crossing(mask, visible_rows[:, None, None], (self._counts > 0)[:, None])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return super().update(key_states, value_states, self._place[layer_idx])

    def _crossed_layers(self) -> list[Any]:
        """Return a cache layer for each layer of the model; those of self-attention are not read."""
        views = iter([tensor[self._rows, :, : self._most] for tensor in self._stored])
        aside = {layer: _CrossedLayer(next(views), next(views), True) for layer in self._crossed}
        return [aside.get(layer, _CrossedLayer()) for layer in range(len(self._back) + len(self._crossed))]

    def _widen_rows(self, tensors: Sequence[Tensor], rows: int) -> None:
        """Make room for ``rows`` of the shapes of ``tensors``."""
        if rows and not self._stored:
            self._stored = [new.new_zeros(self.slots, new.shape[0], 0, new.shape[2]) for new in tensors]
        for index, tensor in enumerate(self._stored):
            if tensor.shape[2] < rows:
                slots, heads, room, width = tensor.shape
                wider = zeros((slots, heads, rows, width), tensor)
                wider[:, :, :room] = tensor
                self._stored[index] = wider


class PairedCache(CrossCache):
    """Slots with the keys and values of both kinds: those of cross-attention are layers after the others."""

    def __init__(self, slots: int, context: int, layers: int) -> None:
        super().__init__(slots, context, 2 * layers, range(layers, 2 * layers))

    def filled_layers(self, cache: Any, attention: Attention | None) -> Layers:
        """See ``SlotCache``. ``cache`` is an ``EncoderDecoderCache``, all of whose rows are kept."""
        layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
        return [(layer.keys[0], layer.values[0]) for layer in layers]

    def occupy_slots(self, count: int, length: int) -> list[int]:
        """See ``SlotCache``. Each sequence has as many rows as there is memory for."""
        slots = super().occupy_slots(count, length)
        self.rows = [self._stored[0].shape[2]] * len(slots)
        return slots


class PairedPass(DecodePass):
    """A ``DecodePass`` for sequences with different numbers of rows: one pass for each number.

    Windows of one length, as Whisper's, have the same number.
    """

    def __init__(self, decoder: Decoder, cache: PairedCache) -> None:
        super().__init__(decoder, cache)
        self._rows = cache

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        """See ``DecodePass``."""
        groups = defaultdict[int, list[int]](list)
        for place, slot in enumerate(slots):
            groups[self._rows.rows[slot]].append(place)
        if len(groups) == 1:
            return super().run(slots, inputs, positions)
        parts = [
            super(PairedPass, self).run([slots[at] for at in places], inputs[places], [positions[at] for at in places])
            for places in groups.values()
        ]
        order = torch.tensor([at for places in groups.values() for at in places], device=inputs.device)
        return torch.cat(parts)[order.argsort()]
