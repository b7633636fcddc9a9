"""Texts for planned models: the expected load and latency of each, and the deployments and links that they share."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omnibus.cli.format.tables import wrapped_lines

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


def _model_lines(name: str, model: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}: {model.get('reason', '')}"
    rate, capacity = _number_text(model.get("rate")), _number_text(model.get("capacity"))
    yield f"  {rate} req/s expected, {capacity} req/s can be served"
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
            _share_text(use.get("utilisation")),
            _seconds_text(use.get("wait")),
            "more would serve more" if option in model.get("bottlenecks", ()) else "",
        ]
        for name, model in models.items()
        for option, use in model.get("options", {}).items()
    ]
    yield from wrapped_lines(["OPTION", "REPLICAS", "GPUS", "BUSY", "WAIT", ""], rows)


def _type_lines(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [
            name,
            kind,
            _number_text(each.get("rate")),
            _seconds_text(each.get("alone")),
            _seconds_text(each.get("latency")),
            _seconds_text(each.get("p99")),
        ]
        for name, model in models.items()
        for kind, each in model.get("types", {}).items()
    ]
    yield from wrapped_lines(["MODEL", "REQUEST TYPE", "REQ/S", "ALONE", "LATENCY", "P99"], rows)


def _deployment_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    gpus = [
        f"{kind} {each.get('used')}" + (f" of {each['of']}" if "of" in each else "")
        for kind, each in deployment.get("gpus", {}).items()
    ]
    facts = [f"GPUs: {', '.join(gpus)}", f"price {_number_text(deployment.get('price'))}"]
    if deployment.get("distance") is not None:
        facts.append(f"{_share_text(deployment['distance'])} from what fractions of replicas could do")
    if deployment.get("gap"):
        facts.append(f"not proven to be the best by {_share_text(deployment['gap'])}")
    yield "; ".join(facts)
    if deployment.get("nodes"):
        yield f"on nodes: {_list_text(deployment['nodes'])}"
    if deployment.get("alternatives"):
        yield from wrapped_lines(
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
    yield from wrapped_lines(["FROM NODE", "TO NODE", "GB/S", "LINK GB/S", "BUSY"], rows)


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
