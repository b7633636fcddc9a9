"""Plans as text: the present plan, its state, and earlier plans.

Texts for planned models: the expected load and latency of each, and the deployments and links that they share.
"""

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from omnibus.cells import base_option, cell_shares, has_cells
from omnibus.cli.format.tables import field_lines, table_lines
from omnibus.cluster.monitor.plan_diff import path_shares
from omnibus.cluster.presence import ExecutorKind, replica_counts
from omnibus.plan import ModelPlan, Plan
from omnibus.store import PlanHistoryEntry, PlanProblem

#: Characters of a line, and the beginning of a line that continues another one.
_WIDTH_CHARS, _INDENT = 80, " " * 4
#: Notes of a model that are lists or tables of names.
_NOTES = {
    "unserved": "no executor runs",
    "estimated": "estimated, not measured",
    "no_load_measured": "no load was measured of",
    "left": "left out",
}


def planned_lines(plan_values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for ``explain["planned"]`` of a plan."""
    models = plan_values.get("models", {})
    for name, model in models.items():
        for line in _model_lines(name, model):
            yield from textwrap.wrap(
                line, _WIDTH_CHARS, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
            )
        yield ""
    yield from _option_lines(models)
    yield ""
    yield from _type_lines(models)
    for deployment in plan_values.get("deployments", ()):
        yield ""
        yield from _deployment_lines(deployment)
    if plan_values.get("links"):
        yield ""
        yield from _link_lines(plan_values["links"])
    yield from (f"warning: {each}" for each in plan_values.get("warnings", ()))


def _wrapped_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return table_lines(head, rows, _WIDTH_CHARS)


def _model_lines(name: str, model: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}: {model.get('reason', '')}"
    rate, capacity = _number_text(model.get("rate")), _number_text(model.get("capacity"))
    if _is_below_capacity(model):
        yield f"  {rate} req/s expected, {capacity} req/s can be served"
    else:
        yield f"  {capacity} req/s can be served; no lower load is known, so the figures below are for this rate"
    yield from _promise_lines(model.get("promise"))
    for option, correction in model.get("learned", {}).items():
        factor, jobs = _number_text(correction.get("factor")), correction.get("jobs")
        yield f"  {option} takes {factor} times as long as profiled, as {jobs} jobs took while it served"
    if model.get("goals"):
        yield f"  goals: {model['goals']}"
    if model.get("cells"):
        yield f"  cells: {', '.join(f'{count} of {size} GPUs' for size, count in model['cells'].items())}"
    for note, text in _NOTES.items():
        if model.get(note):
            yield f"  {text}: {_list_text(model[note])}"


def _is_below_capacity(model: Mapping[str, Any]) -> bool:
    """Return whether the plan expects a rate below the capacity, at which waits grow without end, or a measured one.

    Without a load, the figures of a plan are those at its capacity.
    """
    return bool(model.get("measured")) or model.get("rate", 0.0) < model.get("capacity", inf)


def _promise_lines(promise: Any) -> Iterator[str]:
    """Yield the capacities that the solver promised and the simulation served."""
    if not isinstance(promise, Mapping):
        return
    if promise.get("fault"):
        yield f"  not simulated: {promise['fault']}"
        return
    solver, simulation = _number_text(promise.get("solver")), _number_text(promise.get("simulated"))
    suffix = "" if promise.get("agrees") else ", which is the promise"
    rounds = f"{promise.get('rounds')} round{'s' if promise.get('rounds') != 1 else ''}"
    policy = f", as policy {promise['policy']} has it" if promise.get("policy") else ""
    yield f"  {solver} req/s by the solver, {simulation} req/s simulated{suffix} ({rounds}){policy}"
    if promise.get("goodput"):
        yield f"  {_number_text(promise['goodput'])} req/s of which 99 of 100 are within the goals, simulated"
    if promise.get("curve"):
        points = [f"{_share_text(each.get('load'))} {_number_text(each.get('goodput'))}" for each in promise["curve"]]
        yield f"  served in time by load: {', '.join(points)} req/s"


def _option_lines(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [
            f"{name}/{option}",
            str(use.get("replicas", "")),
            f"{use.get('gpus', '')} {use.get('gpu', '')}".strip(),
            _share_text(use.get("utilisation")) + ("" if _is_below_capacity(model) else " when full"),
            _seconds_text(use.get("wait")) if _is_below_capacity(model) else "",
            "more would serve more" if option in model.get("bottlenecks", ()) else "",
        ]
        for name, model in models.items()
        for option, use in model.get("options", {}).items()
    ]
    yield from _wrapped_lines(["OPTION", "REPLICAS", "GPUS", "BUSY", "WAIT", ""], rows)


def _type_lines(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [
            name,
            kind,
            _number_text(each.get("rate")),
            _seconds_text(each.get("alone")),
            _seconds_text(each.get("latency")) if _is_below_capacity(model) else "",
            _seconds_text(each.get("p99")) if _is_below_capacity(model) else "",
        ]
        for name, model in models.items()
        for kind, each in model.get("types", {}).items()
    ]
    yield from _wrapped_lines(["MODEL", "REQUEST TYPE", "REQ/S", "ALONE", "LATENCY", "P99"], rows)


def _deployment_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    gpus = [
        f"{kind} {each.get('used')}" + (f" of {each['of']}" if "of" in each else "")
        for kind, each in deployment.get("gpus", {}).items()
    ]
    facts = [f"GPUs: {', '.join(gpus)}", f"price {_number_text(deployment.get('price'))}"]
    if deployment.get("distance") is not None:
        facts.append(f"{_share_text(deployment['distance'])} from what fractions of replicas could do")
    if (gap := deployment.get("gap")) is not None:
        facts.append(f"at most {gap:.1%} from the best" if gap > 0 else "proven to be the best")
    yield "; ".join(facts)
    if deployment.get("nodes"):
        yield f"on nodes: {_list_text(deployment['nodes'])}"
    if deployment.get("alternatives"):
        yield from _wrapped_lines(
            ["WITHOUT", "SERVES", "GPUS", "PRICE"], [_alternative_row(each) for each in deployment["alternatives"]]
        )


def _link_lines(links: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of traffic between nodes. An undeclared link has no capacity."""
    rows = [
        [
            str(each.get("from", "")),
            str(each.get("to", "")),
            _number_text(each.get("gb_s")),
            _number_text(each.get("capacity")),
            _share_text(each.get("utilisation")),
        ]
        for each in links
    ]
    yield from _wrapped_lines(["FROM NODE", "TO NODE", "GB/S", "LINK GB/S", "BUSY"], rows)


def _alternative_row(each: Mapping[str, Any]) -> Sequence[str]:
    name = str(each.get("without", ""))
    if not each.get("possible"):
        return [name, "nothing", "", ""]
    rates = each.get("rates", {})
    serves = ", ".join(f"{model} {_number_text(rate)} req/s" for model, rate in rates.items())
    return [name, serves, str(each.get("gpus", "")), _number_text(each.get("price"))]


def _list_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} ({each})" for name, each in value.items())
    return ", ".join(map(str, value))


def _number_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "?"


def _share_text(value: Any) -> str:
    return f"{value:.0%}" if isinstance(value, int | float) else "?"


def _seconds_text(value: Any) -> str:
    """Return seconds as text. None means that the latency grows without limit."""
    return f"{value:.3g} s" if isinstance(value, int | float) else "grows"


#: Number of executors that are up of each kind; None if unknown.
Up = Mapping[ExecutorKind, int] | None
#: Characters of a value in ``explain`` that fit on a line.
_MAX_VALUE_CHARS = 100


def plan_lines(plan: Plan, up: Up) -> Iterator[str]:
    """Yield the lines of a plan's options and paths."""
    options = [_option_row(name, model, option, up) for name, model in plan.models.items() for option in model.options]
    paths = [
        [name, kind, path.name, f"{share:.1%}"]
        for name, model in plan.models.items()
        for kind, found in model.types.items()
        for path, share in path_shares(found)
    ]
    yield from _wrapped_lines(["OPTION", "RUNS", "SERVICE", "GPUS", "REPLICAS", "UP"], options)
    if paths:
        yield ""
        yield from _wrapped_lines(["MODEL", "REQUEST TYPE", "PATH", "SHARE"], paths)
    if plan.explain:
        yield ""
        yield from explain_lines(plan.explain)


def cell_shares_by_model(plan: Plan) -> dict[str, dict[str, float]]:
    """Return the planned share of each cell, for models that have cells."""
    return {name: cell_shares(model) for name, model in plan.models.items() if has_cells(model)}


def cell_lines(plan: Plan, shares: Mapping[str, Mapping[str, float]], parts: Mapping[str, float]) -> Iterator[str]:
    """Yield a table of cells: executors, planned ``shares``, and the ``parts`` of them that they get."""
    rows = [
        [name, cell, _cell_executors(plan.models[name], cell), f"{share:.1%}", f"{parts.get(f'{name}/{cell}', 1.0):g}"]
        for name, own in shares.items()
        for cell, share in own.items()
    ]
    yield from table_lines(["MODEL", "CELL", "EXECUTORS", "SHARE", "OF WHICH"], rows)


def _cell_executors(model: ModelPlan, cell: str) -> str:
    own = {name: option for name, option in model.options.items() if option.cell == cell}
    return " ".join(f"{option.replicas}x{base_option(model, name)}" for name, option in own.items())


def state_lines(
    plan: Plan, staged_plan: Plan | None, missing: str, pin: int, problems: Mapping[str, PlanProblem]
) -> Iterator[str]:
    """Yield lines on the state of plans. ``missing`` names the staged plan's executors that are not ready."""
    waits = f"epoch {staged_plan.epoch} ({staged_plan.reason or 'no reason given'})" if staged_plan is not None else ""
    fields = {
        "plan": f"epoch {plan.epoch}, made {age_text(plan.created)}",
        "reason": plan.reason,
        "staged": f"{waits}{f', waits for {missing}' if missing else ''}" if waits else "",
        "pinned": f"epoch {pin}, until `omnibus plan resume`" if pin else "",
        "problem": "\n".join(_problem_text(name, problem) for name, problem in problems.items()),
    }
    yield from field_lines(fields)


def explain_lines(explain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the planner's notes on its plan: tables of planned values, and a line for each other value."""
    planned_values = explain.get("planned")
    if isinstance(planned_values, Mapping):
        yield from planned_lines(planned_values)
    rest = {name: value for name, value in explain.items() if value is not planned_values}
    if rest:
        yield from ([""] if planned_values is not None else [])
        yield from _value_lines(rest)


def _value_lines(explain: Mapping[str, Any], indent: int = 0) -> Iterator[str]:
    for name, value in explain.items():
        label = f"{' ' * indent}{name.replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            yield f"{label}:"
            yield from _value_lines(value, indent + 2)
        elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value, 1):
                yield from _value_lines({f"{name} {number}": each}, indent)
        else:
            yield f"{label}: {_value_text(value)}"


def history_lines(history: Sequence[PlanHistoryEntry], current: int, pin: int) -> Iterator[str]:
    """Yield a table of the stored epochs, newest first."""
    rows = []
    for each in history:
        marks = [word for word, epoch in (("current", current), ("pinned", pin)) if epoch == each.epoch]
        if each.plan is None:
            rows.append([str(each.epoch), "-", "-", "-", ", ".join(marks), each.fault])
            continue
        executors = sum(replica_counts(each.plan.models).values())
        age, models = age_text(each.plan.created), ", ".join(each.plan.models) or "none"
        rows.append([str(each.epoch), age, str(executors), models, ", ".join(marks), each.plan.reason])
    yield from table_lines(["EPOCH", "MADE", "EXECUTORS", "MODELS", "", "REASON"], rows)


def age_text(moment: float) -> str:
    """Return roughly how long ago ``moment`` was, in words. ``moment`` is in Unix seconds."""
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def missing_executors(planned_counts: Mapping[ExecutorKind, int], there: Mapping[ExecutorKind, int]) -> str:
    """Return the executors of ``planned_counts`` that are not up, in words."""
    short = {kind: count for kind, count in planned_counts.items() if there.get(kind, 0) < count}
    return ", ".join(f"{count - there.get(kind, 0)} of {kind.model}/{kind.option}" for kind, count in short.items())


def _option_row(name: str, model: ModelPlan, option: str, up: Up) -> list[str]:
    deployment = model.options[option]
    if deployment.of:
        return [f"{name}/{option}", ", ".join(deployment.components), f"that of {deployment.of}", "", "", ""]
    there = "?" if up is None else str(up.get(ExecutorKind(name, option, model.option_origin(option)), 0))
    gpus, replicas = str(deployment.gpus or "-"), str(deployment.replicas)
    notes = {"spare": deployment.spare_count, "in flight": deployment.credits or 0}
    if any(notes.values()):
        replicas += f" ({', '.join(f'{count} {note}' for note, count in notes.items() if count)})"
    return [f"{name}/{option}", ", ".join(deployment.components), deployment.service, gpus, replicas, there]


def _problem_text(name: str, problem: PlanProblem) -> str:
    again = f"; again in {max(0.0, problem.again - time.time()):.0f} s" if problem.again else ""
    return f"{name}, {age_text(problem.at)}: {problem.message}{again}"


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(_value_text, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
