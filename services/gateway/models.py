"""The composite task that serves a model of the plan."""

from typing import TypeVar

from omnibus import catalog, plugins
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan, Plan
from omnibus.task import MLLM, CompositeTask, Encode, Omni, Talk, Think, UnitTask, Vocode
from omnibus.task.library import Decode, Prefill, PrefillDecode

Task = TypeVar("Task", bound=UnitTask)


def composite(name: str, plan: Plan) -> CompositeTask:
    """The task of model ``name``: its family's own, or the library's that fits its components.

    Raises ``BadRequest`` for a model that is no chat model, and for a plugin that cannot be loaded.
    """
    model = plan.models[name]
    made = "" if model.family == catalog.PYTHON else catalog.family(model.family)["composite"]
    if made:
        return plugins.named(made, f"composite of family {model.family}")(name, model)
    owners = plan.owners()
    thinker: Think | PrefillDecode
    if {"prefill", "decode"} <= {*model.components}:
        thinker = PrefillDecode(
            prefill=_bound(Prefill, name, "prefill", model, owners),
            decode=_bound(Decode, name, "decode", model, owners),
        )
    elif "thinker" in model.components:
        thinker = _bound(Think, name, "thinker", model, owners)
    else:
        raise BadRequest(f"{name} is no chat model: it has {', '.join(model.components)}", param="model")
    encoders = {
        modality: _bound(Encode, name, component, model, owners) for modality, component in model.encoders.items()
    }
    if not model.speaks:
        return MLLM(encoders=encoders, thinker=thinker)
    return Omni(
        encoders=encoders,
        thinker=thinker,
        talker=_bound(Talk, name, "talker", model, owners),
        vocoder=_bound(Vocode, name, "vocoder", model, owners),
    )


def _bound(
    kind: type[Task], name: str, component: str, model: ModelPlan, owners: dict[str, tuple[tuple[str, str], ...]]
) -> Task:
    """The unit task that runs ``component``: another model's where it is shared."""
    own = kind(model=name, component=component)
    wanted = model.tasks.get(component, own.name)
    if own.name == wanted:
        return own
    for owner, part in owners.get(wanted, ()):
        shared = kind(model=owner, component=part)
        if shared.name == wanted:
            return shared
    return own
