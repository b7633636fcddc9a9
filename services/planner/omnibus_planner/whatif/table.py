"""The answer to a question as text."""

from collections.abc import Iterator, Mapping, Sequence

from omnibus.cli.format.tables import table_lines
from omnibus.plan_goals import ModelGoals
from omnibus_planner.simulate.outcome import SimulationOutcome, TypeOutcome

_FIGURES = {"first_token": "FIRST TOKEN", "token": "TOKEN", "first_audio": "FIRST AUDIO", "done": "DONE"}


def answer_lines(
    label: str,
    traffic: str,
    outcome: SimulationOutcome,
    goals: Mapping[str, ModelGoals],
    cost: Mapping[str, float],
) -> Iterator[str]:
    """Yield the lines of the answer: offered and served rates, by type and by option, and the bottleneck."""
    yield f"{label}; {traffic}"
    lost_count = sum(each.refused + each.late for each in outcome.types)
    yield (
        f"{outcome.rate:.4g} req/s came for {outcome.seconds:.0f} s, {outcome.throughput:.4g} req/s were served"
        f"{f', {lost_count} requests were refused or late' if lost_count else ''}"
    )
    yield ""
    yield from _type_lines(outcome.types, goals)
    yield ""
    yield from _option_lines(outcome)
    if outcome.breaks is not None:
        first = outcome.breaks
        yield (
            f"first to break: {first.model}/{first.option} ({first.component}) at {first.rate:.4g} req/s, "
            f"{first.rate / outcome.rate:.2f} times what came"
        )
    gpus = ", ".join(f"{count:g} {kind or 'of any type'}" for kind, count in _gpu_counts(outcome).items())
    yield f"GPUs: {gpus or 'none'}; price {sum(cost.values()):g}"


def _type_lines(types: Sequence[TypeOutcome], goals: Mapping[str, ModelGoals]) -> Iterator[str]:
    figure_names = [name for name in _FIGURES if any(name in each.p99 for each in types)]
    head = [
        "MODEL",
        "REQUEST TYPE",
        "REQUESTS",
        "LOST",
        *[f"{_FIGURES[name]} P50 P99" for name in figure_names],
        "GOALS MET",
    ]
    rows = []
    for each in types:
        own = goals.get(each.model, ModelGoals()).of_type(each.kind)
        rows.append(
            [
                each.model,
                each.kind,
                str(each.came),
                str(each.refused + each.late),
                *[_figure_text(each, name, own.get(name)) for name in figure_names],
                f"{each.met:.1%}" if own else "-",
            ]
        )
    yield from table_lines(head, rows)


def _figure_text(each: TypeOutcome, name: str, goal: float | None) -> str:
    if name not in each.p99:
        return "-"
    mark = f" of {goal:g}" if goal else ""
    return f"{each.median[name]:.3g} {each.p99[name]:.3g}{mark} s"


def _option_lines(outcome: SimulationOutcome) -> Iterator[str]:
    rows = [
        [
            f"{each.model}/{each.option}",
            str(each.replicas),
            f"{each.gpus} {each.gpu}".strip(),
            f"{each.load:.0%}",
            f"{each.busy:.0%}",
            f"{each.waiting:.1f}",
        ]
        for each in outcome.options
    ]
    yield from table_lines(["OPTION", "REPLICAS", "GPUS", "LOAD", "BUSY", "IN FLIGHT"], rows)


def _gpu_counts(outcome: SimulationOutcome) -> dict[str, float]:
    counts: dict[str, float] = {}
    for each in outcome.options:
        if each.gpus:
            counts[each.gpu] = counts.get(each.gpu, 0) + each.gpus
    return counts


def deployment_cost(outcome: SimulationOutcome, prices: Mapping[str, float]) -> dict[str, float]:
    """Return the price of the GPUs by type; a type without a price costs 1."""
    return {kind: count * prices.get(kind, 1.0) for kind, count in _gpu_counts(outcome).items()}
