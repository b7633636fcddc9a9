"""Seconds of stages by the sizes of requests, learned from those that have ended. No I/O."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from omnibus.profile import QUANTITIES, CostLine

#: Part of what was learned that each new observation leaves.
_DECAY = 0.98
#: Observations before what was learned is believed.
MIN_OBSERVATIONS = 8
#: Units of a quantity that count as 1, so that all are of one size.
_SCALE = np.array([1.0, *([1000.0] * (len(QUANTITIES) - 1)), 10.0])
#: Weight of the assumption that a quantity costs nothing, beside each observation.
_RIDGE = 1e-7
#: Seconds between two requests that are learned from: more would cost a busy gateway time.
LEARN_PERIOD_SECONDS = 0.02
#: Part of the newest in means.
_NEWEST_WEIGHT = 0.1
COMPLETION, SPEECH = QUANTITIES.index("completion_tokens"), QUANTITIES.index("speech_seconds")


class StageKey(NamedTuple):
    """A component as an option of a model runs it: batches, and so seconds, differ between options."""

    model: str
    option: str
    component: str


class StageFit:
    """Seconds of one stage, as ``base`` and so much per unit of each quantity: least squares over what came lately."""

    def __init__(self) -> None:
        size = len(QUANTITIES) + 1
        self._squares = np.zeros((size, size))
        self._products = np.zeros(size)
        self.count = 0

    def observe_job(self, quantities: Sequence[float], seconds: float) -> None:
        """Learn that a request of these ``quantities`` took ``seconds``."""
        row = np.array([1.0, *quantities]) / _SCALE
        self._squares = self._squares * _DECAY + np.outer(row, row)
        self._products = self._products * _DECAY + row * seconds
        self.count += 1

    def predict_seconds(self, quantities: Sequence[float]) -> float:
        """Return the seconds of a request of these ``quantities``; never less than 0."""
        row = np.array([1.0, *quantities]) / _SCALE
        weight = _RIDGE * max(1.0, float(np.trace(self._squares)))
        found = np.linalg.solve(self._squares + weight * np.eye(len(row)), self._products)
        return max(0.0, float(found @ row))


class CostFits:
    """Everything that one gateway has learned: seconds by stage, and lengths of answers by model and request type."""

    def __init__(self, period: float = LEARN_PERIOD_SECONDS) -> None:
        self._period = period
        self._next = 0.0
        self._stages: dict[StageKey, StageFit] = {}
        self._answers: dict[tuple[str, str], list[float]] = {}  # mean tokens, and seconds of speech per token

    def take_turn(self) -> bool:
        """Return whether it is time to learn from a request again."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._period
        return True

    def observe_stage(self, key: StageKey, quantities: Sequence[float], seconds: float) -> None:
        """Learn what a stage took for a request of ``quantities``, in the order of ``QUANTITIES``."""
        fit = self._stages.get(key)
        if fit is None:
            fit = self._stages[key] = StageFit()
        fit.observe_job(quantities, seconds)

    def observe_answer(self, model: str, kind: str, quantities: Sequence[float]) -> None:
        """Learn how long answers are."""
        tokens, spoken = quantities[COMPLETION], quantities[SPEECH]
        if not tokens:
            return
        newest = [tokens, spoken / tokens]
        before = self._answers.get((model, kind), newest)
        self._answers[model, kind] = [
            each + _NEWEST_WEIGHT * (new - each) for each, new in zip(before, newest, strict=True)
        ]

    def expected_answer(self, model: str, kind: str, limit: float, *, whole: bool) -> tuple[float, float]:
        """Return the tokens of an answer of at most ``limit``, and its seconds of speech. A ``whole`` one has all."""
        tokens, spoken = self._answers.get((model, kind), (limit, 0.0))
        length = limit if whole else min(limit, tokens)
        return length, spoken * length

    def predict_stage(
        self, key: StageKey, quantities: Sequence[float], lines: Mapping[str, CostLine]
    ) -> tuple[float, str] | None:
        """Seconds of a stage and how they are known: ``measured``, or by the ``lines`` of the model's ``profile``."""
        fit = self._stages.get(key)
        if fit is not None and fit.count >= MIN_OBSERVATIONS:
            return fit.predict_seconds(quantities), "measured"
        line = lines.get(key.component)
        if line is not None:
            return line.seconds(dict(zip(QUANTITIES, quantities, strict=True))), "profile"
        return (fit.predict_seconds(quantities), "measured") if fit is not None else None
