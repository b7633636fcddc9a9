"""Spare executors: started and ready beyond what the load needs, so that a burst is served before others have started.

Gateways give them requests as they give them to any: one that had none would serve a burst no sooner. What a plan can
serve is said without them, so that they are replaced as soon as the load needs them.
"""

from collections.abc import Mapping

import msgspec

from omnibus.plan import ModelPlan
from services.planner.optimize.joint import GpuBudget
from services.planner.optimize.model_inputs import ModelInputs


def add_spares(
    ready: Mapping[str, ModelInputs], models: Mapping[str, ModelPlan], left: GpuBudget
) -> dict[str, ModelPlan]:
    """Return ``models`` with as many spares of each component as was asked for, as far as GPUs are ``left``: one of
    each before a second one of any. They are of the option that runs the component most often."""
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
    """Return ``model``, which has no spares, with so many of each option beside its replicas."""
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
    """Return ``models`` with the replicas that their load needs."""
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
    """For each component of ``model`` that has executors of its own, the option that runs it most often."""
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
