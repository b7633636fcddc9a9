"""Slots and kept prompts of a decoder that keeps keys and values itself, as llama.cpp does."""

from collections.abc import Sequence

import torch
from torch import Tensor

from omnibus_llm.engine.kept_prompts import KeptPrompt, KeptPrompts
from omnibus_llm.engine.separate_caches import SeparateCaches
from omnibus_llm.engine.thinker_feed import Thinking
from omnibus_models.llama_cpp_thinker import LlamaCppThinker, NativeSequence


class NativeSlots(SeparateCaches):
    """The interface of ``SlotCache`` and ``DecodePass`` for sequences of ``decoder``, which steps compute together."""

    def __init__(self, decoder: LlamaCppThinker, slots: int, context: int) -> None:
        super().__init__(decoder, slots, context)
        self._native = decoder
        self._sequences: list[NativeSequence] = []
        self.token_bytes = decoder.token_bytes

    def insert(self, cache: NativeSequence) -> int:
        """Put ``cache``, or a copy if it is in a slot already, into the next free slot; returns the slot."""
        sequence = self._native.fork_sequence(cache, cache.length) if cache.in_slot else cache
        sequence.in_slot = True
        self._sequences.append(sequence)
        self.lengths.append(sequence.length)
        return len(self.lengths) - 1

    def occupy_slots(self, count: int, length: int) -> list[int]:
        """See ``SlotCache``."""
        self.lengths, self._sequences, self._ahead = [], [], {}
        if count:
            first = self._native.new_cache()
            self._native.forward(torch.zeros(1, length, 1), torch.arange(length)[None, None], first, None)
            for _ in range(count):
                self.insert(first)
        return list(range(count))

    def remove(self, slot: int, wipe: bool = False) -> None:
        """Free ``slot``; the last sequence moves into it."""
        last = len(self.lengths) - 1
        self._ahead.pop(slot, None)
        if slot != last and last in self._ahead:
            self._ahead[slot] = self._ahead.pop(last)
        self.lengths[slot], self._sequences[slot] = self.lengths[last], self._sequences[last]
        self.lengths.pop()
        self._sequences.pop()

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        """See ``DecodePass``: logits of the next tokens, in one call of the decoder for each adapter."""
        tokens = inputs[:, 0].long().tolist()
        news = [at for at, slot in enumerate(slots) if slot not in self._ahead]
        for adapter, group in self._native.group_rows(len(slots), news):
            logits = self._native.decode_rows(
                [tokens[at] for at in group],
                [positions[at] for at in group],
                [self._sequences[slots[at]].number for at in group],
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
