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
    option_names = dict.fromkeys(name for path in model.paths for name in path.options if "/" in name)
    foreign_options = {name: _shared_option(model, name, models) for name in option_names}
    for component, other in model.shares.items():
        is_used = any(component in option.components for option in foreign_options.values())
        require_valid_model(
            is_used, model.name, f"shares {component} with {other}, but no path names an option of {other} that runs it"
        )
    return foreign_options


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
    own_kind, owner_kind = model.kinds[component], owner.kinds[component]
    require_valid(own_kind == owner_kind, f"but its unit task is of kind {own_kind!r} here and {owner_kind!r} there")
    difference = _first_difference(model, owner, component)
    require_valid(
        not difference,
        f"but {difference}: executors of {other} would answer otherwise; leave the share out, or use a checkpoint "
        f"whose {component} is the same",
    )


def _first_difference(model: Model, owner: Model, component: str) -> str:
    """Return the first difference of ``component`` in both models; empty if equal or unknown."""
    own_identity, owner_identity = component_identity(model, component), component_identity(owner, component)
    if own_identity is None or owner_identity is None:
        return ""
    try:
        return own_identity.first_difference(owner_identity)
    except OSError as error:
        return f"its weights cannot be compared ({error})"


def _shared_option(model: Model, name: str, models: Mapping[str, Model]) -> DeploymentOption:
    other, _, option = name.rpartition("/")

    def require_valid(good: bool, fault: str) -> None:
        require_valid_model(good, model.name, f"a path names option {name}, but {fault}")

    require_valid(other in models, f"there is no model {other!r}; there is {join_names(models)}")
    shared_parts = [component for component in model.components if model.shares.get(component) == other]
    require_valid(bool(shared_parts), f"'shares' names no component of {other}")
    owner_options = models[other].options
    require_valid(
        option in owner_options, f"{other} declares no option {option!r}; there is {join_names(owner_options)}"
    )
    runs = tuple(component for component in shared_parts if component in owner_options[option].components)
    require_valid(
        bool(runs), f"it runs {', '.join(owner_options[option].components)}, not the shared {', '.join(shared_parts)}"
    )
    return DeploymentOption(components=runs, service=owner_options[option].service, replicas=0, of=name)
