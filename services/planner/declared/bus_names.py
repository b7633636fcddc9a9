"""Names of models on the bus: two names that are the same there are refused.

Subjects know letters, digits, ``-`` and ``_`` alone, so ``a.b`` and ``a_b`` are one and the same to them.
"""

from collections.abc import Mapping

from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan


class BusNames:
    """The names that are taken, and by which part of which model."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[str, str]] = {}

    def claim_names(self, model: str, plan: ModelPlan, shares: Mapping[str, str]) -> None:
        """Take the names of ``model``'s unit tasks and executors; ``shares`` says which are another model's.

        Raises ``BadRequest`` that names both when another has one of them already; then none is taken.
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
    """Component to the model whose it is, as the options of a plan tell it."""
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
            f"{_describe_owner(other)} and {_describe_owner(owner)} cannot be told apart on the bus: the {kind} of "
            f"both is called {called!r}; rename one"
        )
    if keep:
        taken[name] = owner


def _describe_owner(owner: tuple[str, str]) -> str:
    model, part = owner
    return f"{part} of model {model}"
