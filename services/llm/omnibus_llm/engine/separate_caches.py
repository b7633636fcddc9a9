"""Caches of sequences whose models cannot decode several in one pass: each has its own cache of the library.

Such models keep more than keys and values of all positions, such as states of convolutions or of linear attention, or
the keys of an indexer.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from omnibus.errors import Fatal
from omnibus_llm.engine.kv_codec import Layers
from omnibus_models.attention import Attention
from omnibus_models.contract import Decoder


class SeparateCaches:
    """The interface of ``SlotCache`` and ``DecodePass`` for up to ``slots`` sequences with one cache each."""

    token_bytes = 0  # nothing is reserved for a position

    def __init__(self, decoder: Decoder, slots: int, context: int) -> None:
        self._decoder = decoder
        self.slots, self.context = slots, context
        self.lengths: list[int] = []
        self._caches: list[Cache] = []
        self._sample: Cache | None = None  # of the first sequence, for measurements
        #: Rows of slots whose caches already contain the position of a step that is not complete.
        self._ahead: dict[int, Tensor] = {}

    def filled_layers(self, cache: Any, attention: Attention | None) -> Any:
        """Return what ``insert`` takes: the cache itself."""
        return cache

    def insert(self, cache: Any) -> int:
        """Put a copy of ``cache``, which other sequences may share, into the next free slot; returns the slot.

        A cache may not know its positions: the caller sets ``lengths``.
        """
        self._sample = self._sample or copy.deepcopy(cache)
        self._caches.append(copy.deepcopy(cache))
        self.lengths.append(0)
        return len(self.lengths) - 1

    def occupy_slots(self, count: int, length: int) -> list[int]:
        """See ``SlotCache``. The caches hold the first sequence's prompt, whatever ``length``."""
        self.lengths, self._caches, self._ahead = [length] * count, [], {}
        self._caches = [copy.deepcopy(self._sample) for _ in range(count) if self._sample is not None]
        return list(range(count))

    def remove(self, slot: int, wipe: bool = False) -> None:
        """Free ``slot``; the last sequence moves into it."""
        last = len(self.lengths) - 1
        self._ahead.pop(slot, None)
        if slot != last and last in self._ahead:
            self._ahead[slot] = self._ahead.pop(last)
        self.lengths[slot], self._caches[slot] = self.lengths[last], self._caches[last]
        self.lengths.pop()
        self._caches.pop()

    def advance_slots(self, slots: Sequence[int]) -> None:
        """Keep the positions that the last pass wrote. Without this call the pass can be repeated."""
        for slot in slots:
            self.lengths[slot] += 1
            self._ahead.pop(slot, None)

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        """See ``DecodePass``: one pass for each slot."""
        for slot, row, position in zip(slots, inputs, positions, strict=True):
            if slot not in self._ahead:
                place = torch.full((self._decoder.axes, 1, 1), position, device=row.device)
                self._ahead[slot] = self._decoder.forward(row[None, None], place, self._caches[slot], None)[0, -1]
        return torch.stack([self._ahead[slot] for slot in slots])

    def pack(self, layers: Layers) -> tuple[dict[str, Any], np.ndarray]:
        """Raise ``Fatal``: states of such models stay where they are."""
        self._refuse_transfer()

    def unpack(self, about: Mapping[str, Any], array: np.ndarray | None, length: int) -> Layers:
        """See ``pack``."""
        self._refuse_transfer()

    def _refuse_transfer(self) -> NoReturn:
        raise Fatal("this model's state cannot be sent to another executor; declare the option L instead of P and D")
