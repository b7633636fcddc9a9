"""Components that a model shares with another one: executors of the other model's options run them."""

from collections.abc import Mapping

from omnibus.families.plugins import listed
from omnibus.plan import Option
from services.planner.declared.model import Model, require


def options(model: Model, models: Mapping[str, Model]) -> dict[str, Option]:
    """Options of other models in ``model``'s paths, such as ``a/E``, as they stand in its plan.

    Raises ``BadRequest`` when a share or a path names what is not there, or does not fit.
    """
    for component, other in model.shares.items():
        check(model, component, other, models)
    named = dict.fromkeys(name for path in model.paths for name in path.options if "/" in name)
    found = {name: _option(model, name, models) for name in named}
    for component, other in model.shares.items():
        used = any(component in option.components for option in found.values())
        require(
            used, model.name, f"shares {component} with {other}, but no path names an option of {other} that runs it"
        )
    return found


def check(model: Model, component: str, other: str, models: Mapping[str, Model]) -> None:
    """Raises ``BadRequest`` when ``model`` cannot have ``component`` from ``other``."""

    def must(good: bool, fault: str) -> None:
        require(good, model.name, f"shares {component} with {other!r}, {fault}")

    must(component in model.components, f"but has no such component; it has {', '.join(model.components)}")
    must(other != model.name, "which is itself")
    must(
        other in models,
        f"which is no declared model; there is {listed([name for name in models if name != model.name])}",
    )
    owner = models[other]
    must(component in owner.components, f"which has no such component; it has {', '.join(owner.components)}")
    further = owner.shares.get(component)
    must(further is None, f"which has it from {further!r}: name that one")
    mine, theirs = model.kinds[component], owner.kinds[component]
    must(mine == theirs, f"but its unit task is of kind {mine!r} here and {theirs!r} there")


def _option(model: Model, name: str, models: Mapping[str, Model]) -> Option:
    other, _, option = name.rpartition("/")

    def must(good: bool, fault: str) -> None:
        require(good, model.name, f"a path names option {name}, but {fault}")

    must(other in models, f"there is no model {other!r}; there is {listed(models)}")
    shared = [component for component in model.components if model.shares.get(component) == other]
    must(bool(shared), f"'shares' names no component of {other}")
    offered = models[other].options
    must(option in offered, f"{other} declares no option {option!r} of its own; there is {listed(offered)}")
    runs = tuple(component for component in shared if component in offered[option].components)
    must(bool(runs), f"it runs {', '.join(offered[option].components)}, not the shared {', '.join(shared)}")
    return Option(components=runs, service=offered[option].service, replicas=0, of=name)
