"""Prompts of conversations, kept once they are computed: the next turn begins with the one before it.

A conversation is what its requests call so (``TextGenerationParams.cache_key``); of each the last prompt is kept, with
keys, values and what a talker needs of it. How much of it the next one begins with is found by comparing inputs, row by
row, so that nothing depends on what requests say: media, edited items and another template are other rows. What is
taken over was computed in other shares than it would be anew, so that sums may be rounded otherwise.
Method: prefix caching (SGLang's RadixAttention, Zheng et al. 2024), of one chain for each conversation.
"""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from services.llm.engine.kv_codec import cache_layers
from services.llm.engine.thinker_feed import Thinking

#: Tokens that are worth taking over: fewer cost about as much to copy.
MIN_KEPT_TOKENS = 16


class KeptPrompt(NamedTuple):
    """A prompt of T tokens: its ``inputs`` [T, H] and ``positions`` [axes, T], keys and values, and hidden rows [T, H']
    where a talker has followed."""

    inputs: Tensor
    positions: Tensor
    cache: DynamicCache
    hidden: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of all that it holds."""
        stored = [each for pair in cache_layers(self.cache) for each in pair]
        tensors = [self.inputs, self.positions, *stored, *([] if self.hidden is None else [self.hidden])]
        return sum(each.nbytes for each in tensors)


class KeptPrompts:
    """Up to ``limit_bytes`` of prompts; the least recently used one leaves first. Used in the compute thread alone."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept: OrderedDict[str, KeptPrompt] = OrderedDict()
        self.nbytes = 0
        self.reused_tokens = 0

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, sequence: Thinking) -> None:
        """Keep the prompt of ``sequence``, which is computed, in the place of its conversation's earlier one."""
        if not sequence.cache_key or not self.limit_bytes or sequence.attention is not None:
            return
        hidden = torch.cat(sequence.hidden) if sequence.voice is not None else None
        kept = KeptPrompt(sequence.inputs, sequence.positions, sequence.cache, hidden)
        self._drop(sequence.cache_key)
        size = kept.nbytes
        if size > self.limit_bytes:
            return
        while self.nbytes + size > self.limit_bytes:
            self._drop(next(iter(self._kept)))
        self._kept[sequence.cache_key] = kept
        self.nbytes += size

    def reuse(self, sequence: Thinking) -> int:
        """Let ``sequence`` begin behind what its conversation's last prompt has in common with it; returns its length.

        One whose talker needs rows that were not kept is computed from its beginning.
        """
        kept = self._kept.get(sequence.cache_key)
        if kept is None or sequence.attention is not None or (sequence.voice is not None and kept.hidden is None):
            return 0
        self._kept.move_to_end(sequence.cache_key)
        count = min(_count_equal(kept, sequence), sequence.length - 1)  # the last row is what the answer begins with
        if count < MIN_KEPT_TOKENS:
            return 0
        for index, (keys, values) in enumerate(cache_layers(kept.cache)):
            sequence.cache.update(keys[None, :, :count], values[None, :, :count], index)
        if sequence.voice is not None and kept.hidden is not None:
            sequence.hidden = [kept.hidden[:count]]
        sequence.done = count
        self.reused_tokens += count
        return count

    def _drop(self, key: str) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self.nbytes -= gone.nbytes


def _count_equal(kept: KeptPrompt, sequence: Thinking) -> int:
    """Count the rows that both begin with."""
    most = min(len(kept.inputs), len(sequence.inputs))
    if kept.inputs.shape[1:] != sequence.inputs.shape[1:]:  # with media rows are wider, where families say so
        return 0
    differs = (kept.inputs[:most] != sequence.inputs[:most]).any(dim=1)
    differs |= (kept.positions[:, :most] != sequence.positions[:, :most]).any(dim=0)
    places = differs.nonzero()
    return int(places[0]) if len(places) else most
