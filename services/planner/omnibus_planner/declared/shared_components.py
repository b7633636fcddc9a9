"""Components that a model shares with another one: executors of the other model's options run them."""

from collections.abc import Mapping

from omnibus.families.plugins import join_names
from omnibus.plan import DeploymentOption
from omnibus_planner.declared.equal_components import component_identity
from omnibus_planner.declared.model import Model, require_valid_model


def shared_options(model: Model, models: Mapping[str, Model]) -> dict[str, DeploymentOption]:
    """Return options of other models in ``model``'s paths, such as ``a/E``.

    They are as in the model's plan. Raises ``BadRequest`` if a share or a path names an unknown or unsuitable component
    or option.
    """
    for component, other in model.shares.items():
        check_share(model, component, other, models)
    named = dict.fromkeys(name for path in model.paths for name in path.options if "/" in name)
    found = {name: _shared_option(model, name, models) for name in named}
    for component, other in model.shares.items():
        used = any(component in option.components for option in found.values())
        require_valid_model(
            used, model.name, f"shares {component} with {other}, but no path names an option of {other} that runs it"
        )
    return found


def check_share(model: Model, component: str, other: str, models: Mapping[str, Model]) -> None:
    """Raises ``BadRequest`` if ``model`` cannot have ``component`` from ``other``."""

    def require_valid(good: bool, fault: str) -> None:
        require_valid_model(good, model.name, f"shares {component} with {other!r}, {fault}")

    require_valid(component in model.components, f"but has no {component}; it has {', '.join(model.components)}")
    require_valid(other != model.name, "which is itself")
    require_valid(
        other in models,
        f"which is not declared; there is {join_names([name for name in models if name != model.name])}",
    )
    owner = models[other]
    require_valid(component in owner.components, f"which has no {component}; it has {', '.join(owner.components)}")
    in_cells = owner.declared.cells or (owner.planned is not None and owner.planned.cells)
    require_valid(not in_cells, "which is in cells: they serve only its own requests")
    further = owner.shares.get(component)
    require_valid(further is None, f"which has it from {further!r}: name that one")
    mine, theirs = model.kinds[component], owner.kinds[component]
    require_valid(mine == theirs, f"but its unit task is of kind {mine!r} here and {theirs!r} there")
    difference = _first_difference(model, owner, component)
    require_valid(
        not difference,
        f"but {difference}: executors of {other} would answer otherwise; leave the share out, or use a checkpoint "
        f"whose {component} is the same",
    )


def _first_difference(model: Model, owner: Model, component: str) -> str:
    """Return the first difference of ``component`` in both models; empty if equal or unknown."""
    mine, theirs = component_identity(model, component), component_identity(owner, component)
    if mine is None or theirs is None:
        return ""
    try:
        return mine.first_difference(theirs)
    except OSError as error:
        return f"its weights cannot be compared ({error})"


def _shared_option(model: Model, name: str, models: Mapping[str, Model]) -> DeploymentOption:
    other, _, option = name.rpartition("/")

    def require_valid(good: bool, fault: str) -> None:
        require_valid_model(good, model.name, f"a path names option {name}, but {fault}")

    require_valid(other in models, f"there is no model {other!r}; there is {join_names(models)}")
    shared = [component for component in model.components if model.shares.get(component) == other]
    require_valid(bool(shared), f"'shares' names no component of {other}")
    offered = models[other].options
    require_valid(option in offered, f"{other} declares no option {option!r}; there is {join_names(offered)}")
    runs = tuple(component for component in shared if component in offered[option].components)
    require_valid(bool(runs), f"it runs {', '.join(offered[option].components)}, not the shared {', '.join(shared)}")
    return DeploymentOption(components=runs, service=offered[option].service, replicas=0, of=name)
