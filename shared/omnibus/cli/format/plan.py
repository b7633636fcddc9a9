"""Plans as text: what a plan is, and what the past was."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omnibus.cli.format.planned import planned
from omnibus.cli.format.tables import fields, table
from omnibus.cluster.desired import Kind, counts
from omnibus.cluster.monitor.plan_diff import shares
from omnibus.plan import ModelPlan, Plan
from omnibus.store import Past, PlanProblem

#: Who is up of each kind; None when nobody was asked.
Up = Mapping[Kind, int] | None
#: Characters of a value in ``explain`` that fit on a line.
_LONG = 100


def shown(plan: Plan, up: Up) -> Iterator[str]:
    """A plan's options and paths."""
    options = [_option(name, model, option, up) for name, model in plan.models.items() for option in model.options]
    paths = [
        [name, kind, path.name, f"{share:.1%}"]
        for name, model in plan.models.items()
        for kind, found in model.types.items()
        for path, share in shares(found)
    ]
    yield from table(["OPTION", "RUNS", "SERVICE", "GPUS", "REPLICAS", "UP"], options)
    if paths:
        yield ""
        yield from table(["MODEL", "REQUEST TYPE", "PATH", "SHARE"], paths)
    if plan.explain:
        yield ""
        yield from explained(plan.explain)


def head(plan: Plan, staged: Plan | None, missing: str, pin: int, problems: Mapping[str, PlanProblem]) -> Iterator[str]:
    """Yield lines on the state of plans. ``missing`` names the staged plan's executors that are not ready."""
    waits = f"epoch {staged.epoch} ({staged.reason or 'no reason told'})" if staged is not None else ""
    named = {
        "plan": f"epoch {plan.epoch}, made {ago(plan.created)}",
        "reason": plan.reason,
        "staged": f"{waits}{f', waits for {missing}' if missing else ''}" if waits else "",
        "pinned": f"epoch {pin}, until `omnibus plan resume`" if pin else "",
        "problem": "\n".join(_problem(who, problem) for who, problem in problems.items()),
    }
    yield from fields(named)


def explained(explain: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the plan's maker knows of it: tables of what was planned, and a line for each other value."""
    told = explain.get("planned")
    if isinstance(told, Mapping):
        yield from planned(told)
    rest = {name: value for name, value in explain.items() if value is not told}
    if rest:
        yield from ([""] if told is not None else [])
        yield from _lines(rest)


def _lines(explain: Mapping[str, Any], indent: int = 0) -> Iterator[str]:
    for name, value in explain.items():
        label = f"{' ' * indent}{name.replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            yield f"{label}:"
            yield from _lines(value, indent + 2)
        elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value, 1):
                yield from _lines({f"{name} {number}": each}, indent)
        else:
            yield f"{label}: {_value(value)}"


def past(history: Sequence[Past], current: int, pin: int) -> Iterator[str]:
    """The epochs that are kept, the newest first."""
    rows = []
    for each in history:
        marks = [word for word, epoch in (("current", current), ("pinned", pin)) if epoch == each.epoch]
        if each.plan is None:
            rows.append([str(each.epoch), "-", "-", "-", ", ".join(marks), each.fault])
            continue
        executors = sum(counts(each.plan.models).values())
        made, models = ago(each.plan.created), ", ".join(each.plan.models) or "none"
        rows.append([str(each.epoch), made, str(executors), models, ", ".join(marks), each.plan.reason])
    yield from table(["EPOCH", "MADE", "EXECUTORS", "MODELS", "", "REASON"], rows)


def ago(moment: float) -> str:
    """Return how long ago ``moment`` was, in words and roughly; it is in Unix seconds."""
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def lacking(wanted: Mapping[Kind, int], there: Mapping[Kind, int]) -> str:
    """The executors of ``wanted`` that are not up, in words."""
    short = {kind: count for kind, count in wanted.items() if there.get(kind, 0) < count}
    return ", ".join(f"{count - there.get(kind, 0)} of {kind.model}/{kind.option}" for kind, count in short.items())


def _option(name: str, model: ModelPlan, option: str, up: Up) -> list[str]:
    deployed = model.options[option]
    if deployed.of:
        return [f"{name}/{option}", ", ".join(deployed.components), f"that of {deployed.of}", "", "", ""]
    there = "?" if up is None else str(up.get(Kind(name, option, model.origin(option)), 0))
    gpus, replicas = str(deployed.gpus or "-"), str(deployed.replicas)
    return [f"{name}/{option}", ", ".join(deployed.components), deployed.service, gpus, replicas, there]


def _problem(who: str, problem: PlanProblem) -> str:
    again = f"; again in {max(0.0, problem.again - time.time()):.0f} s" if problem.again else ""
    return f"{who}, {ago(problem.at)}: {problem.message}{again}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(_value, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
