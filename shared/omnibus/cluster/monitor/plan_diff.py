"""Differences between two plans."""

from collections.abc import Iterator, Mapping, Sequence

from omnibus.cluster.desired import counts
from omnibus.plan import ModelPlan, Path, Plan

#: Characters of a checkpoint's name.
_LONG = 100


def differences(before: Plan, after: Plan) -> Iterator[list[str]]:
    """Rows of what changes: what, before, after."""
    names = dict.fromkeys([*before.models, *after.models])
    for name in names:
        old, new = before.models.get(name), after.models.get(name)
        if old is None or new is None:
            yield [f"model {name}", "-" if old is None else "served", "-" if new is None else "served"]
        yield from _changed(name, "executors of {}", _replicas(name, old), _replicas(name, new))
        yield from _changed(name, "{}", _shares(old), _shares(new))
        yield from _changed(name, "{}", _facts(old), _facts(new)) if old is not None and new is not None else ()


def shares(paths: Sequence[Path]) -> Iterator[tuple[Path, float]]:
    """Each path and its part of the requests of its type."""
    total = sum(path.rate for path in paths)
    for path in paths:
        yield path, path.rate / total if total else 0.0


def _changed(name: str, label: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[list[str]]:
    for key in dict.fromkeys([*old, *new]):
        was, now = old.get(key, "-"), new.get(key, "-")
        if was != now:
            yield [label.format(f"{name}{key}"), was, now]


def _replicas(name: str, model: ModelPlan | None) -> dict[str, str]:
    found = counts({name: model}) if model is not None else {}
    return {f"/{kind.option}": str(count) for kind, count in found.items()}


def _shares(model: ModelPlan | None) -> dict[str, str]:
    types = model.types if model is not None else {}
    return {f": {kind}, {path.name}": f"{share:.1%}" for kind, found in types.items() for path, share in shares(found)}


def _facts(model: ModelPlan | None) -> dict[str, str]:
    """All else that executors go by."""
    if model is None:
        return {}
    makes = {f"/{option}: what it does": model.origin(option)[:4] for option in model.options}
    return {" checkpoint": model.checkpoint[:_LONG], " family": model.family, **makes}
