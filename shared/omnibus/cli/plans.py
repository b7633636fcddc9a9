"""``omnibus plan show | diff | history | rollback | resume``: the plans of the store, for people."""

import argparse
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from omnibus.bus.nats import NatsBus
from omnibus.cli.format import plan as plan_format
from omnibus.cli.format.score import score_lines
from omnibus.cli.format.tables import fit_text, table_lines
from omnibus.cli.output import print_json, print_names
from omnibus.cluster.monitor.plan_diff import plan_differences
from omnibus.cluster.presence import ExecutorKind, ReadyExecutors, replica_counts
from omnibus.errors import BadRequest, BusUnavailable, NotFound, StageUnavailable
from omnibus.plan import Plan
from omnibus.profile import ModelProfile
from omnibus.settings import BusSettings, StoreSettings, read_settings
from omnibus.store import Store
from omnibus.up import runs

#: Seconds to wait for the status messages of executors; the others count as down.
CENSUS_WAIT_SECONDS = 1.0
_INDENT_CHARS = 4


async def run_plan(options: argparse.Namespace) -> int:
    """Run the subcommand of ``omnibus plan`` in ``options``."""
    commands: dict[str, Callable[[Store, argparse.Namespace], Awaitable[None]]] = {
        "show": _show_plan,
        "diff": _diff_plans,
        "history": _show_history,
        "rollback": _rollback_plan,
        "resume": _resume_planning,
        "cells": _show_or_set_cells,
    }
    store = Store(store_settings(options))
    try:
        await commands[options.plan_command](store, options)
    finally:
        await store.close()
    return 0


def store_settings(options: argparse.Namespace) -> StoreSettings:
    """Return the settings of the store. The store is that of ``--store``, of the environment, or of the running
    ``omnibus up``, with the secret of that run."""
    settings = read_settings(StoreSettings)
    if options.store:
        return msgspec.structs.replace(settings, url=options.store)
    if "OMNIBUS_STORE_URL" in os.environ:
        return settings
    state = runs.read_state()
    return msgspec.structs.replace(settings, url=state.store_url, secret=state.store_secret or settings.secret)


async def _show_plan(store: Store, options: argparse.Namespace) -> None:
    plan = await _require_plan(store, options.epoch)
    stand = await store.plan_state()
    next_plan = await store.staged_plan() if stand.staged and plan.epoch == stand.epoch else None
    counts = {**replica_counts(plan.models), **(replica_counts(next_plan.models) if next_plan is not None else {})}
    up = await _count_ready(options, counts)
    problems = await store.plan_problems() if plan.epoch == stand.epoch else {}
    score = await store.plan_score(plan.epoch)
    if options.json:
        result = {
            "plan": msgspec.to_builtins(plan),
            "staged": msgspec.to_builtins(next_plan),
            "pin": stand.pin,
            "problems": msgspec.to_builtins(problems),
            "score": msgspec.to_builtins(score),
            "up": None if up is None else [{**kind._asdict(), "count": count} for kind, count in up.items()],
        }
        print_json(result)
        return
    lacks = (
        plan_format.missing_executors(replica_counts(next_plan.models), up)
        if next_plan is not None and up is not None
        else ""
    )
    lines = [
        *plan_format.state_lines(plan, next_plan, lacks, stand.pin, problems),
        "",
        *plan_format.plan_lines(plan, up),
    ]
    if shares := plan_format.cell_shares_by_model(plan):
        lines += ["", *plan_format.cell_lines(plan, shares, await store.cell_shares())]
    score_text = list(score_lines(score))
    print(fit_text("\n".join([*lines, *([""] if score_text else []), *score_text]), _INDENT_CHARS))


async def _diff_plans(store: Store, options: argparse.Namespace) -> None:
    before, after = await _plans_to_compare(store, options.epochs)
    rows = list(plan_differences(before, after))
    if options.json:
        changes = [{"what": subject, "before": old, "after": new} for subject, old, new in rows]
        print_json({"before": before.epoch, "after": after.epoch, "changes": changes})
    elif rows:
        print("\n".join(table_lines(["WHAT", f"EPOCH {before.epoch}", f"EPOCH {after.epoch}"], rows)))
    else:
        print(f"epochs {before.epoch} and {after.epoch} do the same")


async def _plans_to_compare(store: Store, epochs: list[int]) -> tuple[Plan, Plan]:
    """Return the plans to compare. Without epochs: the current and the staged plan, or the last two plans."""
    if len(epochs) > 2:
        raise BadRequest(f"{len(epochs)} epochs: name two at most")
    if len(epochs) == 2:
        return await _require_plan(store, epochs[0]), await _require_plan(store, epochs[1])
    current = await _require_plan(store, 0)
    if epochs:
        return await _require_plan(store, epochs[0]), current
    next_plan = await store.staged_plan()
    if next_plan is not None:
        return current, next_plan
    earlier = [each.plan for each in await store.plan_history(2) if each.epoch < current.epoch]
    if not earlier or earlier[0] is None:
        raise NotFound(f"there is no plan before epoch {current.epoch} to compare it with")
    return earlier[0], current


async def _show_history(store: Store, options: argparse.Namespace) -> None:
    stand, history = await store.plan_state(), await store.plan_history(options.limit)
    if options.json:
        print_json([_plan_summary(each.epoch, each.plan, each.fault) for each in history])
    elif options.quiet:
        print_names(each.epoch for each in history)
    else:
        print("\n".join(plan_format.history_lines(history, stand.epoch, stand.pin)))


def _plan_summary(epoch: int, plan: Plan | None, fault: str) -> dict[str, Any]:
    if plan is None:
        return {"epoch": epoch, "fault": fault}
    executors = {f"{kind.model}/{kind.option}": count for kind, count in replica_counts(plan.models).items()}
    return {"epoch": epoch, "created": plan.created, "reason": plan.reason, "executors": executors}


async def _rollback_plan(store: Store, options: argparse.Namespace) -> None:
    await store.pin_plan(options.epoch)
    _print_result(
        options,
        {"pin": options.epoch},
        f"epoch {options.epoch} is pinned: the planner serves its models as a new epoch once their executors are "
        "ready, and changes nothing else until `omnibus plan resume`",
    )


async def _resume_planning(store: Store, options: argparse.Namespace) -> None:
    epoch = (await store.plan_state()).pin
    await store.unpin_plan()
    text = f"epoch {epoch} is no longer pinned: the planner plans again" if epoch else "no epoch was pinned"
    _print_result(options, {"pin": 0, "was": epoch}, text)


def _print_result(options: argparse.Namespace, result: Mapping[str, Any], text: str) -> None:
    if options.json:
        print_json(result)
    else:
        print(text)


async def _show_or_set_cells(store: Store, options: argparse.Namespace) -> None:
    """Show the cells of the current plan. First set the share of one if the command has it."""
    plan = await _require_plan(store, 0)
    if options.model is not None:
        await _set_cell(store, options, plan)
    shares, parts = plan_format.cell_shares_by_model(plan), await store.cell_shares()
    if options.model is not None:
        shares = {options.model: shares[options.model]}
    if options.json:
        print_json(
            {
                name: {cell: {"share": share, "part": parts.get(f"{name}/{cell}", 1.0)} for cell, share in own.items()}
                for name, own in shares.items()
            }
        )
    elif shares:
        print("\n".join(plan_format.cell_lines(plan, shares, parts)))
    else:
        print("no model of the plan is in cells")


async def _set_cell(store: Store, options: argparse.Namespace, plan: Plan) -> None:
    """Set the part that a cell gets, if given. Raises ``NotFound`` and ``BadRequest``."""
    cells = plan_format.cell_shares_by_model(plan)
    if options.model not in cells:
        raise NotFound(f"model {options.model} has no cells in the plan; {', '.join(cells) or 'no model'} has")
    if options.cell is None:
        return
    if options.cell not in cells[options.model]:
        raise NotFound(f"model {options.model} has no cell {options.cell}; it has {', '.join(cells[options.model])}")
    if options.part is None or not (math.isfinite(options.part) and options.part >= 0):
        raise BadRequest("give the part of its planned share that the cell gets: 0 drains it, 1 is as planned")
    await store.put_cell_share(options.model, options.cell, options.part)


async def _require_plan(store: Store, epoch: int) -> Plan:
    """Return the plan of ``epoch``, 0 for the current one. Raises ``NotFound``."""
    stored_plan = await store.plan(epoch)
    if stored_plan is None:
        missing = f"no plan of epoch {epoch}: `omnibus plan history` lists those that are stored"
        raise NotFound(f"there is {missing if epoch else 'no plan yet'}")
    return stored_plan


async def _count_ready(
    options: argparse.Namespace, counts: Mapping[ExecutorKind, int]
) -> dict[ExecutorKind, int] | None:
    """Return the number of ready executors of each kind. Returns None if no bus is known or reachable."""
    url = _bus_url(options)
    if not url:
        return None
    try:
        bus = await NatsBus.connect(msgspec.structs.replace(read_settings(BusSettings), url=url), "cli")
    except BusUnavailable:
        return None
    try:
        ready = ReadyExecutors()
        await ready.listen(bus)
        await ready.wait_for_kinds(counts, CENSUS_WAIT_SECONDS)
        return {kind: ready.count_ready(kind) for kind in counts}
    finally:
        await bus.drain()


def _bus_url(options: argparse.Namespace) -> str:
    if options.nats or "OMNIBUS_BUS_URL" in os.environ:
        return str(options.nats or read_settings(BusSettings).url)
    try:
        return "" if options.store else runs.read_state().nats_url
    except StageUnavailable:
        return ""


async def store_profile(settings: StoreSettings, profile: ModelProfile) -> None:
    """Put ``profile`` into the store of ``settings``."""
    store = Store(settings)
    try:
        await store.put_profile(profile)
    finally:
        await store.close()
