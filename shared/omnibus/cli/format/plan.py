"""Plans as text: the present plan, its state, and earlier plans."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omnibus.cells import base_option, cell_shares, has_cells
from omnibus.cli.format.planned import planned_lines
from omnibus.cli.format.tables import field_lines, table_lines, wrapped_lines
from omnibus.cluster.desired import ExecutorKind, replica_counts
from omnibus.cluster.monitor.plan_diff import path_shares
from omnibus.plan import ModelPlan, Plan
from omnibus.store import PlanHistoryEntry, PlanProblem

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
    yield from wrapped_lines(["OPTION", "RUNS", "SERVICE", "GPUS", "REPLICAS", "UP"], options)
    if paths:
        yield ""
        yield from wrapped_lines(["MODEL", "REQUEST TYPE", "PATH", "SHARE"], paths)
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
