"""``omnibus tail``, ``show`` and ``replay``: the record stream for people."""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus
from omnibus.cli.waterfall import graph, waterfall
from omnibus.errors import NotFound
from omnibus.settings import BusSettings, load
from omnibus.up import run

#: Seconds that a replay may keep silent.
PATIENCE = 120.0


async def connect(options: argparse.Namespace) -> NatsBus:
    """The bus that was named, that of the environment, or that of the running ``omnibus up``."""
    settings = load(BusSettings)
    if options.nats:
        settings = BusSettings(url=options.nats)
    elif "OMNIBUS_BUS_URL" not in os.environ:
        settings = BusSettings(url=run.read().nats_url)
    return await NatsBus.connect(settings, "cli")


async def tail(options: argparse.Namespace) -> int:
    bus = await connect(options)
    await bus.subscribe(subjects.RECORDS, lambda delivery: print(_line(delivery), flush=True))
    print("watching omnibus.inv.> (Ctrl-C ends)", file=sys.stderr)
    try:
        await asyncio.Event().wait()
    finally:
        await bus.drain()
    return 0


def _line(delivery: Delivery) -> str:
    record = json.loads(delivery.data)
    clock = time.strftime("%H:%M:%S")
    if record.get("kind") != "end":
        again = f" (replay of {record['replay_of']})" if record.get("replay_of") else ""
        return f"{clock} begin {record['id']}  {record['model']}  {record['type']}  via {record['path']}{again}"
    took = (record["finished"] - record["created"]) * 1000
    why = f"  {record['problem']['code']}: {record['problem']['message']}" if record.get("problem") else ""
    return f"{clock} end   {record['inv']}  {record['status']} after {took:.0f} ms{why}"


async def read(bus: NatsBus, id: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The recorded invocation ``id`` and its end, as plain JSON. Raises ``NotFound``."""
    records = [json.loads(found.data) for found in await bus.records(f"{subjects.ROOT}.inv.*.{id}")]
    begins = [record for record in records if record.get("kind") != "end"]
    ends = [record for record in records if record.get("kind") == "end"]
    if not begins:
        raise NotFound(f"no record of invocation {id}: watch for ids with `omnibus tail`")
    return begins[0], ends[-1] if ends else None


async def show(options: argparse.Namespace) -> int:
    bus = await connect(options)
    try:
        invocation, ended = await read(bus, options.id)
    finally:
        await bus.drain()
    if options.json:
        print(json.dumps({"invocation": invocation, "end": ended}))
        return 0
    print("\n".join(describe(invocation, ended)))
    return 0


def describe(invocation: dict[str, Any], ended: dict[str, Any] | None) -> list[str]:
    """Everything worth knowing about one invocation, as lines."""
    origin = f"  step {invocation['step']} of {invocation['parent']}" if invocation.get("parent") else ""
    lines = [f"{invocation['id']}  {invocation['model']}  seed {invocation['seed']}{origin}", *graph(invocation)]
    if ended is None:
        return [*lines, "it has not ended yet"]
    components = [node["component"] for node in invocation["nodes"]]
    moved = f", after {ended['attempts']} attempts" if ended.get("attempts", 1) > 1 else ""
    lines += [*waterfall(ended, components), f"status  {ended['status']}{moved}"]
    answer = ended.get("answer", {})
    if answer.get("text"):
        lines.append(f"answer  {answer['text'][:200]!r}")
    if answer.get("audio_seconds"):
        lines.append(f"sound   {answer['audio_seconds']:.2f} s, sha256 {answer['audio_sha256'][:16]}…")
    lines += [f"result  {name}  sha256 {digest[:16]}…" for name, digest in ended.get("outputs", {}).items() if digest]
    if ended.get("segments"):
        lines.append(f"then    {', '.join(ended['segments'])}  (it went on with these results: show them by their ids)")
    if problem := ended.get("problem"):
        lines.append(f"problem {problem['code']}: {problem['message']}")
    return lines


async def replay(options: argparse.Namespace) -> int:
    bus = await connect(options)
    try:
        invocation, _ = await read(bus, options.id)
        body = json.dumps(invocation, separators=(",", ":"), ensure_ascii=False).encode()
        last: dict[str, Any] = {}
        async for part in bus.requests(subjects.REPLAY, body, PATIENCE):
            last = json.loads(part)
            print(part.decode() if options.json else _progress(last), flush=True)
    finally:
        await bus.drain()
    return 0 if last.get("status") == "done" and last.get("identical") is not False else 1


def _progress(part: dict[str, Any]) -> str:
    if part["status"] == "running":
        return f"replaying {part['replay_of']} as {part['id']} via {part['path']}"
    if part["status"] == "failed":
        return f"failed: {part['problem']['code']}: {part['problem']['message']}"
    answer = part["answer"]
    said = f"answer  {answer['text'][:200]!r}" if answer.get("text") else "done"
    sound = f"\nsound   {answer['audio_seconds']:.2f} s" if answer.get("audio_seconds") else ""
    verdict = {True: "identical to the recorded answer", False: f"DIFFERENT: {part.get('why', 'the sound differs')}"}
    return f"{said}{sound}\n{verdict.get(part['identical'], 'not compared: ' + part.get('why', ''))}"
