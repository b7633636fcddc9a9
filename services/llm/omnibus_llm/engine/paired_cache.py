"""Slots of decoders with both kinds of attention in each layer.

A layer attends to earlier tokens and to rows of an encoder, as in Whisper.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from omnibus_llm.engine.cross_attention_cache import CrossCache
from omnibus_llm.engine.decode_pass import DecodePass
from omnibus_llm.engine.kv_codec import Layers
from omnibus_models.attention import Attention
from omnibus_models.contract import Decoder


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
