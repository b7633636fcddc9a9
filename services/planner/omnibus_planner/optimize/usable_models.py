"""Declared models that can be planned, and the faults of the others."""

from collections.abc import Collection, Mapping
from copy import copy

from omnibus.errors import BadRequest
from omnibus.profile import ModelProfile
from omnibus_planner.declared.model import Model
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.model_inputs import ModelInputs


def usable_models(
    models: Mapping[str, Model], profiles: Mapping[str, ModelProfile], gpus: Mapping[str, GpuType]
) -> tuple[dict[str, Model], dict[str, str]]:
    """Return the models that can be planned, and the others' faults.

    A model also has a fault if a model that it shares with has one.
    """
    ready, faults = _build_inputs(models, profiles, gpus)
    lending = {name: _without_lenders(model, ready) for name, model in models.items()}
    if any(lending[name] is not model for name, model in models.items()):
        models = lending
        ready, faults = _build_inputs(models, profiles, gpus)
    for name in ready:
        try:
            ready[name].borrow_options(models, ready)
        except BadRequest as error:
            faults[name] = error.message
    while fallen := _dependent_faults(models, faults):
        faults.update(fallen)
    return {name: model for name, model in models.items() if name not in faults}, faults


def _build_inputs(
    models: Mapping[str, Model], profiles: Mapping[str, ModelProfile], gpus: Mapping[str, GpuType]
) -> tuple[dict[str, ModelInputs], dict[str, str]]:
    """Return the models that are valid alone, and the others' faults."""
    ready: dict[str, ModelInputs] = {}
    faults: dict[str, str] = {}
    for name, model in models.items():
        try:
            ready[name] = ModelInputs(model, profiles[name], gpus)
        except BadRequest as error:
            faults[name] = error.message
    return ready, faults


def _without_lenders(model: Model, ready: Collection[str]) -> Model:
    """Return ``model`` with its own encoder if its lender cannot be planned."""
    lost = {part for part, owner in model.equal_shares.items() if owner not in ready}
    if not lost:
        return model
    alone = copy(model)
    for field in ("shares", "equal_shares"):
        setattr(alone, field, {part: owner for part, owner in getattr(model, field).items() if part not in lost})
    return alone


def _dependent_faults(models: Mapping[str, Model], faults: Mapping[str, str]) -> dict[str, str]:
    """Return faults of models that share with one that cannot be planned."""
    found = {}
    for name, model in models.items():
        for owner in model.shares.values():
            for one, other in ((name, owner), (owner, name)):
                if one in models and one not in faults and other in faults:
                    found[one] = f"model {one}: {other}, with which it shares executors, cannot be planned"
    return found
