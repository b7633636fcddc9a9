"""Changes of logits that a request asks for: a bias of some tokens, and penalties of those that were generated."""

import torch
from torch import Tensor

from omnibus.errors import BadRequest
from omnibus_models.contract import TokenSamplingParams


class LogitChanges:
    """Bias and penalties of one request over ``vocabulary`` tokens, as OpenAI's API defines them."""

    def __init__(self, settings: TokenSamplingParams, vocabulary: int) -> None:
        if unknown := [token for token in settings.logit_bias if token >= vocabulary]:
            raise BadRequest(f"logit_bias names token {unknown[0]}; this model has {vocabulary}", param="logit_bias")
        self._ids = torch.tensor([*settings.logit_bias], dtype=torch.long)
        self._bias = torch.tensor([*settings.logit_bias.values()], dtype=torch.float32)
        self._presence, self._frequency = settings.presence_penalty, settings.frequency_penalty
        penalised = bool(self._presence or self._frequency)
        self._counts = torch.zeros(vocabulary, dtype=torch.float32) if penalised else None

    def count_token(self, token: int) -> None:
        """Count a generated token."""
        if self._counts is not None:
            self._counts[token] += 1

    def apply_bias(self, logits: Tensor) -> Tensor:
        """Logits [V] and the bias."""
        if not len(self._ids):
            return logits
        return logits.index_add(0, self._ids.to(logits.device), self._bias.to(logits))

    def apply_penalties(self, logits: Tensor) -> Tensor:
        """Logits [V], less for tokens that were generated: for each time, and for any."""
        if self._counts is None:
            return logits
        counts = self._counts.to(logits)
        return logits - self._frequency * counts - self._presence * (counts > 0)
