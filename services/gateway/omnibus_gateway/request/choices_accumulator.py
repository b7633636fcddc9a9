"""Accumulated parts of several answers to one request, and their recorded summary."""

from typing import Any

from omnibus_gateway.request.accumulator import AnswerAccumulator

#: Separates the answers in the recorded text.
SEPARATOR = "\n\n"


class ChoicesAccumulator(AnswerAccumulator):
    """The answers, ``choices``, and their summary: concatenated texts and summed tokens.

    They have one prompt, which counts once.
    """

    def __init__(self, model: str, created_at: float, count: int) -> None:
        super().__init__(model, created_at)
        self.choices = [AnswerAccumulator(model, created_at) for _ in range(count)]

    def add_text(self, place: int, data: dict[str, Any]) -> None:
        """Add a chunk of the text of answer number ``place``."""
        choice = self.choices[place]
        choice.add_item("text", data, None)
        self.first = self.first or choice.first
        if "usage" in data:
            self.finish = self.choices[0].finish
            self._add_usage(data["usage"])

    def _add_usage(self, counts: dict[str, int]) -> None:
        totals = self._usage or dict.fromkeys(_SUMMED, 0)
        sums = {name: totals.get(name, 0) + counts.get(name, 0) for name in _SUMMED}
        self._usage = {**counts, **sums}

    def record_latency(self) -> dict[str, float]:
        """Record all answers; returns the seconds of the slowest one by figure."""
        latencies: dict[str, float] = {}
        for choice in self.choices:
            for figure, seconds in choice.record_latency().items():
                latencies[figure] = max(seconds, latencies.get(figure, 0.0))
        return latencies

    @property
    def text(self) -> str:
        return SEPARATOR.join(choice.text for choice in self.choices)


#: Tokens that each answer has separately.
_SUMMED = ("completion_tokens", "reasoning_tokens")
