"""``omnibus bisect``: finds the stage of a recorded invocation that differs, and the executors responsible."""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from omnibus.bus.messages import ExecutorStatus
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import REPLAY
from omnibus.cli import plans
from omnibus.cli.format.tables import fit_text, screen_width, table_lines
from omnibus.cli.invocations import REPLAY_IDLE_SECONDS, connect_bus
from omnibus.cli.output import print_json, report_not_compared
from omnibus.cluster.presence import ExecutorKind, ReadyExecutors, replica_counts
from omnibus.errors import BadRequest, OmnibusError
from omnibus.graph import Invocation, encode_invocation
from omnibus.recording import records
from omnibus.recording.bisect import FAILURE, ExecutorOutputs, StageComparison, compare_stages
from omnibus.recording.records import Record
from omnibus.store import Store

#: Seconds to wait for the status messages of executors.
CENSUS_SECONDS = 1.0
_INDENT = " " * 6


class BisectedSegment(NamedTuple):
    """Stages of one graph that ran again.

    ``responsible`` are the executors whose output of the last stage differs.
    """

    recorded: Invocation
    stages: Sequence[StageComparison]
    responsible: Sequence[str]


async def bisect_invocation(options: argparse.Namespace) -> int:
    """Print the stages up to the first that differs, over all segments. The exit code is 1 if one differs."""
    bus = await connect_bus(options)
    try:
        ready = await _ready_executors(bus)
        segments = list[BisectedSegment]()
        for record in await records.find_segments(bus, options.id):
            stages = await _bisect_segment(bus, record, ready, options)
            responsible = stages[-1].find_responsible(options.wrong) if stages and stages[-1].differs else []
            segments.append(BisectedSegment(record.invocation, stages, responsible))
            if responsible:
                break
    finally:
        await bus.drain()
    epochs = await _first_epochs(options)
    kinds = {status.id: ExecutorKind(status.model, status.option, status.origin) for status in ready}
    if options.json:
        print_json(_report(segments, kinds, epochs))
    else:
        print(fit_text("\n".join(line for segment in segments for line in _report_lines(segment, kinds, epochs))))
    if segments[-1].responsible:
        return 1
    if not any(stage.is_compared for segment in segments for stage in segment.stages):
        return report_not_compared(
            "no stage has recorded outputs, or another executor that can run it; OMNIBUS_GATEWAY_RECORD=stages keeps "
            "outputs, and --runs 2 compares an executor with itself",
            options.json,
        )
    return 0


async def _bisect_segment(
    bus: NatsBus, record: Record, ready: Sequence[ExecutorStatus], options: argparse.Namespace
) -> list[StageComparison]:
    invocation, end = record
    able = [[status.id for status in ready if node.task in status.tasks] for node in invocation.nodes]
    earlier = await _find_earlier(bus, options.after, invocation)

    async def run(route: tuple[str, ...]) -> Mapping[str, str]:
        if earlier is not None:
            await _run_route(bus, earlier, route)
        return await _run_route(bus, invocation, route)

    return await compare_stages(invocation, end, able, run, options.runs)


async def _ready_executors(bus: NatsBus) -> list[ExecutorStatus]:
    ready = ReadyExecutors()
    await ready.listen(bus)
    await asyncio.sleep(CENSUS_SECONDS)
    return sorted(ready.ready_statuses(), key=lambda status: status.id)


async def _find_earlier(bus: NatsBus, id: str, original: Invocation) -> Invocation | None:
    """Return the graph of request ``id`` with the stages of ``original``.

    It must run before ``original``. Returns None if ``id`` is empty, or if a later segment has no such graph.
    """
    if not id:
        return None
    tasks = [node.task for node in original.nodes]
    for record in await records.find_segments(bus, id):
        if [node.task for node in record.invocation.nodes] == tasks:
            return record.invocation
    if original.parent:
        return None
    raise BadRequest(f"{id} has other stages than {original.id}: name a request of the same type", param="after")


async def _run_route(bus: NatsBus, invocation: Invocation, route: Sequence[str]) -> Mapping[str, str]:
    headers = {"Omnibus-Route": ",".join(route), "Omnibus-Digests": "all"}
    last: dict[str, Any] = {}
    async for part in bus.request_stream(REPLAY, encode_invocation(invocation), REPLAY_IDLE_SECONDS, headers):
        last = json.loads(part)
    if last.get("status") == "done":
        return dict(last["digests"])
    problem = last.get("problem", {"code": "protocol_error", "message": "the gateway sent no answer"})
    return {FAILURE: f"{problem['code']}: {problem['message']}"}


async def _first_epochs(options: argparse.Namespace) -> dict[ExecutorKind, int]:
    """Return the first plan epoch that has each kind of executor; empty without a store."""
    epochs: dict[ExecutorKind, int] = {}
    with suppress(OmnibusError):
        store = Store(plans.store_settings(options))
        try:
            for entry in await store.plan_history(1000):
                for kind in replica_counts(entry.plan.models) if entry.plan is not None else ():
                    epochs[kind] = entry.epoch
        finally:
            await store.close()
    return epochs


def _report(
    segments: Sequence[BisectedSegment],
    kinds: Mapping[str, ExecutorKind],
    epochs: Mapping[ExecutorKind, int],
) -> dict[str, Any]:
    last = segments[-1]
    return {
        "segment": last.recorded.id,
        "stage": last.stages[-1].component if last.responsible else "",
        "stages": [
            {"segment": each.recorded.id, **msgspec.to_builtins(stage)} for each in segments for stage in each.stages
        ],
        "responsible": [
            {"executor": each, **kinds[each]._asdict(), "since_epoch": epochs.get(kinds[each], 0)}
            for each in last.responsible
        ],
    }


def _output_row(output: ExecutorOutputs, kind: ExecutorKind, epochs: Mapping[ExecutorKind, int]) -> list[str]:
    """Return the cells of an executor that ran a stage: its name, its version and its result."""
    outputs = "1 output" if output.compared == 1 else f"{output.compared} outputs"
    same = f"equal in {outputs}" if output.compared else "not compared"
    result = output.failure or (same if output.equal else "DIFFERENT")
    unsteady = "" if output.steady else ", and not the same in two runs"
    since = f", since plan epoch {epochs[kind]}" if kind in epochs else ""
    return [output.executor, f"({kind}{since})", f"{result}{unsteady}"]


def _report_lines(
    segment: BisectedSegment, kinds: Mapping[str, ExecutorKind], epochs: Mapping[ExecutorKind, int]
) -> list[str]:
    invocation, stages, responsible = segment
    lines = [f"{invocation.id}  {invocation.model}  plan epoch {invocation.epoch}"]
    for stage in stages:
        lines.append(f"  [{stage.node}] {stage.component}  compared with {stage.reference}")
        rows = [_output_row(each, kinds[each.executor], epochs) for each in stage.outputs]
        width = max(screen_width() - len(_INDENT), 0)
        lines += [f"{_INDENT}{line}" for line in (table_lines(rows[0], rows[1:], width) if rows else ())]
    if responsible:
        versions = ", ".join(dict.fromkeys(str(kinds[each]) for each in responsible))
        return [*lines, f"first difference: {stages[-1].component} on {', '.join(responsible)}, version {versions}"]
    unknown = ", ".join(stage.component for stage in stages if not stage.is_compared)
    return [*lines, f"no stage differs on any executor that is up{f'; not compared: {unknown}' if unknown else ''}"]
