"""Caches of sequences whose models cannot decode several in one pass: each has its own cache of the library.

Such models keep more than keys and values of all positions, such as states of convolutions or of linear attention, or
the keys of an indexer.

Slots and kept prompts of a decoder that keeps keys and values itself, as llama.cpp does.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from omnibus.errors import Fatal
from omnibus_llm.engine.kept_prompts import KeptPrompt, KeptPrompts
from omnibus_llm.engine.sequence import Thinking
from omnibus_llm.engine.slot_cache import Layers
from omnibus_models.attention import Attention
from omnibus_models.contract import Decoder
from omnibus_models.llama_cpp_thinker import LlamaCppThinker, NativeSequence


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


class NativeSlots(SeparateCaches):
    """The interface of ``SlotCache`` and ``DecodePass`` for sequences of ``decoder``, which steps compute together."""

    def __init__(self, decoder: LlamaCppThinker, slots: int, context: int) -> None:
        super().__init__(decoder, slots, context)
        self._native = decoder
        self._caches: list[NativeSequence] = []
        self.token_bytes = decoder.token_bytes

    def insert(self, cache: NativeSequence) -> int:
        """Put ``cache``, or a copy if it is in a slot already, into the next free slot; returns the slot."""
        sequence = self._native.fork_sequence(cache, cache.length) if cache.in_slot else cache
        sequence.in_slot = True
        self._caches.append(sequence)
        self.lengths.append(sequence.length)
        return len(self.lengths) - 1

    def occupy_slots(self, count: int, length: int) -> list[int]:
        """See ``SlotCache``."""
        self.lengths, self._caches, self._ahead = [], [], {}
        if count:
            first = self._native.new_cache()
            self._native.forward(torch.zeros(1, length, 1), torch.arange(length)[None, None], first, None)
            for _ in range(count):
                self.insert(first)
        return list(range(count))

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        """See ``DecodePass``: logits of the next tokens, in one call of the decoder for each adapter."""
        tokens = inputs[:, 0].tolist()
        news = [at for at, slot in enumerate(slots) if slot not in self._ahead]
        for adapter, group in self._native.group_rows(len(slots), news):
            logits = self._native.decode_rows(
                [int(tokens[at]) for at in group],
                [positions[at] for at in group],
                [self._caches[slots[at]].number for at in group],
                adapter,
            )
            self._ahead.update(zip((slots[at] for at in group), logits, strict=True))
            if len(group) == len(slots):
                return logits
        return torch.stack([self._ahead[slot] for slot in slots])


class NativeKeptPrompts(KeptPrompts):
    """Up to ``most`` prompts that stay in llama.cpp. Each takes the memory of a sequence, ``sequence_bytes``."""

    def __init__(self, most: int, sequence_bytes: int, decoder: LlamaCppThinker) -> None:
        super().__init__(most * sequence_bytes)
        self._sequence_bytes = sequence_bytes
        self._native = decoder

    def _count_bytes(self, kept_prompt: KeptPrompt) -> int:
        return self._sequence_bytes

    def _copy_rows(self, kept_prompt: KeptPrompt, sequence: Thinking, count: int) -> None:
        sequence.cache = self._native.fork_sequence(kept_prompt.cache, count)
