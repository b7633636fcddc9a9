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
        wanted: dict[tuple[str, str], tuple[str, str]] = {}
        for component, task in plan.tasks.items():
            _claim_name(wanted, ("unit task", task), (shares.get(component, model), component))
        for option, spec in plan.options.items():
            if not spec.of:
                _claim_name(wanted, ("executor", subject_token(f"{model}-{option}")), (model, option))
        for name, owner in wanted.items():
            _claim_name(self._taken, name, owner, keep=False)
        self._taken.update(wanted)


def shared_components(model: ModelPlan) -> dict[str, str]:
    """Return the lending models by component, from a plan's options."""
    return {
        part: option.of.rpartition("/")[0]
        for option in model.options.values()
        if option.of
        for part in option.components
    }


def _claim_name(
    taken: dict[tuple[str, str], tuple[str, str]], name: tuple[str, str], owner: tuple[str, str], keep: bool = True
) -> None:
    other = taken.get(name, owner)
    if other != owner:
        kind, called = name
        raise BadRequest(
            f"{_describe_owner(other)} and {_describe_owner(owner)} have the same {kind} name {called!r} "
            "on the bus: rename one"
        )
    if keep:
        taken[name] = owner


def _describe_owner(owner: tuple[str, str]) -> str:
    model, part = owner
    return f"{part} of model {model}"
