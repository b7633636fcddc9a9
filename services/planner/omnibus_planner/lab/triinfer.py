"""TriInfer's figures 5, 6, 9 and 10, and its table 3: LLaVA-1.5-7B captions images on eight GPUs."""

from collections.abc import Iterator, Mapping

from omnibus_planner.lab.experiment import Findings, PaperClaim, Plot, Table, Value, times
from omnibus_planner.lab.goodput import BY_STAGE, chosen_method, judge, planned, route, solver_of
from omnibus_planner.lab.staged_cluster import (
    ALL,
    GPUS,
    NAIVE,
    TABLE_5,
    TEXTCAPS,
    StagedCluster,
    StagedShape,
    StageGoals,
    goodput,
    monolith,
)
from omnibus_planner.solve.baselines import triinfer_methods, triinfer_shapes

#: Seconds of load, and precision of goodput in req/s per GPU.
_LASTS, _PRECISION = 12.0, 0.25
#: A third of the instances for each stage, as in the paper's ablation.
_THIRDS = {"E": 3, "P": 3, "D": 2}
_GRID_TTFT, _GRID_TBT = (0.5, 1.0, 2.0, 4.0), (0.04, 0.06, 0.08, 0.12)
_RATES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
_CONDITIONS = (
    "LLaVA-1.5-7B on 8 H20, TextCaps: images of 576 tokens, 40 of text, captions of 50 on average; seconds of stages "
    "from the paper's table 2 at 60 % of what an H20 computes and reads, because its figures have no numbers",
    f"Poisson arrivals for {_LASTS:g} s; goodput is the rate of which 90 % of the requests have their first token, and "
    f"90 % of their gaps, in time; to {_PRECISION:g} req/s per GPU",
)


def compare_ablation() -> Findings:
    """Reproduce figure 10."""
    thirds = judge(TEXTCAPS, _THIRDS, lasts=_LASTS, precision=_PRECISION)
    naive, staged = (goodput(monolith(name), TEXTCAPS, _LASTS, _PRECISION) for name in (NAIVE, ALL))
    name, replicas, chosen = chosen_method(TEXTCAPS, _LASTS, _PRECISION)
    shape, best = planned(TEXTCAPS, _LASTS, _PRECISION)
    rows: tuple[tuple[Value, ...], ...] = (
        ("first come, first served", f"{GPUS} EPD", naive),
        ("schedule of stages", f"{GPUS} EPD", staged),
        ("schedule, even thirds", _describe(_THIRDS), thirds),
        (f"schedule, Algorithm 2: {name}", _describe(replicas), chosen),
        ("schedule, planned", _describe(shape.replicas), best),
    )
    return Findings(
        (*_CONDITIONS, "First token in 4 s, tokens 80 ms apart"),
        (
            PaperClaim("hybrid disaggregation over even thirds", "1.5x (3.9 of 2.6)", times(best / thirds)),
            PaperClaim("schedule of stages over first come, first served", "1.18x (2.6 of 2.2)", times(staged / naive)),
            PaperClaim("planned over Algorithm 2", "-", times(best / chosen)),
        ),
        (Table("Goodput in req/s per GPU", ("", "shape", "goodput"), rows),),
        (
            Plot(
                "Goodput per GPU", "", "req/s",
                {"goodput": tuple((float(at), float(row[2])) for at, row in enumerate(rows))},
                "bars", ("FCFS", "stages", "thirds", "Algorithm 2", "planned"),
            ),
        ),
        (
            "The paper disables the schedule in even thirds, where each executor runs one stage and there is nothing "
            "to schedule in this simulation; here it is what mixes in a monolith.",
        ),
    )  # fmt: skip


def rank_heuristic() -> Findings:
    """Reproduce table 3."""
    rows: list[tuple[Value, ...]] = []
    ranks, worst = [], 1e9
    for setting in TABLE_5:
        name, replicas, chosen = chosen_method(setting, _LASTS, _PRECISION)
        # One look is enough for shapes that are not better than Algorithm 2's choice.
        others = [judge(setting, each, chosen, _LASTS, _PRECISION) for each in triinfer_shapes(GPUS)]
        shape, best = planned(setting, _LASTS, _PRECISION)
        ranks.append(1 + sum(each > chosen for each in others))
        worst = min(worst, best / max(others))
        listed, most = triinfer_shapes(GPUS)[others.index(max(others))], max(others)
        listed = listed if most > chosen else replicas
        rows.append((
            f"{setting.ttft:g} s, {1000 * setting.tbt:g} ms", f"{name}: {_describe(replicas)}", chosen, ranks[-1],
            _describe(listed), most, _describe(shape.replicas), best,
        ))  # fmt: skip
    columns = ("first token, tokens", "Algorithm 2", "req/s", "rank of 35", "best listed", "req/s", "planned", "req/s")
    return Findings(
        (*_CONDITIONS, "Goals of table 5; all 35 shapes of 8 instances that the paper's exhaustive search lists"),
        (
            PaperClaim("mean rank of Algorithm 2's choice", "1.31 to 1.98", f"{sum(ranks) / len(ranks):.2f}"),
            PaperClaim("planned over the best of the 35, at worst", "-", times(worst)),
        ),
        (Table("Goodput per GPU", columns, tuple(rows)),),
    )


def compare_ratios() -> Findings:
    """Reproduce figure 5."""
    series: dict[str, dict[str, list[tuple[float, float]]]] = {"first token": {}, "token": {}}
    rows: list[tuple[Value, ...]] = []
    for replicas in triinfer_shapes(GPUS):
        shape = route(TEXTCAPS, replicas)
        if shape is None:
            continue
        first, token = _mean_latencies(shape, 1.0)
        method = "+".join(replicas)
        rows.append((method, _describe(replicas), first, token))
        if len(replicas) == 2:
            at = float(next(iter(replicas.values())))
            series["first token"].setdefault(method, []).append((at, first))
            series["token"].setdefault(method, []).append((at, 1000 * token))
    most = [row for row in rows if row[0] == "EP+D"]
    lowest = min(most, key=lambda row: float(row[2]))
    return Findings(
        (*_CONDITIONS, "8 requests per second, as the figure"),
        (
            PaperClaim(
                "1EP+7D: first token over that of the best ratio", "high (no number)",
                times(_ratio(most, "1EP+7D", lowest, 2)),
            ),
            PaperClaim("7EP+1D: time between tokens over that of 1EP+7D", "high (no number)", times(
                _ratio(most, "7EP+1D", next(row for row in most if row[1] == "1EP+7D"), 3))),
        ),
        (Table("Mean seconds by shape", ("method", "shape", "first token", "between tokens"), tuple(rows)),),
        tuple(
            Plot(f"Mean {name} by instances of the first option", "EP or ED instances of 8",
                 "s" if name != "token" else "ms",
                 {method: tuple(points) for method, points in lines.items()})
            for name, lines in series.items()
        ),
    )  # fmt: skip


def compare_methods() -> Findings:
    """Reproduce figure 6."""
    rows: list[tuple[Value, ...]] = []
    best: dict[str, int] = {}
    for ttft in _GRID_TTFT:
        for tbt in _GRID_TBT:
            setting = StageGoals(ttft, tbt)
            methods = triinfer_methods(solver_of(setting).frame, BY_STAGE, GPUS)
            rates = {
                name: judge(setting, each, lasts=_LASTS / 2, precision=_PRECISION) for name, each in methods.items()
            }
            winner = max(rates, key=lambda name: rates[name])
            best[winner] = best.get(winner, 0) + 1
            rows.append(
                (f"{ttft:g} s", f"{1000 * tbt:g} ms", *(rates[name] for name in ("E+P+D", "EP+D", "ED+P")), winner)
            )
    counts = ", ".join(f"{name} {count}" for name, count in sorted(best.items()))
    return Findings(
        (*_CONDITIONS, "Each method with the instances that Algorithm 2 gives its stages; 10 s of load"),
        (
            PaperClaim(
                "which method is best",
                "E+P+D for strict first tokens, EP+D and ED+P elsewhere",
                f"{counts} of {len(rows)}",
            ),
        ),
        (Table("Goodput per GPU by goals", ("first token", "tokens", "E+P+D", "EP+D", "ED+P", "best"), tuple(rows)),),
        remarks=("The paper shows LLaVA-NeXT-7B, whose images have up to five times as many tokens, without numbers.",),
    )


def compare_attainment() -> Findings:
    """Reproduce figure 9."""
    systems = dict(_systems())
    lines = {
        name: tuple((rate, StagedCluster(shape, TEXTCAPS, GPUS * rate, _LASTS).attainment()) for rate in _RATES)
        for name, shape in systems.items()
    }
    rates = {name: goodput(shape, TEXTCAPS, _LASTS, _PRECISION) for name, shape in systems.items()}
    ours = rates["planned"]
    return Findings(
        (
            *_CONDITIONS,
            "First token in 4 s, tokens 80 ms apart. Monolith: first come, first served (vLLM, SGLang). EPDServe and "
            "DistServe in the proportions that the paper has of 32: 4E8P20D and 12EP20D",
        ),
        (
            PaperClaim("goodput over a monolith", "1.3x to 3.7x (vLLM)", times(ours / rates["monolith"])),
            PaperClaim("goodput over E+P+D (EPDServe)", "above 1", times(ours / rates["E+P+D"])),
            PaperClaim("goodput over EP+D (DistServe)", "above 1", times(ours / rates["EP+D"])),
        ),
        (Table("Goodput per GPU", ("system", "shape", "req/s"), tuple(
            (name, _describe(shape.replicas), rates[name]) for name, shape in systems.items())),),
        (Plot("Requests in time by load", "req/s per GPU", "part in time", lines),),
    )  # fmt: skip


def _systems() -> Iterator[tuple[str, StagedShape]]:
    yield "monolith", monolith(NAIVE)
    for name, replicas in (("E+P+D", {"E": 1, "P": 2, "D": 5}), ("EP+D", {"EP": 3, "D": 5})):
        shape = route(TEXTCAPS, replicas)
        if shape is not None:
            yield name, shape
    yield "planned", planned(TEXTCAPS, _LASTS, _PRECISION)[0]


def _mean_latencies(shape: StagedShape, rate: float) -> tuple[float, float]:
    """Return mean seconds to the first token, and between two."""
    cluster = StagedCluster(shape, TEXTCAPS, GPUS * rate, _LASTS)
    cluster.attainment()
    return cluster.mean_latencies()


def _ratio(rows: list[tuple[Value, ...]], shape: str, other: tuple[Value, ...], column: int) -> float:
    return float(next(row[column] for row in rows if row[1] == shape)) / float(other[column])


def _describe(replicas: Mapping[str, int]) -> str:
    return "+".join(f"{count}{name}" for name, count in replicas.items() if count)
