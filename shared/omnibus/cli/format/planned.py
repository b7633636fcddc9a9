"""Texts on planned models, as a planner describes them: what is expected of each, and what they have in common."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omnibus.cli.format.tables import table

#: Notes of a model that are lists or tables of names.
_NOTES = {
    "unserved": "no executor runs",
    "estimated": "estimated, not measured",
    "no_load_measured": "no load was measured of",
    "left": "left out",
}


def planned(told: Mapping[str, Any]) -> Iterator[str]:
    """``explain["planned"]`` of a plan."""
    models = told.get("models", {})
    for name, model in models.items():
        yield from _model(name, model)
        yield ""
    yield from _options(models)
    yield ""
    yield from _types(models)
    for deployment in told.get("deployments", ()):
        yield ""
        yield from _deployment(deployment)


def _model(name: str, model: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}: {model.get('reason', '')}"
    yield f"  {_number(model.get('rate'))} req/s expected, {_number(model.get('capacity'))} req/s can be served"
    if model.get("goals"):
        yield f"  goals: {model['goals']}"
    if model.get("cells"):
        yield f"  cells: {', '.join(f'{count} of {size} GPUs' for size, count in model['cells'].items())}"
    for note, said in _NOTES.items():
        if model.get(note):
            yield f"  {said}: {_listed(model[note])}"


def _options(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [
            f"{name}/{option}",
            str(use.get("replicas", "")),
            f"{use.get('gpus', '')} {use.get('gpu', '')}".strip(),
            _part(use.get("utilisation")),
            _seconds(use.get("wait")),
            "more would serve more" if option in model.get("bottlenecks", ()) else "",
        ]
        for name, model in models.items()
        for option, use in model.get("options", {}).items()
    ]
    yield from table(["OPTION", "REPLICAS", "GPUS", "BUSY", "WAIT", ""], rows)


def _types(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [name, kind, _number(each.get("rate")), _seconds(each.get("alone")), _seconds(each.get("latency"))]
        for name, model in models.items()
        for kind, each in model.get("types", {}).items()
    ]
    yield from table(["MODEL", "REQUEST TYPE", "REQ/S", "ALONE", "LATENCY"], rows)


def _deployment(told: Mapping[str, Any]) -> Iterator[str]:
    gpus = [
        f"{kind} {each.get('used')}" + (f" of {each['of']}" if "of" in each else "")
        for kind, each in told.get("gpus", {}).items()
    ]
    facts = [f"GPUs: {', '.join(gpus)}", f"price {_number(told.get('price'))}"]
    if told.get("distance") is not None:
        facts.append(f"{_part(told['distance'])} from what fractions of replicas could do")
    if told.get("gap"):
        facts.append(f"not proven to be the best by {_part(told['gap'])}")
    yield "; ".join(facts)
    if told.get("nodes"):
        yield f"on nodes: {_listed(told['nodes'])}"
    if told.get("alternatives"):
        yield from table(["WITHOUT", "SERVES", "GPUS", "PRICE"], [_other(each) for each in told["alternatives"]])


def _other(each: Mapping[str, Any]) -> Sequence[str]:
    name = str(each.get("without", ""))
    if not each.get("possible"):
        return [name, "nothing", "", ""]
    rates = each.get("rates", {})
    serves = ", ".join(f"{model} {_number(rate)} req/s" for model, rate in rates.items())
    return [name, serves, str(each.get("gpus", "")), _number(each.get("price"))]


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} ({each})" for name, each in value.items())
    return ", ".join(map(str, value))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "?"


def _part(value: Any) -> str:
    return f"{value:.0%}" if isinstance(value, int | float) else "?"


def _seconds(value: Any) -> str:
    """None is what grows without end."""
    return f"{value:.3g} s" if isinstance(value, int | float) else "grows"
