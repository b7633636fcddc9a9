"""``omnibus step`` and ``fork``: a recorded invocation edge by edge, and again with a changed input."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.cli.format.tables import fit_text, size_text
from omnibus.cli.gateway import Gateway, find_gateway
from omnibus.cli.invocations import REPLAY_IDLE_SECONDS, connect_bus, failure_text, start_text
from omnibus.cli.output import print_json
from omnibus.errors import OmnibusError
from omnibus.graph import encode_invocation
from omnibus.recording import records
from omnibus.recording.records import Record
from omnibus.recording.steps import (
    Step,
    StepValue,
    build_steps,
    find_node,
    fork_invocation,
    parse_change,
    start_headers,
)

#: Suffixes of the files for saved contents, by media type.
_ENDINGS = {
    "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "audio/wav": "wav", "audio/mpeg": "mp3",
    "video/mp4": "mp4", "text/plain": "txt", "application/json": "json",
}  # fmt: skip
#: Characters of a digest.
_DIGEST_CHARS = 12
#: Characters by which the later lines of a value are indented.
_VALUE_INDENT = 6


async def show_steps(options: argparse.Namespace) -> int:
    """Print each step of an invocation. On a terminal, Enter prints the next step and ``q`` ends the command."""
    (record,) = await read_records(options, options.id)
    steps = build_steps(*record)
    if options.at:
        steps = (steps[find_node(record.invocation, options.at)],)
    if options.json:
        print_json(steps)
        return 0
    gateway = find_gateway(options) if options.save else None
    waits = not options.all and sys.stdin.isatty() and sys.stdout.isatty()
    for number, step in enumerate(steps, 1):
        print(fit_text("\n".join(step_lines(step, options.id)), _VALUE_INDENT))
        if gateway is not None:
            _save_contents(gateway, options.id, step, Path(options.save))
        if waits and number < len(steps) and (await asyncio.to_thread(input, "— Enter: next, q: end ")).strip() == "q":
            break
    if record.ended is not None and record.ended.segments:
        print(f"it continued in {', '.join(record.ended.segments)}: step through these by their ids", file=sys.stderr)
    if any(_is_missing(value) for step in steps for value in (*step.inputs, *step.outputs)):
        print("set OMNIBUS_GATEWAY_RECORD=stages to keep the values between stages", file=sys.stderr)
    return 0


def step_lines(step: Step, id: str) -> Iterator[str]:
    """Yield the lines of one step of the invocation ``id``. A value is a text, or a size with a digest."""
    took = "" if step.seconds is None else f" in {step.seconds * 1000:.0f} ms"
    yield f"[{step.node}] {step.component} on {step.executor} ({step.option}): {step.state}{took}"
    for value in step.inputs:
        yield f"  ← {_value_text(value)}"
    for value in step.outputs:
        yield f"  → {_value_text(value)}"
    if step.changeable:
        start = "" if step.forkable or not step.node else ", and runs all stages"
        yield f"  a fork can change {', '.join(step.changeable)}{start}:"
        yield f"    omnibus fork {id} {step.node} INPUT=VALUE"


def _is_missing(value: StepValue) -> bool:
    return not (value.source or value.text or value.mime)


def _value_text(value: StepValue) -> str:
    if value.source:
        return f"{value.name}: from {value.source}"
    if value.text:
        return f"{value.name}: {value.text}"
    digest = (value.digest or value.sha256)[:_DIGEST_CHARS]
    size = f"{size_text(value.nbytes)} " if value.nbytes else ""
    kind = value.mime if value.mime not in ("", "*/*") else ""
    note = "not kept" if _is_missing(value) else ""
    return f"{value.name}: {' '.join(filter(None, [size.strip(), kind, f'sha256 {digest}…' if digest else '', note]))}"


def _save_contents(gateway: Gateway, id: str, step: Step, directory: Path) -> None:
    """Write the step's values that the gateway has into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for side, values in (("inputs", step.inputs), ("outputs", step.outputs)):
        for value in values:
            if not value.mime:
                continue
            try:
                mime, body = gateway.read_file(f"/v1/invocations/{id}/steps/{step.node}/{side}/{value.name}")
            except OmnibusError as error:
                print(f"  {side} {value.name}: {error}", file=sys.stderr)
                continue
            path = directory / f"{step.node}-{step.component}-{side}-{value.name}.{_ENDINGS.get(mime, 'bin')}"
            path.write_bytes(body)
            print(f"  saved {path} ({size_text(len(body))})")


async def fork_and_print(options: argparse.Namespace) -> int:
    """Run an invocation again with one input changed. It starts at the changed stage if earlier results were kept."""
    bus = await connect_bus(options)
    try:
        record = await records.find_record(bus, options.id)
        node = find_node(record.invocation, options.stage)
        changes = dict(parse_change(each) for each in options.changes)
        last = await _run_fork(bus, record, node, options, changes)
    finally:
        await bus.drain()
    if record.ended is not None and record.ended.segments:
        later = ", ".join(record.ended.segments)
        print(
            f"{later} did not run: the record does not contain what the app does with another result", file=sys.stderr
        )
    return 0 if last.get("status") == "done" else 1


async def _run_fork(
    bus: NatsBus, record: Record, node: int, options: argparse.Namespace, changes: dict[str, Any]
) -> dict[str, Any]:
    fork = fork_invocation(record.invocation, node, changes, options.seed)
    start = start_headers(*record, node) or None
    last: dict[str, Any] = {}
    async for part in bus.request_stream(subjects.REPLAY, encode_invocation(fork), REPLAY_IDLE_SECONDS, start):
        last = {**last, **json.loads(part)}
        print(part.decode() if options.json else fit_text(_fork_text(last)), flush=True)
    return last


def _fork_text(part: dict[str, Any]) -> str:
    if part["status"] == "running":
        return f"forked {part['replay_of']} as {part['id']} via {part['path']}{start_text(part)}"
    if part["status"] == "failed":
        return failure_text(part)
    text = part["answer"].get("text", "")
    verdicts = {True: "the same as before", False: "different from before", None: "not compared"}
    why = f" ({part['why']})" if part.get("why") else ""
    answer = f"answer  {text[:200]!r}\n" if text else ""
    beside = f"side by side:\n  omnibus compare {part.get('replay_of', 'ID')} {part['id']}"
    return f"{answer}{verdicts[part.get('identical')]}{why}; {beside}"


async def read_records(options: argparse.Namespace, *ids: str) -> list[Record]:
    bus = await connect_bus(options)
    try:
        return [await records.find_record(bus, id) for id in ids]
    finally:
        await bus.drain()
