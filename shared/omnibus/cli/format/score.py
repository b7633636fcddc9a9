"""Text of a plan's score: promised values for the actual requests, next to the measured ones."""

import time
from collections.abc import Iterator

from omnibus.cli.format.tables import table_lines
from omnibus.plan_score import PlanScore, ScoredValue, TypeScore

_FIGURES = {
    "first_token": "first token",
    "token": "token",
    "first_audio": "first audio",
    "real_time": "real time",
    "done": "done",
}


def score_lines(score: PlanScore | None) -> Iterator[str]:
    """Yield the lines of a score, none if ``score`` is None."""
    if score is None:
        return
    request_count = sum(each.requests for each in score.types)
    ago = max(0.0, time.time() - score.at)
    yield f"promised and measured over {score.seconds:.0f} s until {ago:.0f} s ago, {request_count} requests:"
    rows = [row for each in score.types for row in _type_rows(each)]
    yield from table_lines(["MODEL", "REQUEST TYPE", "", "PROMISED", "MEASURED", "ERROR"], rows)
    if not any(each.p50 or each.p99 for each in score.types) and score.types:
        yield (
            f"latencies are not compared: the load was {score.load:.0%} of the capacity, too few requests ended, "
            "or the profile lacks latencies"
        )
    if score.options:
        busy = [
            [f"{each.model}/{each.option}", f"{each.busy.promised:.0%}", f"{each.busy.measured:.0%}", str(each.jobs)]
            for each in score.options
        ]
        yield from table_lines(["OPTION", "BUSY, PROMISED", "MEASURED", "JOBS"], busy)


def _type_rows(each: TypeScore) -> Iterator[list[str]]:
    yield [each.model, each.kind, "req/s", *_cells(each.rate, "{:.4g}")]
    for figure, label in _FIGURES.items():
        for name, quantiles in (("P50", each.p50), ("P99", each.p99)):
            if figure in quantiles:
                yield ["", "", f"{label} {name}", *_cells(quantiles[figure], "{:.3g} s")]
    for goal, value in each.attained.items():
        yield ["", "", f"within the goal of {_FIGURES.get(goal, goal)}", *_cells(value, "{:.1%}")]


def _cells(value: ScoredValue, form: str) -> list[str]:
    return [form.format(value.promised), form.format(value.measured), f"{value.error:+.0%}"]
