"""Measured costs of an engine's steps, and the prompt tokens to allow. No clock here.

vLLM computes prompts and decoding sequences in one pass, and reports no times before it serves. So every step is timed:
steps that only decode give cost(decode of n). The additional time of other steps is cost(prefill of m). Sizes without a
measurement are approached by doubling, so that no step is far from a known one.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

from omnibus.executor.step_budget import CostTable, StepCosts, StepGoals

#: Fewest prompt tokens in a step, even for tight goals, and those of the first step.
MIN_STEP_TOKENS, FIRST_STEP_TOKENS = 16, 64
#: Steps of similar size whose median counts: some are slow by chance, and the first ones compile.
_KEPT_STEPS = 9


class _MeasuredSizes:
    """The last steps, grouped by size between two powers of two."""

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
        """Seconds by size, from the measurements so far; None before the first step."""
        if self._table is None and self._steps:
            self._table = CostTable(_median_step(steps) for steps in self._steps.values())
        return self._table


class StepMeter:
    """Measured steps of one engine with ``goals`` and at most ``most`` tokens."""

    def __init__(self, goals: StepGoals, most: int) -> None:
        self._goals = goals
        self._most = most
        self._decodes = _MeasuredSizes()
        self._prompts = _MeasuredSizes()

    def add_step(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Record the seconds of a step of decoding sequences and prompt tokens."""
        if decoding and not prompt_tokens:
            self._decodes.add_step(decoding, seconds)
        elif prompt_tokens and (not decoding or self._decodes.table is not None):
            self._prompts.add_step(prompt_tokens, max(0.0, seconds - self._decode_seconds(decoding)))

    def token_limit(self, decoding: int) -> int:
        """Return the most prompt tokens of a step with ``decoding`` sequences."""
        seconds = StepCosts(self._goals, self._decodes.table).seconds_left(decoding)
        if seconds is None:
            return self._most
        cost_table = self._prompts.table
        if cost_table is None:
            return min(self._most, FIRST_STEP_TOKENS)
        trial_size = max(FIRST_STEP_TOKENS, 2 * self._prompts.largest)
        return min(self._most, max(MIN_STEP_TOKENS, cost_table.largest_size(seconds, trial_size)))

    def _decode_seconds(self, decoding: int) -> float:
        table = self._decodes.table
        return 0.0 if table is None else table.seconds(decoding)


def _median_step(steps: Iterable[tuple[int, float]]) -> tuple[int, float]:
    """Return the median size and the median seconds of ``steps``."""
    sizes, seconds = zip(*steps, strict=True)
    return round(median(sizes)), median(seconds)
