"""``omnibus tail``, ``show`` and ``replay``: the record stream for people."""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

import msgspec
from msgspec import UNSET

from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus
from omnibus.cli.format.tables import fit_text
from omnibus.cli.output import print_json, report_not_compared
from omnibus.cli.sessions import SESSION_PREFIX, show_session
from omnibus.cli.waterfall import graph_lines, usage_lines, waterfall_lines
from omnibus.graph import Invocation, encode_invocation
from omnibus.recording import records
from omnibus.recording.records import EndRecord
from omnibus.recording.waterfall import build_waterfall
from omnibus.settings import BusSettings, read_settings
from omnibus.up import runs

#: Seconds to wait for a server, short because a person waits for the prompt.
CONNECT_TIMEOUT_SECONDS = 3.0
#: Characters of the time and the event at the start of a line of ``tail``.
_CLOCK_CHARS = 15
#: Seconds to wait for the next part of a replay.
REPLAY_IDLE_SECONDS = 120.0


async def connect_bus(options: argparse.Namespace) -> NatsBus:
    """Connect to the bus of ``--nats``, the environment or the run."""
    settings = read_settings(BusSettings)
    if options.nats:
        settings = BusSettings(url=options.nats)
    elif "OMNIBUS_BUS_URL" not in os.environ:
        state = runs.read_state()
        settings = BusSettings(url=state.nats_url, tls_ca=state.bus_ca)
    return await NatsBus.connect(msgspec.structs.replace(settings, connect_timeout=CONNECT_TIMEOUT_SECONDS), "cli")


async def tail_records(options: argparse.Namespace) -> int:
    bus = await connect_bus(options)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def print_delivery(delivery: Delivery) -> None:
        try:
            _print_records(delivery, options.json)
        except BrokenPipeError as error:  # the reader of the pipe has ended
            if not over.done():
                over.set_exception(error)

    await bus.subscribe(subjects.RECORDS, print_delivery)
    print("watching omnibus.inv.> (Ctrl-C ends)", file=sys.stderr)
    try:
        await over
    finally:
        await bus.drain()
    return 0


def _print_records(delivery: Delivery, as_json: bool) -> None:
    for part in records.split_records(delivery.data):
        if part:
            print(part.decode().strip() if as_json else fit_text(_record_line(part), _CLOCK_CHARS), flush=True)


def _record_line(data: bytes) -> str:
    record = json.loads(data)
    clock = time.strftime("%H:%M:%S")
    if record.get("kind") != "end":
        again = f" (replay of {record['replay_of']})" if record.get("replay_of") else ""
        return f"{clock} begin {record['id']}  {record['model']}  {record['type']}  via {record['path']}{again}"
    took = (record["finished"] - record["created"]) * 1000
    why = f"  {record['problem']['code']}: {record['problem']['message']}" if record.get("problem") else ""
    return f"{clock} end   {record['inv']}  {record['status']} after {took:.0f} ms{why}"


async def show_invocation(options: argparse.Namespace) -> int:
    bus = await connect_bus(options)
    try:
        if options.id.startswith(SESSION_PREFIX):
            return await show_session(bus, options)
        record = await records.find_record(bus, options.id)
    finally:
        await bus.drain()
    if options.json:
        whole = {"invocation": record.invocation, "end": record.ended, "waterfall": build_waterfall(*record)}
        print_json(whole)
        return 0
    print(fit_text("\n".join(invocation_lines(*record))))
    return 0


def invocation_lines(invocation: Invocation, end: EndRecord | None) -> list[str]:
    """Return the full record of one invocation, as lines."""
    origin = f"  step {invocation.step} of {invocation.parent}" if invocation.parent else ""
    again = f"  replay of {invocation.replay_of}" if invocation.replay_of else ""
    lines = [f"{invocation.id}  {invocation.model}  seed {invocation.seed}{origin}{again}"]
    if end is None:
        return [*lines, *graph_lines(invocation), "it has not ended yet"]
    retry_text = f", after {end.attempts} attempts" if end.attempts > 1 else ""
    lines += [*graph_lines(invocation, end.route), *waterfall_lines(build_waterfall(invocation, end))]
    lines.append(f"status  {end.status}{retry_text}")
    if end.usage is not None:
        lines += usage_lines(end.usage)
    answer = end.answer
    if answer.text:
        lines.append(f"answer  {answer.text[:200]!r}")
    if answer.audio_seconds:
        lines.append(f"audio   {answer.audio_seconds:.2f} s, sha256 {answer.audio_sha256[:16]}…")
    lines += [f"result  {name}  sha256 {digest[:16]}…" for name, digest in end.outputs.items() if digest]
    if end.segments:
        lines.append(f"then    {', '.join(end.segments)}  (segments that used these results: show them by their ids)")
    if end.called is not UNSET:
        lines.append(f"called  {', '.join(end.called)}  (images that its model called for)")
    if end.caller is not UNSET:
        lines.append(f"for     {end.caller}  (its model called for this image)")
    if end.problem is not None:
        lines.append(f"problem {end.problem.code}: {end.problem.message}")
    return lines


async def replay_invocation(options: argparse.Namespace) -> int:
    bus = await connect_bus(options)
    try:
        last = await replay_and_print(
            bus, (await records.find_record(bus, options.id)).invocation, options.json, _replay_headers(options)
        )
    finally:
        await bus.drain()
    if last.get("status") == "done" and last.get("identical") is None:
        return report_not_compared(last.get("why", "the gateway gave no reason"), options.json)
    return 0 if last.get("status") == "done" and last["identical"] else 1


def _replay_headers(options: argparse.Namespace) -> dict[str, str]:
    """Return the headers of the request, see ``omnibus_gateway.rerun.options``."""
    wishes = {"Omnibus-From": options.start, "Omnibus-Path": options.path, "Omnibus-Route": options.route}
    return {name: value for name, value in wishes.items() if value}


async def replay_and_print(
    bus: NatsBus, invocation: Invocation, plain: bool, wishes: dict[str, str] | None = None
) -> dict[str, Any]:
    """Replay ``invocation`` and print its progress, as JSON if ``plain``. Returns the last status."""
    last: dict[str, Any] = {}
    async for part in bus.request_stream(
        subjects.REPLAY, encode_invocation(invocation), REPLAY_IDLE_SECONDS, wishes or None
    ):
        last = json.loads(part)
        print(part.decode() if plain else fit_text(_progress_text(last)), flush=True)
    return last


def failure_text(part: dict[str, Any]) -> str:
    """Return the reason for which a replay or a fork failed."""
    return f"failed: {part['problem']['code']}: {part['problem']['message']}"


def _progress_text(part: dict[str, Any]) -> str:
    if part["status"] == "running":
        return f"replaying {part['replay_of']} as {part['id']} via {part['path']}{start_text(part)}"
    if part["status"] == "failed":
        return failure_text(part)
    answer = part["answer"]
    text = f"answer  {answer['text'][:200]!r}" if answer.get("text") else "done"
    audio = f"\naudio   {answer['audio_seconds']:.2f} s" if answer.get("audio_seconds") else ""
    return f"{text}{audio}\n{verdict_text(part)}"


def start_text(part: dict[str, Any]) -> str:
    """Return the node at which a replay or a fork starts. The text is empty for the beginning."""
    return f" from node {part['from']}" if part.get("from") else ""


def verdict_text(part: dict[str, Any]) -> str:
    """Return how a replay compares with its record. The text lists the compared values."""
    comparisons = "".join(f"\n  compared {each}" for each in part.get("compared", ()))
    if part.get("identical"):
        return f"identical to the recorded answer{comparisons}"
    verdict = "not compared" if part.get("identical") is None else "DIFFERENT"
    return f"{verdict}: {part.get('why', '')}{comparisons}"
