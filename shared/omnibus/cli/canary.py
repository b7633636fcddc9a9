"""``omnibus canary``: try another version of a part of a model next to the one that serves."""

import argparse
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from omnibus.canary.candidate import (
    DIFFERED,
    FAILED,
    PAIRS,
    SERVED,
    SERVED_FAILED,
    SLOWER,
    Candidate,
    GateRules,
    OptionChange,
    check_candidate,
    overlay_model,
    without_candidate,
)
from omnibus.cli import plans
from omnibus.cli.format.tables import fit_text, table_lines
from omnibus.cli.output import print_json
from omnibus.errors import Conflict, NotFound
from omnibus.plan import ModelPlan
from omnibus.store import Store

#: Findings shown for each candidate.
SHOWN_FINDINGS = 5


async def run_canary(options: argparse.Namespace) -> int:
    """Run the subcommand of ``omnibus canary`` in ``options``."""
    commands: dict[str, Callable[[Store, argparse.Namespace], Awaitable[None]]] = {
        "start": _start_candidate,
        "status": _show_status,
        "promote": _promote_candidate,
        "abort": _abort_candidate,
    }
    store = Store(plans.store_settings(options))
    try:
        await commands[options.canary_command](store, options)
    finally:
        await store.close()
    return 0


async def _start_candidate(store: Store, options: argparse.Namespace) -> None:
    model = await _planned_model(store, options.model)
    before = (await store.candidates()).get(options.model)
    if before is not None and before.is_active:
        raise Conflict(f"{options.model} already has a candidate ({before.state}): abort or promote it first")
    candidate = (before or Candidate("", options.model)).next_candidate(**_candidate_fields(options))
    base = overlay_model(without_candidate(model), msgspec.structs.replace(candidate, state="aborted"))
    check_candidate(candidate, base)
    await store.put_candidate(candidate, before)
    _print_result(
        options,
        candidate,
        f"{candidate.model}: {candidate.describe()} is tried in the shadow once its executors are ready; "
        "see `omnibus canary status`",
    )


def _candidate_fields(options: argparse.Namespace) -> dict[str, Any]:
    # Executors have another working directory.
    checkpoint = str(Path(options.checkpoint).absolute()) if _is_path(options.checkpoint) else options.checkpoint
    changes = (OptionChange(options.option, checkpoint, options.dtype, options.engine, options.batch),)
    now = round(time.time(), 3)
    return {
        "id": secrets.token_hex(4),
        "changes": changes if options.option else (),
        "path": tuple(options.path.split(">")) if options.path else (),
        "replicas": options.replicas,
        "mirror": options.mirror,
        "share": options.share,
        "promote": options.auto,
        "within": options.within,
        "rules": GateRules(options.tolerance, options.score, options.slack),
        "created": now,
        "since": now,
    }


def _is_path(checkpoint: str) -> bool:
    return bool(checkpoint) and Path(checkpoint).exists()


async def _planned_model(store: Store, name: str) -> ModelPlan:
    plan = await store.plan()
    models = plan.models if plan is not None else {}
    if name not in models:
        raise NotFound(f"unknown model {name!r}: the plan has {', '.join(sorted(models)) or 'none'}", param="model")
    return models[name]


async def _promote_candidate(store: Store, options: argparse.Namespace) -> None:
    before = await _require_candidate(store, options.model)
    if not before.is_active:
        raise Conflict(f"the candidate for {before.model} is {before.state}: start it again")
    after = before.enter_state("promoted", "promoted by an operator", time.time())
    await store.put_candidate(after, before)
    _print_result(options, after, f"{after.model}: {after.describe()} takes over once its executors are ready")


async def _abort_candidate(store: Store, options: argparse.Namespace) -> None:
    before = await _require_candidate(store, options.model)
    after = before.enter_state("aborted", f"aborted by an operator, after it was {before.state}", time.time())
    text = f"{after.model}: {after.describe()} ends"
    if before.state == "promoted":
        text = f"{after.model}: {after.describe()} is reverted once the executors of the earlier version are ready"
    elif not before.is_active:
        after = msgspec.structs.replace(after, base=(), base_path=())
        text = f"{after.model}: all promotions are reverted: the model is as declared"
    await store.put_candidate(after, before)
    _print_result(options, after, text)


async def _require_candidate(store: Store, model: str) -> Candidate:
    candidate = (await store.candidates()).get(model)
    if candidate is None:
        raise NotFound(f"there is no candidate for {model!r}: see `omnibus canary status`")
    return candidate


async def _show_status(store: Store, options: argparse.Namespace) -> None:
    entries = [
        (each, await store.counts(each.id), await store.findings(each.id))
        for each in (await store.candidates()).values()
    ]
    if options.json:
        print_json([{**msgspec.to_builtins(each), "counts": counts, "findings": bad} for each, counts, bad in entries])
    elif entries:
        rows = [_status_row(each, counts) for each, counts, _ in entries]
        head = ["MODEL", "STATE", "WHAT", "COMPARED", "FAILED", "SLOWER", "DIFFERED", "SERVED"]
        print("\n".join(table_lines(head, rows)))
        for each, _, findings in entries:
            print(fit_text("\n".join(_detail_lines(each, findings)), 4))
    else:
        print("no candidate was started yet: omnibus canary start --help")


def _status_row(candidate: Candidate, counts: Mapping[str, int]) -> list[str]:
    served_text = f"{counts.get(SERVED, 0)}, {counts.get(SERVED_FAILED, 0)} failed" if counts.get(SERVED) else "-"
    numbers = [str(counts.get(name, 0)) for name in (PAIRS, FAILED, SLOWER, DIFFERED)]
    return [candidate.model, candidate.state, candidate.describe(), *numbers, served_text]


def _detail_lines(candidate: Candidate, findings: list[dict[str, Any]]) -> list[str]:
    why = [f"{candidate.model}: {candidate.state}: {candidate.reason}"] if candidate.reason else []
    return [
        *why,
        *(f"  {each['id']}  {each['outcome']}  {each['what']}" for each in findings[:SHOWN_FINDINGS]),
    ]


def _print_result(options: argparse.Namespace, candidate: Candidate, text: str) -> None:
    if options.json:
        print_json(candidate)
    else:
        print(text)
