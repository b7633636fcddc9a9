"""Shaped answers and changed logits in a plain loop around ``generate``.

The loop uses transformers' ``generate``.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llguidance
import torch
from llguidance.hf import from_tokenizer
from transformers import LogitsProcessor, LogitsProcessorList

from tests.oracles import language

#: Requests that both engines have to answer as ``generate`` does: parameters of text generation.
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "wet": {"type": "boolean"},
    },
    "required": ["city", "days", "wet"],
    "additionalProperties": False,
}
CASES: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.5},
    "both, negative": {"presence_penalty": -1.0, "frequency_penalty": -0.5},
    "with repetition": {"repetition_penalty": 1.3, "presence_penalty": 0.7},
    "bias": {"logit_bias": {"264": -100.0, "300": 4.5, "301": 4.0}},
    "min_p of one": {"temperature": 1.4, "min_p": 1.0},
    "schema": {"structured_outputs": {"json": CITY}},
    "schema and bias": {"structured_outputs": {"json": CITY}, "logit_bias": {"14": -20.0}},
}


class _Penalties(LogitsProcessor):  # type: ignore[misc]
    """OpenAI's formula, straight."""

    def __init__(self, start: int, params: dict[str, Any]) -> None:
        self._start, self._params = start, params

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        tokens = ids[0, self._start :].tolist()
        for token in set(tokens):
            scores[0, token] -= tokens.count(token) * self._params.get("frequency_penalty", 0.0)
            scores[0, token] -= self._params.get("presence_penalty", 0.0)
        return scores


class _Bias(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, bias: dict[str, float]) -> None:
        self._bias = bias

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token, value in self._bias.items():
            scores[0, int(token)] += value
        return scores


class _Grammar(LogitsProcessor):  # type: ignore[misc]
    """Allow the matcher's tokens, one at a time, without state between steps."""

    def __init__(self, start: int, tokenizer: Any, width: int, grammar: str) -> None:
        self._start, self._grammar, self.width = start, grammar, width
        self._tokenizer = from_tokenizer(tokenizer, width)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        matcher = llguidance.LLMatcher(self._tokenizer, self._grammar)
        assert matcher.consume_tokens(ids[0, self._start :].tolist())
        mask = [bool(byte) for byte in matcher.compute_logit_bias()][: self.width]
        return scores.masked_fill(~torch.tensor(mask)[None], -torch.inf)


def generate_answer(
    checkpoint: Path, messages: Sequence[Any], max_tokens: int, params: dict[str, Any], grammar: str = ""
) -> tuple[list[int], str]:
    """Ids and text of the answer to deterministic ``params``."""
    start = len(language.make_prompt(checkpoint, messages))
    processors: list[LogitsProcessor] = []
    if grammar:
        processors.append(_make_grammar(checkpoint, start, grammar))
    if "logit_bias" in params:
        processors.append(_Bias(params["logit_bias"]))
    processors += _make_repetition(params)
    processors.append(_Penalties(start, params))
    return language.generate_answer(checkpoint, messages, max_tokens, logits_processor=LogitsProcessorList(processors))


def _make_repetition(params: dict[str, Any]) -> list[LogitsProcessor]:
    from transformers import RepetitionPenaltyLogitsProcessor

    return [RepetitionPenaltyLogitsProcessor(params["repetition_penalty"])] if "repetition_penalty" in params else []


@functools.cache
def _make_grammar(checkpoint: Path, start: int, grammar: str) -> _Grammar:
    model, tokenizer = language._load_whole(checkpoint)
    return _Grammar(start, tokenizer, model.config.vocab_size, grammar)


def compute_logprobs(checkpoint: Path, messages: Sequence[Any], ids: Sequence[int]) -> torch.Tensor:
    """Natural logarithms of all probabilities before each of ``ids``, [n, V].

    They are computed in one pass.
    """
    model, _ = language._load_whole(checkpoint)
    prompt = language.make_prompt(checkpoint, messages)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)
