"""Seconds of stages by the sizes of requests, learned from finished requests. No I/O."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnibus.profile import QUANTITIES, CostLine
from omnibus_gateway.pricing.quantities import SIZES, WORK

#: Factor of earlier observations at each new one.
_DECAY = 0.98
#: Number of observations after which a fit is used.
MIN_OBSERVATIONS = 8
#: Weight of the assumption that a size costs nothing, relative to the weight of its observations.
_RIDGE = 1e-6
#: Seconds between two requests to learn from: more would cost a busy gateway time.
LEARN_PERIOD_SECONDS = 0.02
#: Weight of the newest value in means.
_NEWEST_WEIGHT = 0.1
COMPLETION, SPEECH = QUANTITIES.index("completion_tokens"), QUANTITIES.index("speech_seconds")


class StageKey(NamedTuple):
    """A component in an option of a model: batches, and so seconds, differ between options.

    ``modalities`` are those that it encodes: only these affect its time.
    """

    model: str
    option: str
    component: str
    modalities: tuple[str, ...] = ()

    @property
    def columns(self) -> list[int]:
        """Indices in ``SIZES`` of the sizes that its seconds depend on."""
        if not self.modalities:
            return list(range(len(SIZES)))
        return [*(QUANTITIES.index(f"{modality}_tokens") for modality in self.modalities), WORK]


class StageFit:
    """Linear least-squares fit of the seconds of one stage, over recent requests."""

    def __init__(self, columns: Sequence[int] = range(len(SIZES))) -> None:
        self._columns = columns  # indices in ``SIZES``
        size = len(columns) + 1
        self._squares = np.zeros((size, size))
        self._products = np.zeros(size)
        self.count = 0

    def observe_job(self, sizes: Sequence[float], seconds: float) -> None:
        """Add a request of ``sizes``, ordered as ``SIZES``, that took ``seconds``."""
        row = self._select_row(sizes)
        self._squares = self._squares * _DECAY + np.outer(row, row)
        self._products = self._products * _DECAY + row * seconds
        self.count += 1

    def predict_seconds(self, sizes: Sequence[float]) -> float:
        """Return the seconds of a request of these ``sizes``, at least 0."""
        scale = np.sqrt(np.diag(self._squares))
        scale[scale == 0.0] = 1.0  # sizes that were never observed
        matrix = self._squares / np.outer(scale, scale) + _RIDGE * np.eye(len(scale))
        coefficients = np.linalg.solve(matrix, self._products / scale) / scale
        return max(0.0, float(coefficients @ self._select_row(sizes)))

    def _select_row(self, sizes: Sequence[float]) -> NDArray[np.float64]:
        return np.array([1.0, *[sizes[column] for column in self._columns]])


class CostFits:
    """Fits of one gateway: seconds by stage, and lengths of answers by model and request type."""

    def __init__(self, period: float = LEARN_PERIOD_SECONDS) -> None:
        self._period = period
        self._next = 0.0
        self._stages: dict[StageKey, StageFit] = {}
        self._answers: dict[tuple[str, str], list[float]] = {}  # mean tokens, and seconds of speech per token

    def take_turn(self) -> bool:
        """Return whether it is time to learn from another request."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._period
        return True

    def observe_stage(self, key: StageKey, sizes: Sequence[float], seconds: float) -> None:
        """Add a stage's ``seconds`` for ``sizes``, ordered as ``SIZES``."""
        fit = self._stages.get(key)
        if fit is None:
            fit = self._stages[key] = StageFit(key.columns)
        fit.observe_job(sizes, seconds)

    def observe_answer(self, model: str, kind: str, quantities: Sequence[float]) -> None:
        """Add the length of an answer to the means."""
        tokens, speech_seconds = quantities[COMPLETION], quantities[SPEECH]
        if not tokens:
            return
        newest = [tokens, speech_seconds / tokens]
        before = self._answers.get((model, kind), newest)
        self._answers[model, kind] = [
            each + _NEWEST_WEIGHT * (new - each) for each, new in zip(before, newest, strict=True)
        ]

    def expected_answer(self, model: str, kind: str, limit: float, *, whole: bool) -> tuple[float, float]:
        """Return the expected tokens, up to ``limit``, and seconds of speech. A ``whole`` answer reaches the limit."""
        tokens, speech_ratio = self._answers.get((model, kind), (limit, 0.0))
        length = limit if whole else min(limit, tokens)
        return length, speech_ratio * length

    def predict_stage(
        self, key: StageKey, sizes: Sequence[float], lines: Mapping[str, CostLine]
    ) -> tuple[float, str] | None:
        """Return the seconds of a stage and their source.

        The source is ``measured``, or ``profile`` for those by the ``lines`` of the model's profile. None if there is
        neither.
        """
        fit = self._stages.get(key)
        if fit is not None and fit.count >= MIN_OBSERVATIONS:
            return fit.predict_seconds(sizes), "measured"
        line = lines.get(key.component)
        if line is not None:
            return line.seconds(dict(zip(QUANTITIES, sizes[:WORK], strict=True))), "profile"
        return (fit.predict_seconds(sizes), "measured") if fit is not None else None
