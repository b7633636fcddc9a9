"""Prompts of conversations, kept after they are computed: the next turn starts with the previous one.

Requests name their conversation (``TextGenerationParams.cache_key``). For each, the last prompt is kept, with its keys
and values, and the rows that a talker needs. A row-by-row comparison of inputs finds how much of it the next prompt
shares. The names in requests are therefore not trusted: media, edited items and another template are different rows.
Reused rows were computed in other shares than they would be now, so sums may be rounded differently. Method: prefix
caching (SGLang's RadixAttention, Zheng et al. 2024), with one chain for each conversation.
"""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus_llm.engine.sequence import Thinking
from omnibus_llm.engine.slot_cache import cache_layers

#: Fewer tokens are not reused: to copy them costs about as much as to compute them.
MIN_KEPT_TOKENS = 16


class KeptPrompt(NamedTuple):
    """A prompt of T tokens.

    It consists of its ``inputs`` [T, H] and ``positions`` [axes, T], keys and values, and hidden rows [T, H'] if a
    talker followed.
    """

    inputs: Tensor
    positions: Tensor
    cache: DynamicCache
    hidden: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        cache_tensors = [each for pair in cache_layers(self.cache) for each in pair]
        tensors = [self.inputs, self.positions, *cache_tensors, *([] if self.hidden is None else [self.hidden])]
        return sum(each.nbytes for each in tensors)


class KeptPrompts:
    """Up to ``limit_bytes`` of prompts; the least recently used is evicted first.

    For the compute thread only.
    """

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
        """Keep the computed prompt of ``sequence``, replacing its conversation's earlier one."""
        if not sequence.cache_key or not self.limit_bytes or sequence.attention is not None:
            return
        hidden = torch.cat(sequence.hidden) if sequence.voice is not None else None
        kept_prompt = KeptPrompt(sequence.inputs, sequence.positions, sequence.cache, hidden)
        self._drop(sequence.cache_key)
        size = self._count_bytes(kept_prompt)
        if size > self.limit_bytes:
            return
        while self.nbytes + size > self.limit_bytes:
            self._drop(next(iter(self._kept)))
        self._kept[sequence.cache_key] = kept_prompt
        self.nbytes += size

    def reuse(self, sequence: Thinking) -> int:
        """Start ``sequence`` after the tokens it shares with its conversation's last prompt.

        Returns their number. A sequence whose talker needs rows that were not kept is computed from the start.
        """
        kept_prompt = self._kept.get(sequence.cache_key)
        if (
            kept_prompt is None
            or sequence.attention is not None
            or (sequence.voice is not None and kept_prompt.hidden is None)
        ):
            return 0
        self._kept.move_to_end(sequence.cache_key)
        count = min(_count_equal(kept_prompt, sequence), sequence.length - 1)  # the answer starts from the last row
        if count < MIN_KEPT_TOKENS:
            return 0
        self._copy_rows(kept_prompt, sequence, count)
        if sequence.voice is not None and kept_prompt.hidden is not None:
            sequence.hidden = [kept_prompt.hidden[:count]]
        sequence.done = count
        self.reused_tokens += count
        return count

    def _count_bytes(self, kept_prompt: KeptPrompt) -> int:
        return kept_prompt.nbytes

    def _copy_rows(self, kept_prompt: KeptPrompt, sequence: Thinking, count: int) -> None:
        """Give ``sequence`` the first ``count`` tokens of ``kept_prompt``."""
        for index, (keys, values) in enumerate(cache_layers(kept_prompt.cache)):
            sequence.cache.update(keys[None, :, :count], values[None, :, :count], index)

    def _drop(self, key: str) -> None:
        dropped_prompt = self._kept.pop(key, None)
        if dropped_prompt is not None:
            self.nbytes -= self._count_bytes(dropped_prompt)


def _count_equal(kept_prompt: KeptPrompt, sequence: Thinking) -> int:
    """Return the number of leading rows that both share."""
    most = min(len(kept_prompt.inputs), len(sequence.inputs))
    if kept_prompt.inputs.shape[1:] != sequence.inputs.shape[1:]:  # rows with media are wider in some families
        return 0
    differs = (kept_prompt.inputs[:most] != sequence.inputs[:most]).any(dim=1)
    differs |= (kept_prompt.positions[:, :most] != sequence.positions[:, :most]).any(dim=0)
    places = differs.nonzero()
    return int(places[0]) if len(places) else most
