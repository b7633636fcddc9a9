"""Observations of the system, as plain values for programs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from omnibus.cluster.desired import Kind
from omnibus.cluster.monitor.snapshot import OptionSeen, Seen, Totals, planned
from omnibus.plan import Plan


def told(seen: Seen, away: Sequence[str]) -> dict[str, Any]:
    """Everything, as JSON has it. ``away`` says what cannot be reached."""
    types, asked = seen.types(), planned(seen.plan)
    known: dict[str, dict[str, Any]] = {name: {} for name in models(seen.plan, types)}
    for model, kind in dict.fromkeys([*asked, *types]):
        known[model][kind] = {
            **(types[model, kind]._asdict() if (model, kind) in types else {}),
            "planned": asked.get((model, kind)),
        }
    plan = seen.plan
    return {
        "at": time.time(),
        "seconds": seen.span,
        "epoch": plan.epoch if plan is not None else 0,
        "reason": plan.reason if plan is not None else "",
        "staged": seen.staged.epoch if seen.staged is not None else 0,
        "pin": seen.stand.pin,
        "problems": {who: problem.message for who, problem in seen.problems.items()},
        "away": list(away),
        "gateways": seen.gateways,
        "inflight": seen.inflight,
        "models": known,
        "executors": [{**each.kind._asdict(), **_plain(each)} for each in seen.options()],
    }


def models(plan: Plan | None, types: Mapping[tuple[str, str], Totals]) -> list[str]:
    """The names of all models: those of the plan, and others that were asked for."""
    return list(dict.fromkeys([*(plan.models if plan is not None else ()), *(model for model, _ in types)]))


def _plain(option: OptionSeen) -> dict[str, Any]:
    return {name: value for name, value in option._asdict().items() if not isinstance(value, Kind)}
