"""Differences between two plans."""

from collections.abc import Iterator, Mapping, Sequence

from omnibus.cluster.presence import replica_counts
from omnibus.plan import ModelPlan, Path, Plan

#: Characters of a checkpoint's name.
_MAX_CHECKPOINT_CHARS = 100


def plan_differences(before: Plan, after: Plan) -> Iterator[list[str]]:
    """Yield the rows of changes: name, before, after."""
    names = dict.fromkeys([*before.models, *after.models])
    for name in names:
        old, new = before.models.get(name), after.models.get(name)
        if old is None or new is None:
            yield [f"model {name}", "-" if old is None else "served", "-" if new is None else "served"]
        yield from _changed_rows(name, "executors of {}", _replica_texts(name, old), _replica_texts(name, new))
        yield from _changed_rows(name, "{}", _share_texts(old), _share_texts(new))
        yield from (
            _changed_rows(name, "{}", _fact_texts(old), _fact_texts(new)) if old is not None and new is not None else ()
        )


def path_shares(paths: Sequence[Path]) -> Iterator[tuple[Path, float]]:
    """Yield each path with its share of the requests of its type."""
    total = sum(path.rate for path in paths)
    for path in paths:
        yield path, path.rate / total if total else 0.0


def _changed_rows(name: str, label: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[list[str]]:
    for key in dict.fromkeys([*old, *new]):
        was, now = old.get(key, "-"), new.get(key, "-")
        if was != now:
            yield [label.format(f"{name}{key}"), was, now]


def _replica_texts(name: str, model: ModelPlan | None) -> dict[str, str]:
    counts = replica_counts({name: model}) if model is not None else {}
    return {f"/{kind.option}": str(count) for kind, count in counts.items()}


def _share_texts(model: ModelPlan | None) -> dict[str, str]:
    types = model.types if model is not None else {}
    return {
        f": {kind}, {path.name}": f"{share:.1%}" for kind, found in types.items() for path, share in path_shares(found)
    }


def _fact_texts(model: ModelPlan | None) -> dict[str, str]:
    """Return the other values of a plan that determine executors."""
    if model is None:
        return {}
    makes = {f"/{option}: what it does": model.option_origin(option)[:4] for option in model.options}
    return {" checkpoint": model.checkpoint[:_MAX_CHECKPOINT_CHARS], " family": model.family, **makes}
