"""A thinker's request inside the engine, and the inputs of its steps."""

from collections.abc import Sequence as Rows

import numpy as np
import torch
from torch import Tensor

from omnibus_llm.engine.sampler import Picker
from omnibus_llm.engine.sequence import DecoderSequence
from omnibus_models.contract import PrefillInputs, Thinker
from omnibus_models.device_copy import copy_to_host


class Thinking(DecoderSequence):
    """One request of a thinker; ``voice`` is None unless a talker follows."""

    def __init__(self, prefill: PrefillInputs, picker: Picker, ends: frozenset[int], voice: str | None) -> None:
        super().__init__(prefill, picker, picker.settings.max_tokens, ends)
        self.prefill: PrefillInputs | None = prefill
        self.voice = voice
        self.cache_key = ""  # of its conversation, whose prompt is kept; empty: none
        self.hidden: list[Tensor] = []

    def release_prefill(self) -> None:
        super().release_prefill()
        self.prefill = None
        self.hidden = []


class ThinkFeed:
    """Feeds a thinker with its own last token; each token's row goes to the talker, if one follows."""

    def __init__(self, thinker: Thinker) -> None:
        self._thinker = thinker

    def is_ready(self, sequence: Thinking) -> bool:
        return True

    def build_inputs(self, batch: Rows[Thinking]) -> Tensor:
        return self._thinker.embed(torch.tensor([sequence.token for sequence in batch], device=self._thinker.device))

    def observe_prefill(self, sequence: Thinking, hidden: Tensor) -> None:
        if sequence.voice is not None:
            sequence.hidden.append(hidden)

    def first_side(self, sequence: Thinking) -> np.ndarray | None:
        if sequence.voice is None or sequence.prefill is None:
            return None
        hidden = torch.cat(sequence.hidden)
        prompt = copy_to_host(self._thinker.talker_prompt(sequence.prefill, hidden[: sequence.prompt], sequence.voice))
        if not sequence.prefix:
            return prompt
        inputs = sequence.inputs[sequence.prompt :]
        rows = copy_to_host(self._thinker.talker_row(inputs, hidden[sequence.prompt :]))
        sequence.sides = [prompt, *rows[:-1]]
        side: np.ndarray = rows[-1]
        return side

    def step_sides(self, batch: Rows[Thinking], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        if all(sequence.voice is None for sequence in batch):
            return [None] * len(batch)
        rows = copy_to_host(self._thinker.talker_row(inputs, hidden))
        return [None if sequence.voice is None else row for sequence, row in zip(batch, rows, strict=True)]

    def token_sides(
        self, batch: Rows[Thinking], hidden: Tensor, tokens: list[int], sides: list[np.ndarray | None]
    ) -> list[np.ndarray | None]:
        return sides
