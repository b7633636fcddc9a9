"""Models between two plans: some replicas of both, and paths over these. Pure, no I/O.

Target of the planner. Data.

Short reason for a new plan.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from omnibus.app_record import AppRecord, base_app_name
from omnibus.cluster.presence import ExecutorKind
from omnibus.plan import CANDIDATE_MARK, DeploymentOption, ModelPlan, Path, PriceList
from omnibus_planner.optimize.result import PlanningResult

Models = Mapping[str, ModelPlan]
#: Replicas of an option of a model, including borrowed ones.
Replicas = Callable[[str, str], int]


def is_compatible(one: ModelPlan, other: ModelPlan) -> bool:
    """Return True if executors of both plans may serve the same plan.

    It must be the same model, without options of the same name that differ.
    """
    if _without_deployment(one) != _without_deployment(other):
        return False
    common = one.options.keys() & other.options.keys()
    return all(_is_same_option(one, other, name) for name in common)


def owning_option(model: str, name: str, option: DeploymentOption) -> tuple[str, str]:
    """Return the model and option whose executors run ``option``."""
    owner, _, lent = option.of.rpartition("/")
    return (owner, lent) if option.of else (model, name)


def running_replicas(models: Models) -> dict[tuple[str, str], int]:
    """Return replicas by model and option, without options that have none."""
    return {
        (model, name): option.replicas
        for model, plan in models.items()
        for name, option in plan.options.items()
        if option.replicas and not option.of
    }


def transition_plan(before: Models, after: Models, there: Mapping[ExecutorKind, int]) -> dict[str, ModelPlan]:
    """Return the models of ``after`` with the replicas ``there``.

    They must be ``is_compatible`` with those of ``before``. Requests take the remaining paths of both, in proportion to
    remaining replicas; without one, they take a path over running options. A request type that no option runs is left
    out.
    """
    options = {name: dict(_merged_options(name, before.get(name, plan), plan, there)) for name, plan in after.items()}
    have = running_replicas(
        {name: msgspec.structs.replace(plan, options=options[name]) for name, plan in after.items()}
    )
    models = {}
    for name, plan in after.items():
        own_options = {
            key: option for key, option in options[name].items() if have.get(owning_option(name, key, option))
        }
        sides = [(each[name], running_replicas(each)) for each in (before, after) if name in each]
        types = dict(_merged_types(name, own_options, sides, have))
        models[name] = msgspec.structs.replace(plan, options=own_options, types=types)
    return models


def _without_deployment(model: ModelPlan) -> ModelPlan:
    return msgspec.structs.replace(model, options={}, types={}, apps=())


def _is_same_option(one: ModelPlan, other: ModelPlan, name: str) -> bool:
    first, second = (
        msgspec.structs.replace(each.options[name], replicas=0, gpu="", spares=msgspec.UNSET, credits=msgspec.UNSET)
        for each in (one, other)
    )
    return first == second and one.option_origin(name) == other.option_origin(name)


def _merged_options(
    model: str, before: ModelPlan, after: ModelPlan, there: Mapping[ExecutorKind, int]
) -> Iterator[tuple[str, DeploymentOption]]:
    for name in dict.fromkeys([*after.options, *before.options]):
        plan = after if name in after.options else before
        option = plan.options[name]
        count = 0 if option.of else there.get(ExecutorKind(model, name, plan.option_origin(name)), 0)
        yield name, msgspec.structs.replace(option, replicas=count, spares=msgspec.UNSET)


Side = tuple[ModelPlan, Mapping[tuple[str, str], int]]


def _merged_types(
    model: str, options: Mapping[str, DeploymentOption], sides: Iterable[Side], have: Mapping[tuple[str, str], int]
) -> Iterator[tuple[str, tuple[Path, ...]]]:
    sides = list(sides)
    for kind in dict.fromkeys(kind for plan, _ in reversed(sides) for kind in plan.types):
        parts = kind.split("+")
        paths: dict[tuple[tuple[str, str], ...], Path] = {}
        for plan, had in sides:
            for path in _remaining_paths(model, options, plan.paths_for(frozenset(parts)), had, have):
                key = tuple(sorted(path.options.items()))
                paths[key] = max(path, paths.get(key, path), key=lambda each: each.rate)
        type_paths = tuple(paths.values())
        if all(path.is_candidate for path in type_paths):  # a candidate does not replace other paths
            type_paths += _fallback_path(parts, options)
        if type_paths and not any(path.rate > 0 for path in type_paths):
            type_paths = tuple(msgspec.structs.replace(path, rate=1.0) for path in type_paths)
        if type_paths:
            yield kind, type_paths


def _remaining_paths(
    model: str,
    options: Mapping[str, DeploymentOption],
    paths: Iterable[Path],
    had: Mapping[tuple[str, str], int],
    have: Mapping[tuple[str, str], int],
) -> Iterator[Path]:
    """Yield the paths whose options still run. A rate is its share of all, times the remaining fraction of replicas."""
    paths = list(paths)
    total = sum(path.rate for path in paths) or 1.0
    for path in paths:
        names = set(path.options.values())
        if names <= options.keys():
            runs = [owning_option(model, name, options[name]) for name in names]
            part = min(min(1.0, have[each] / max(1, had.get(each, 0))) for each in runs)
            yield msgspec.structs.replace(path, rate=path.rate / total * part)


def _fallback_path(parts: Iterable[str], options: Mapping[str, DeploymentOption]) -> tuple[Path, ...]:
    """Return a path over running options with few executors, in order.

    It is empty if no option runs some part.
    """
    option_names: dict[str, str] = {}
    for part in parts:
        able = [
            name for name, option in options.items() if part in option.components and not name.endswith(CANDIDATE_MARK)
        ]
        if not able:
            return ()
        option_names[part] = next((name for name in able if name in option_names.values()), able[0])
    return (Path(">".join(dict.fromkeys(option_names.values())), option_names, 1.0),)


class PlanTarget(NamedTuple):
    """Target plan of each model, its reason, and its explanation.

    ``gpus`` is the number of GPUs by type; types that it lacks are never short. ``route`` returns the best paths over
    the replicas of intermediate plans. It is called in a thread, and raises ``OmnibusError``. ``prices`` are written
    into every intermediate plan.
    """

    models: dict[str, ModelPlan]
    reason: str
    explain: dict[str, Any] = {}  # noqa: RUF012 never modified
    gpus: Mapping[str, int] = {}
    route: Callable[[Models], PlanningResult] | None = None
    prices: PriceList = PriceList()

    @property
    def placement(self) -> dict[str, dict[str, int]]:
        """Replicas by ``model/option`` and node, as the solver placed them; empty without nodes."""
        counts: dict[str, dict[str, int]] = {}
        for deployment in self.explain.get("planned", {}).get("deployments", ()):
            for place, count in deployment.get("nodes", {}).items():
                option, _, node = place.rpartition("@")
                counts.setdefault(option, {})[node] = count
        return counts


#: Most apps that are listed by name.
MAX_NAMED_APPS = 3


def describe_app_changes(before: Mapping[str, AppRecord], after: Mapping[str, AppRecord]) -> str:
    """Describe the changes of apps: ``app poem registered``. A kept version counts as its app."""
    were, are = ({base_app_name(name) for name in apps} for apps in (before, after))
    changed_names = {
        base_app_name(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    }
    descriptions = [
        f"app {name} {'registered' if name not in were else 'updated' if name in are else 'unregistered'}"
        for name in sorted(changed_names)
    ]
    return ", ".join(descriptions) if len(descriptions) <= MAX_NAMED_APPS else f"{len(descriptions)} apps changed"
