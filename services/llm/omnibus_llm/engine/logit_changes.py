"""Changes of logits that a request specifies: token biases, penalties for generated tokens, and forbidden tokens."""

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from omnibus.errors import BadRequest
from omnibus_models.contract import TokenSamplingParams


class LogitChanges:
    """Bias, penalties and forbidden tokens of one request over ``vocabulary`` tokens.

    They are defined as in the APIs of OpenAI and vLLM.
    """

    def __init__(self, settings: TokenSamplingParams, vocabulary: int) -> None:
        _require_known([*settings.logit_bias], vocabulary, "logit_bias")
        _require_known(settings.allowed, vocabulary, "allowed_token_ids")
        self._ids = torch.tensor([*settings.logit_bias], dtype=torch.long)
        self._bias = torch.tensor([*settings.logit_bias.values()], dtype=torch.float32)
        self._presence, self._frequency = settings.presence_penalty, settings.frequency_penalty
        has_penalty = bool(self._presence or self._frequency)
        self._counts = torch.zeros(vocabulary, dtype=torch.float32) if has_penalty else None
        self._forbidden: Tensor | None = None
        if settings.allowed:
            self._forbidden = torch.ones(vocabulary, dtype=torch.bool)
            self._forbidden[[*settings.allowed]] = False
        self._banned = settings.banned
        self._last: deque[int] = deque(maxlen=max((len(each) - 1 for each in self._banned), default=0))
        self._min_tokens = settings.min_tokens
        self._ends = [token for token in settings.ends if token < vocabulary]
        self._generated = 0

    def count_token(self, token: int) -> None:
        """Count a generated token."""
        self._generated += 1
        self._last.append(token)
        if self._counts is not None:
            self._counts[token] += 1

    def mask_tokens(self, logits: Tensor) -> Tensor:
        """Return logits [V] with those of tokens forbidden next at -inf."""
        if self._forbidden is not None:
            logits = logits.masked_fill(self._forbidden.to(logits.device), -math.inf)
        last = list(self._last)
        never = [each[-1] for each in self._banned if len(each) == 1 or last[1 - len(each) :] == list(each[:-1])]
        if self._generated < self._min_tokens:
            never += self._ends
        if not never:
            return logits
        return logits.index_fill(0, torch.tensor(never, device=logits.device), -math.inf)

    def apply_bias(self, logits: Tensor) -> Tensor:
        """Return logits [V] plus the bias."""
        if not len(self._ids):
            return logits
        return logits.index_add(0, self._ids.to(logits.device), self._bias.to(logits))

    def apply_penalties(self, logits: Tensor) -> Tensor:
        """Return logits [V] minus the penalties of generated tokens: one for each occurrence, one for any."""
        if self._counts is None:
            return logits
        counts = self._counts.to(logits)
        return logits - self._frequency * counts - self._presence * (counts > 0)


def _require_known(tokens: Sequence[int], vocabulary: int, param: str) -> None:
    if unknown := [token for token in tokens if token >= vocabulary]:
        raise BadRequest(f"{param} names token {unknown[0]}, but this model has {vocabulary} tokens", param=param)
