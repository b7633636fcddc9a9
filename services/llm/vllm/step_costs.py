"""Costs of an engine's steps, measured while it serves, and how many prompt tokens goals leave room for. No clock here.

vLLM computes prompts and decoding sequences in one pass, and says nothing of its time before it serves. So every step
is timed: those that only decode give cost(decode of n), and what others take beyond that is cost(prefill of m). What
was not measured yet is tried in doubles, so that no step is far from one that is known.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

from omnibus.executor.step_budget import CostTable, StepCosts, StepGoals

#: Prompt tokens in a step, at least, however tight the goals; and in the first one.
MIN_STEP_TOKENS, FIRST_STEP_TOKENS = 16, 64
#: Steps of about the same size of which the median counts: some are slow by chance, and the first ones compile.
_KEPT_STEPS = 9


class _MeasuredSizes:
    """The last steps by size, those together that lie between two powers of two."""

    def __init__(self) -> None:
        self._steps: dict[int, deque[tuple[int, float]]] = {}
        self._table: CostTable | None = None
        self.largest = 0

    def add_step(self, size: int, seconds: float) -> None:
        self._steps.setdefault(size.bit_length(), deque(maxlen=_KEPT_STEPS)).append((size, seconds))
        self.largest = max(self.largest, size)
        self._table = None

    @property
    def table(self) -> CostTable | None:
        """Seconds by size as far as they are known; None before the first step."""
        if self._table is None and self._steps:
            self._table = CostTable(_median_step(steps) for steps in self._steps.values())
        return self._table


class StepMeter:
    """Measured steps of one engine that may have ``most`` tokens in a step, and ``goals``."""

    def __init__(self, goals: StepGoals, most: int) -> None:
        self._goals = goals
        self._most = most
        self._decodes = _MeasuredSizes()
        self._prompts = _MeasuredSizes()

    def add_step(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Take the time of a step of so many decoding sequences and tokens of prompts."""
        if decoding and not prompt_tokens:
            self._decodes.add_step(decoding, seconds)
        elif prompt_tokens and (not decoding or self._decodes.table is not None):
            self._prompts.add_step(prompt_tokens, max(0.0, seconds - self._decode_seconds(decoding)))

    def token_limit(self, decoding: int) -> int:
        """Most prompt tokens of the next step, beside so many sequences that decode."""
        seconds = StepCosts(self._goals, self._decodes.table).seconds_left(decoding)
        if seconds is None:
            return self._most
        known = self._prompts.table
        if known is None:
            return min(self._most, FIRST_STEP_TOKENS)
        tried = max(FIRST_STEP_TOKENS, 2 * self._prompts.largest)
        return min(self._most, max(MIN_STEP_TOKENS, known.largest_size(seconds, tried)))

    def _decode_seconds(self, decoding: int) -> float:
        table = self._decodes.table
        return 0.0 if table is None else table.seconds(decoding)


def _median_step(steps: Iterable[tuple[int, float]]) -> tuple[int, float]:
    """The median size and the median seconds of ``steps``."""
    sizes, seconds = zip(*steps, strict=True)
    return round(median(sizes)), median(seconds)
