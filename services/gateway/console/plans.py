"""Plans as the console shows them: the current one, what follows, what changes, what was before."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from omnibus.cluster.desired import counts
from omnibus.cluster.monitor.plan_diff import differences
from omnibus.errors import OmnibusError
from omnibus.families import catalog
from omnibus.plan import ModelPlan, Plan
from omnibus.store import Past, Store

#: Epochs of the past that are shown.
PAST = 30


async def plans(store: Store) -> dict[str, Any]:
    """All of it, as plain values. Raises ``StoreUnavailable``.

    ``changes`` are rows of what, before and after: to the staged plan, or to the current one from the one before.
    """
    stand, problems, past = await asyncio.gather(store.stand(), store.problems(), store.history(PAST))
    plan = await store.plan(stand.epoch) if stand.epoch else None
    staged = await store.staged() if stand.staged else None
    return {
        "plan": msgspec.to_builtins(plan),
        "staged": msgspec.to_builtins(staged),
        "pin": stand.pin,
        "problems": msgspec.to_builtins(problems),
        "changes": _changes(plan, staged, past),
        "history": [_brief(each) for each in past],
        "models": models(plan.models if plan is not None else {}),
    }


def models(known: Mapping[str, ModelPlan]) -> dict[str, dict[str, Any]]:
    """Return the inputs and outputs of each model, its voices and its apps."""
    return {
        name: {**_ends(model), "voices": list(model.voices), "apps": list(model.apps)} for name, model in known.items()
    }


def _ends(model: ModelPlan) -> dict[str, list[str]]:
    try:
        family = catalog.family(model.family)
    except OmnibusError:  # an app's, or a plugin's that this gateway does not have
        return {"takes": ["text", *model.encoders], "gives": []}
    gives = catalog.gives({**family, "components": model.components})
    if "text" not in gives and any(family["tasks"].get(part) in catalog.CHATTING for part in model.components):
        gives = ["text", *gives]
    return {"takes": catalog.takes({**family, "encoders": model.encoders}), "gives": gives}


def _changes(plan: Plan | None, staged: Plan | None, past: Sequence[Past]) -> list[list[str]]:
    if plan is None:
        return []
    if staged is not None:
        return list(differences(plan, staged))
    before = next((each.plan for each in past if each.epoch < plan.epoch), None)
    return list(differences(before, plan)) if before is not None else []


def _brief(each: Past) -> dict[str, Any]:
    if each.plan is None:
        return {"epoch": each.epoch, "fault": each.fault}
    plan = each.plan
    executors = {f"{kind.model}/{kind.option}": count for kind, count in counts(plan.models).items()}
    return {"epoch": each.epoch, "created": plan.created, "reason": plan.reason, "executors": executors}
