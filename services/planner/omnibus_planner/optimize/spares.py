"""Spare executors: running beyond the load's needs, to serve a burst before others have started.

Gateways route requests to spares as to any executor: an idle one would not serve a burst sooner. The capacity of a plan
excludes them, so that they are replaced as soon as the load needs them.
"""

from collections.abc import Mapping

import msgspec

from omnibus.plan import ModelPlan
from omnibus_planner.optimize.joint import GpuBudget
from omnibus_planner.optimize.model_inputs import ModelInputs


def add_spares(
    ready: Mapping[str, ModelInputs], models: Mapping[str, ModelPlan], left: GpuBudget
) -> dict[str, ModelPlan]:
    """Return ``models`` with the requested spares, as far as GPUs are ``left``.

    Each component gets one spare before any gets a second. The spare's option is the one that runs the component most
    often.
    """
    gpus = dict(left.gpus) if left.gpus is not None else None
    counts: dict[str, dict[str, int]] = {name: {} for name in models}
    for number in range(max((ready[name].asked.spares for name in models), default=0)):
        for name, model in models.items():
            for option in _spare_options(model) if number < ready[name].asked.spares else ():
                needs = ready[name].options[option]
                if gpus is not None:
                    if gpus.get(needs.gpu, 0) < needs.gpus:
                        continue
                    gpus[needs.gpu] -= needs.gpus
                counts[name][option] = counts[name].get(option, 0) + 1
    return {name: with_spares(model, counts[name]) for name, model in models.items()}


def with_spares(model: ModelPlan, counts: Mapping[str, int]) -> ModelPlan:
    """Add ``counts`` spares by option to ``model``, which has none."""
    options = {
        name: msgspec.structs.replace(option, replicas=option.replicas + counts[name], spares=counts[name])
        if counts.get(name)
        else option
        for name, option in model.options.items()
    }
    return msgspec.structs.replace(model, options=options)


def spare_counts(model: ModelPlan) -> dict[str, int]:
    """Return the number of spares of each option that has some."""
    return {name: option.spare_count for name, option in model.options.items() if option.spare_count}


def without_spares(models: Mapping[str, ModelPlan]) -> dict[str, ModelPlan]:
    """Return ``models`` with only the replicas that their load needs."""
    return {
        name: msgspec.structs.replace(
            model,
            options={
                each: msgspec.structs.replace(
                    option, replicas=max(0, option.replicas - option.spare_count), spares=msgspec.UNSET
                )
                if option.spare_count
                else option
                for each, option in model.options.items()
            },
        )
        for name, model in models.items()
    }


def _spare_options(model: ModelPlan) -> list[str]:
    """Return the option that most often runs each component.

    It applies to components of ``model`` with their own executors.
    """
    found: dict[str, None] = {}
    for part in model.components:
        able = [
            name
            for name, option in model.options.items()
            if part in option.components and option.replicas and not option.of
        ]
        if able:
            found[max(able, key=lambda name: model.options[name].replicas)] = None
    return list(found)
