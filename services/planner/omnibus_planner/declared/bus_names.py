"""Names of models on the bus: rejects names that are equal there.

Subjects contain only letters, digits, ``-`` and ``_``, so ``a.b`` and ``a_b`` are equal.
"""

from collections.abc import Mapping

from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan


class BusNames:
    """The names in use, by model and part."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[str, str]] = {}

    def claim_names(self, model: str, plan: ModelPlan, shares: Mapping[str, str]) -> None:
        """Claim the names of ``model``'s unit tasks and executors.

        ``shares`` maps borrowed components to their models. Raises ``BadRequest`` with both owners if a name is in use;
        then none is claimed.
        """
        claims: dict[tuple[str, str], tuple[str, str]] = {}
        for component, task in plan.tasks.items():
            _claim_name(claims, ("unit task", task), (shares.get(component, model), component))
        for option, spec in plan.options.items():
            if not spec.of:
                _claim_name(claims, ("executor", subject_token(f"{model}-{option}")), (model, option))
        for name, owner in claims.items():
            _claim_name(self._taken, name, owner, keep=False)
        self._taken.update(claims)


def shared_components(model: ModelPlan) -> dict[str, str]:
    """Return the lending models by component, from a plan's options."""
    return {
        part: option.of.rpartition("/")[0]
        for option in model.options.values()
        if option.of
        for part in option.components
    }


def _claim_name(
    owners: dict[tuple[str, str], tuple[str, str]], name: tuple[str, str], owner: tuple[str, str], keep: bool = True
) -> None:
    other = owners.get(name, owner)
    if other != owner:
        kind, bus_name = name
        raise BadRequest(
            f"{_describe_owner(other)} and {_describe_owner(owner)} have the same {kind} name {bus_name!r} "
            "on the bus: rename one"
        )
    if keep:
        owners[name] = owner


def _describe_owner(owner: tuple[str, str]) -> str:
    model, part = owner
    return f"{part} of model {model}"
