"""Plans for the console: the current and the staged plan, changes and history."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from omnibus.cluster.desired import replica_counts
from omnibus.cluster.monitor.plan_diff import plan_differences
from omnibus.errors import OmnibusError
from omnibus.families import catalog
from omnibus.plan import ModelPlan, Plan
from omnibus.store import PlanHistoryEntry, Store

#: Limit of the past epochs.
MAX_PAST_EPOCHS = 30


async def describe_plans(store: Store) -> dict[str, Any]:
    """Return the plans as plain values. Raises ``StoreUnavailable``.

    ``changes`` are rows of subject, before and after. They lead to the staged plan, else from the previous plan to the
    current one.
    """
    stand, problems, past = await asyncio.gather(
        store.plan_state(), store.plan_problems(), store.plan_history(MAX_PAST_EPOCHS)
    )
    plan = await store.plan(stand.epoch) if stand.epoch else None
    next_plan = await store.staged_plan() if stand.staged else None
    score = await store.plan_score(stand.epoch) if stand.epoch else None
    return {
        "plan": msgspec.to_builtins(plan),
        "staged": msgspec.to_builtins(next_plan),
        "pin": stand.pin,
        "score": msgspec.to_builtins(score),
        "problems": msgspec.to_builtins(problems),
        "changes": _plan_changes(plan, next_plan, past),
        "history": [_summarize_epoch(each) for each in past],
        "models": describe_models(plan.models if plan is not None else {}),
    }


def describe_models(models: Mapping[str, ModelPlan]) -> dict[str, dict[str, Any]]:
    """Return the inputs, outputs, voices and apps of each model."""
    return {
        name: {**_describe_modalities(model), "voices": list(model.voices), "apps": list(model.apps)}
        for name, model in models.items()
    }


def _describe_modalities(model: ModelPlan) -> dict[str, list[str]]:
    try:
        family = catalog.find_family(model.family)
    except OmnibusError:  # an app's, or a plugin's that this gateway does not have
        return {"takes": ["text", *model.encoders], "gives": []}
    gives = catalog.output_kinds({**family, "components": model.components})
    if "text" not in gives and any(family["tasks"].get(part) in catalog.CHATTING for part in model.components):
        gives = ["text", *gives]
    return {"takes": catalog.input_kinds({**family, "encoders": model.encoders}), "gives": gives}


def _plan_changes(plan: Plan | None, next_plan: Plan | None, past: Sequence[PlanHistoryEntry]) -> list[list[str]]:
    if plan is None:
        return []
    if next_plan is not None:
        return list(plan_differences(plan, next_plan))
    before = next((each.plan for each in past if each.epoch < plan.epoch), None)
    return list(plan_differences(before, plan)) if before is not None else []


def _summarize_epoch(each: PlanHistoryEntry) -> dict[str, Any]:
    if each.plan is None:
        return {"epoch": each.epoch, "fault": each.fault}
    plan = each.plan
    executors = {f"{kind.model}/{kind.option}": count for kind, count in replica_counts(plan.models).items()}
    return {"epoch": each.epoch, "created": plan.created, "reason": plan.reason, "executors": executors}
