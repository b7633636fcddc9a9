"""Models on their way from one plan to another: some replicas of both, and paths over those. Pure, no I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from omnibus.cluster.desired import Kind
from omnibus.plan import ModelPlan, Option, Path

Models = Mapping[str, ModelPlan]
#: Replicas of an option of a model, also of one that another model lends.
Replicas = Callable[[str, str], int]


def alike(one: ModelPlan, other: ModelPlan) -> bool:
    """Return whether executors of both may serve the same plan: the same model, and no option with two meanings."""
    if _bare(one) != _bare(other):
        return False
    common = one.options.keys() & other.options.keys()
    return all(_same(one, other, name) for name in common)


def lender(model: str, name: str, option: Option) -> tuple[str, str]:
    """The model and option whose executors run ``option``."""
    owner, _, lent = option.of.rpartition("/")
    return (owner, lent) if option.of else (model, name)


def running(models: Models) -> dict[tuple[str, str], int]:
    """Replicas by model and option, of those that have some."""
    return {
        (model, name): option.replicas
        for model, plan in models.items()
        for name, option in plan.options.items()
        if option.replicas and not option.of
    }


def mixed(before: Models, after: Models, there: Mapping[Kind, int]) -> dict[str, ModelPlan]:
    """The models of ``after``, which are ``alike`` those of ``before``, with the replicas ``there``.

    Requests go the paths of both that are left, as often as replicas of these are; where none is left, they go
    over what runs. A request type that nothing runs is left out.
    """
    options = {name: dict(_options(name, before.get(name, plan), plan, there)) for name, plan in after.items()}
    have = running({name: msgspec.structs.replace(plan, options=options[name]) for name, plan in after.items()})
    found = {}
    for name, plan in after.items():
        mine = {key: option for key, option in options[name].items() if have.get(lender(name, key, option))}
        sides = [(each[name], running(each)) for each in (before, after) if name in each]
        types = dict(_types(name, mine, sides, have))
        found[name] = msgspec.structs.replace(plan, options=mine, types=types)
    return found


def _bare(model: ModelPlan) -> ModelPlan:
    return msgspec.structs.replace(model, options={}, types={}, apps=())


def _same(one: ModelPlan, other: ModelPlan, name: str) -> bool:
    first, second = (msgspec.structs.replace(each.options[name], replicas=0, gpu="") for each in (one, other))
    return first == second and one.origin(name) == other.origin(name)


def _options(
    model: str, before: ModelPlan, after: ModelPlan, there: Mapping[Kind, int]
) -> Iterator[tuple[str, Option]]:
    for name in dict.fromkeys([*after.options, *before.options]):
        plan = after if name in after.options else before
        option = plan.options[name]
        count = 0 if option.of else there.get(Kind(model, name, plan.origin(name)), 0)
        yield name, msgspec.structs.replace(option, replicas=count)


Side = tuple[ModelPlan, Mapping[tuple[str, str], int]]


def _types(
    model: str, options: Mapping[str, Option], sides: Iterable[Side], have: Mapping[tuple[str, str], int]
) -> Iterator[tuple[str, tuple[Path, ...]]]:
    sides = list(sides)
    for kind in dict.fromkeys(kind for plan, _ in reversed(sides) for kind in plan.types):
        parts = kind.split("+")
        paths: dict[tuple[tuple[str, str], ...], Path] = {}
        for plan, had in sides:
            for path in _left(model, options, plan.paths(frozenset(parts)), had, have):
                key = tuple(sorted(path.options.items()))
                paths[key] = max(path, paths.get(key, path), key=lambda each: each.rate)
        found = tuple(paths.values()) or _over(parts, options)
        if found and not any(path.rate > 0 for path in found):
            found = tuple(msgspec.structs.replace(path, rate=1.0) for path in found)
        if found:
            yield kind, found


def _left(
    model: str,
    options: Mapping[str, Option],
    paths: Iterable[Path],
    had: Mapping[tuple[str, str], int],
    have: Mapping[tuple[str, str], int],
) -> Iterator[Path]:
    """The paths whose options run still. A rate is its share of all, as far as replicas are left for it."""
    paths = list(paths)
    total = sum(path.rate for path in paths) or 1.0
    for path in paths:
        names = set(path.options.values())
        if names <= options.keys():
            runs = [lender(model, name, options[name]) for name in names]
            part = min(min(1.0, have[each] / max(1, had.get(each, 0))) for each in runs)
            yield msgspec.structs.replace(path, rate=path.rate / total * part)


def _over(parts: Iterable[str], options: Mapping[str, Option]) -> tuple[Path, ...]:
    """A path over whatever runs, in as few executors as can be had in order; none when a part has nobody."""
    found: dict[str, str] = {}
    for part in parts:
        able = [name for name, option in options.items() if part in option.components]
        if not able:
            return ()
        found[part] = next((name for name in able if name in found.values()), able[0])
    return (Path(">".join(dict.fromkeys(found.values())), found, 1.0),)
