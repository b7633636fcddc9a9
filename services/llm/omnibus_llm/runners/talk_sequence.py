"""Sequence of a talker: one answer, the thinker's rows that it has not used, and the inputs of its steps."""

import math
from collections import deque
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from omnibus_llm.engine.sampler import Picker, draw_tokens
from omnibus_llm.engine.sequence import DecoderSequence
from omnibus_models.contract import PrefillInputs, Talker
from omnibus_models.recorded_calls import RecordedCalls


@dataclass(frozen=True)
class SpeechBound:
    """The most codes, or frames, of a text: ``base``, and ``per_token``. A row is one token."""

    base: float = math.inf
    per_token: float = 0.0

    def count(self, tokens: int) -> float:
        return self.base + self.per_token * tokens


class Talking(DecoderSequence):
    """One answer of a talker, and the thinker's unused rows.

    Each row is [H], on the CPU.
    """

    def __init__(
        self, prefill: PrefillInputs, picker: Picker, ends: frozenset[int], tail: Tensor, inner: Picker | None
    ) -> None:
        super().__init__(prefill, picker, picker.settings.max_tokens, ends)
        self.inner = inner  # chooses the other codes of a frame
        self.rest: list[int] = []  # the codes after the token in its frame
        self._rows: deque[Tensor] = deque()
        self._tail = tail  # [2, H]: the row that ends the text, and the one that pads it afterwards
        self._ended = False
        self._text_tokens = 1  # the first one is in the prefill
        self.bound = SpeechBound()

    @property
    def is_ready(self) -> bool:
        return self._ended or bool(self._rows)

    @property
    def next_row(self) -> Tensor:
        """The row of the next step."""
        return self._rows[0] if self._rows else self._tail[1]

    def add_rows(self, rows: Tensor) -> None:
        """Add rows [k, H]."""
        self._rows.extend(rows)
        self._text_tokens += len(rows)

    def end_rows(self) -> None:
        """Mark the end of the rows."""
        if not self._ended:
            self._rows.append(self._tail[0])
            self._ended = True
            # Each code used a row until now, so there are no more codes than tokens, and a bound is larger.
            self.limit = int(min(self.limit, max(self.bound.count(self._text_tokens), self.count + 1)))

    def has_rows(self, count: int) -> bool:
        """Return True if the rows of the next ``count`` steps are known."""
        return self._ended or len(self._rows) >= count

    def next_rows(self, count: int) -> Tensor:
        """Return the rows [count, H] of the next ``count`` steps."""
        rows = list(islice(self._rows, count))
        return torch.stack([*rows, *[self._tail[1]] * (count - len(rows))])

    def resume_frames(self, frames: Rows[Rows[int]], inputs: Tensor) -> None:
        """Advance past ``frames``, whose step ``inputs`` [n, H'] are prefilled too."""
        self.begin_after([frame[0] for frame in frames], inputs)
        if self.inner is not None:
            for frame in frames:
                for code in frame[1:]:
                    self.inner.resume_after(code)
            self.sides = [np.array(frame[1:]) for frame in frames]

    def accept_token(self, token: int) -> str | None:
        """Take the next code; every code but the first uses up a row."""
        if self.count and self._rows:
            self._rows.popleft()
        return super().accept_token(token)


class TalkFeed:
    """Feeds a talker its last code, or frame, and the next row.

    The row is the thinker's, and a step waits for it.
    """

    always_ready = False

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self._calls = RecordedCalls(talker.module, self._predict)
        self._rest = 0 if talker.predictor is None else talker.predictor.rest

    def is_ready(self, sequence: Talking) -> bool:
        return sequence.is_ready

    def build_inputs(self, batch: Rows[Talking]) -> Tensor:
        frames = [[sequence.token, *sequence.rest] if sequence.rest else sequence.token for sequence in batch]
        codes = torch.tensor(frames, device=self._talker.device)
        rows = torch.stack([sequence.next_row for sequence in batch])
        return self._talker.step_inputs(codes, rows.to(self._talker.device, self._talker.dtype))

    def observe_prefill(self, sequence: Talking, hidden: Tensor) -> None:
        """Ignore hidden states: nothing follows a talker."""

    def first_side(self, sequence: Talking) -> np.ndarray | None:
        return None

    def step_sides(self, batch: Rows[Talking], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        return [None] * len(batch)

    def token_sides(
        self, batch: Rows[Talking], hidden: Tensor, tokens: list[int], sides: list[np.ndarray | None]
    ) -> list[np.ndarray | None]:
        """Return the codes that follow ``tokens`` in their frames, if any."""
        if self._talker.predictor is None:
            return sides
        frames = self._predict_frames(batch, hidden, torch.tensor(tokens, device=hidden.device)).cpu().numpy()
        for sequence, codes in zip(batch, frames, strict=True):
            sequence.rest = codes.tolist()
        return list(frames)

    def _predict_frames(self, batch: Rows[Talking], hidden: Tensor, codes: Tensor) -> Tensor:
        """Return the codes [B, groups - 1] that follow ``codes`` [B]."""
        pickers = [sequence.inner for sequence in batch if sequence.inner is not None]
        if all(picker.is_greedy for picker in pickers):
            return self._calls(False, hidden, codes)
        # All keys at once: between two codes of a frame nothing waits for Python.
        keys = [[0 if each.is_greedy else each.draw_key() for _ in range(self._rest)] for each in pickers]
        greedy = torch.tensor([each.is_greedy for each in pickers], device=hidden.device)
        return self._calls(True, hidden, codes, torch.tensor(keys, device=hidden.device), greedy)

    def _predict(self, draws: bool, hidden: Tensor, codes: Tensor, *chance: Tensor) -> Tensor:
        """Predict the rest of frames: the likeliest codes, or those that ``chance``, keys and greedy rows, draws."""
        predictor = self._talker.predictor
        assert predictor is not None  # noqa: S101 - for the type checker
        keys = iter(chance[0].unbind(1) if draws else ())
        sampling = predictor.sampling

        def choose_codes(logits: Tensor) -> Tensor:
            likeliest = logits.argmax(-1)
            if not draws:
                return likeliest
            temperature = torch.full_like(logits[:, :1], sampling.temperature)
            top_p = torch.full_like(temperature, sampling.top_p)
            drawn_codes = draw_tokens(logits, next(keys), temperature, sampling.top_k, top_p)
            return torch.where(chance[1], likeliest, drawn_codes)

        return predictor.predict_remaining(hidden, codes, choose_codes)
