"""``omnibus plan show | diff | history | rollback | resume``: the plans of the store, for people."""

import argparse
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from omnibus.bus.nats import NatsBus
from omnibus.cli.format import plan as plan_format
from omnibus.cli.format.tables import table
from omnibus.cluster.desired import Kind, counts
from omnibus.cluster.monitor.plan_diff import differences
from omnibus.cluster.presence import ReadyExecutors
from omnibus.errors import BadRequest, BusUnavailable, NotFound, StageUnavailable
from omnibus.plan import Plan
from omnibus.settings import BusSettings, StoreSettings, load
from omnibus.store import Store
from omnibus.up import run_dir

#: Seconds that executors have to say that they are up; those that do not count as down.
ANSWERS_WITHIN = 1.0


async def plan(options: argparse.Namespace) -> int:
    """The command that was named below ``omnibus plan``."""
    commands: dict[str, Callable[[Store, argparse.Namespace], Awaitable[None]]] = {
        "show": _show,
        "diff": _diff,
        "history": _history,
        "rollback": _rollback,
        "resume": _resume,
    }
    store = Store(settings(options))
    try:
        await commands[options.plan_command](store, options)
    finally:
        await store.close()
    return 0


def settings(options: argparse.Namespace) -> StoreSettings:
    """The store that was named, that of the environment, or that of the running ``omnibus up``."""
    settings = load(StoreSettings)
    if not options.store and "OMNIBUS_STORE_URL" in os.environ:
        return settings
    return msgspec.structs.replace(settings, url=options.store or run_dir.read().store_url)


async def _show(store: Store, options: argparse.Namespace) -> None:
    plan = await _kept(store, options.epoch)
    stand = await store.stand()
    staged = await store.staged() if stand.staged and plan.epoch == stand.epoch else None
    wanted = {**counts(plan.models), **(counts(staged.models) if staged is not None else {})}
    up = await _up(options, wanted)
    problems = await store.problems() if plan.epoch == stand.epoch else {}
    if options.json:
        told = {
            "plan": msgspec.to_builtins(plan),
            "staged": msgspec.to_builtins(staged),
            "pin": stand.pin,
            "problems": msgspec.to_builtins(problems),
            "up": None if up is None else [{**kind._asdict(), "count": count} for kind, count in up.items()],
        }
        print(json.dumps(told))
        return
    lacks = plan_format.lacking(counts(staged.models), up) if staged is not None and up is not None else ""
    print("\n".join([*plan_format.head(plan, staged, lacks, stand.pin, problems), "", *plan_format.shown(plan, up)]))


async def _diff(store: Store, options: argparse.Namespace) -> None:
    before, after = await _two(store, options.epochs)
    rows = list(differences(before, after))
    if options.json:
        changes = [{"what": what, "before": old, "after": new} for what, old, new in rows]
        print(json.dumps({"before": before.epoch, "after": after.epoch, "changes": changes}))
    elif rows:
        print("\n".join(table(["WHAT", f"EPOCH {before.epoch}", f"EPOCH {after.epoch}"], rows)))
    else:
        print(f"epochs {before.epoch} and {after.epoch} do the same")


async def _two(store: Store, epochs: list[int]) -> tuple[Plan, Plan]:
    """The plans to compare: without epochs what is staged, or what came last, with the one before."""
    if len(epochs) > 2:
        raise BadRequest(f"{len(epochs)} epochs: name two at most")
    if len(epochs) == 2:
        return await _kept(store, epochs[0]), await _kept(store, epochs[1])
    current = await _kept(store, 0)
    if epochs:
        return await _kept(store, epochs[0]), current
    staged = await store.staged()
    if staged is not None:
        return current, staged
    earlier = [each.plan for each in await store.history(2) if each.epoch < current.epoch]
    if not earlier or earlier[0] is None:
        raise NotFound(f"there is no plan before epoch {current.epoch} to compare it with")
    return earlier[0], current


async def _history(store: Store, options: argparse.Namespace) -> None:
    stand, history = await store.stand(), await store.history(options.limit)
    if options.json:
        print(json.dumps([_brief(each.epoch, each.plan, each.fault) for each in history]))
    else:
        print("\n".join(plan_format.past(history, stand.epoch, stand.pin)))


def _brief(epoch: int, plan: Plan | None, fault: str) -> dict[str, Any]:
    if plan is None:
        return {"epoch": epoch, "fault": fault}
    executors = {f"{kind.model}/{kind.option}": count for kind, count in counts(plan.models).items()}
    return {"epoch": epoch, "created": plan.created, "reason": plan.reason, "executors": executors}


async def _rollback(store: Store, options: argparse.Namespace) -> None:
    await store.pin_plan(options.epoch)
    _say(
        options,
        {"pin": options.epoch},
        f"epoch {options.epoch} is pinned: the planner serves its models as a new epoch once their executors are "
        "ready, and changes nothing else until `omnibus plan resume`",
    )


async def _resume(store: Store, options: argparse.Namespace) -> None:
    pinned = (await store.stand()).pin
    await store.unpin_plan()
    told = f"epoch {pinned} is pinned no more: the planner plans again" if pinned else "no epoch was pinned"
    _say(options, {"pin": 0, "was": pinned}, told)


def _say(options: argparse.Namespace, told: Mapping[str, Any], text: str) -> None:
    print(json.dumps(told) if options.json else text)


async def _kept(store: Store, epoch: int) -> Plan:
    """The plan of ``epoch``, 0 for the current one. Raises ``NotFound``."""
    found = await store.plan(epoch)
    if found is None:
        named = f"no plan of epoch {epoch}: `omnibus plan history` lists those that are kept"
        raise NotFound(f"there is {named if epoch else 'no plan yet'}")
    return found


async def _up(options: argparse.Namespace, wanted: Mapping[Kind, int]) -> dict[Kind, int] | None:
    """Return the number of ready executors of each kind; None when there is no bus, or it cannot be reached."""
    url = _bus_url(options)
    if not url:
        return None
    try:
        bus = await NatsBus.connect(msgspec.structs.replace(load(BusSettings), url=url), "cli")
    except BusUnavailable:
        return None
    try:
        ready = ReadyExecutors()
        await ready.listen(bus)
        await ready.wait(wanted, ANSWERS_WITHIN)
        return {kind: ready.count(kind) for kind in wanted}
    finally:
        await bus.drain()


def _bus_url(options: argparse.Namespace) -> str:
    if options.nats or "OMNIBUS_BUS_URL" in os.environ:
        return str(options.nats or load(BusSettings).url)
    try:
        return "" if options.store else run_dir.read().nats_url
    except StageUnavailable:
        return ""
