"""Conversion of an engine's tokens to the steps of an answer."""

from collections.abc import Sequence

import numpy as np

from omnibus_llm.engine.sequence import TokenStep
from omnibus_llm.vllm.protocol import Tokens


class AnswerTokens:
    """The ids of an answer: those of its engine, after the ``known_ids`` ones.

    ``counts``: see ``VllmCore.token_reader``.
    """

    def __init__(self, known_ids: Sequence[int], counts: dict[str, int] | None) -> None:
        self._known = known_ids
        self._counts = counts

    def next_ids(self, tokens: Tokens) -> Sequence[int]:
        if tokens.cached and self._counts is not None:  # resumed tokens are cached as well
            self._counts["cached_tokens"] = min(tokens.cached, self._counts["prompt_tokens"])
        known_ids, self._known = self._known, ()
        return [*known_ids, *tokens.ids] if known_ids else tokens.ids


def build_steps(tokens: Tokens, ids: Sequence[int], sides: Sequence[np.ndarray] | None) -> list[TokenStep]:
    """Return the steps of ``ids``, which end with ``tokens``.

    ``sides`` are the data of each for a talker.
    """
    steps = [TokenStep(id, None) for id in ids]
    if sides is not None:
        steps = [step._replace(side=side) for step, side in zip(steps, sides, strict=True)]
    if tokens.logprobs:
        steps = [step._replace(logprobs=each) for step, each in zip(steps, tokens.logprobs, strict=True)]
    if tokens.finish is not None:
        steps[-1] = steps[-1]._replace(finish=tokens.finish)
    return steps
