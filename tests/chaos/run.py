"""One run: start the system, send requests, inject faults, wait for calm, judge, report."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos import requests, watch
from tests.chaos.attacks import crowd, media_server
from tests.chaos.faults import WEIGHTS, Injector, schedule
from tests.chaos.judge import Bounds, Violation, judge, judge_crowd
from tests.chaos.load import Load
from tests.chaos.outcome import Event, Record
from tests.chaos.requests import Request
from tests.chaos.stack import DEADLINE_SECONDS, Stack, started, watched

_SAMPLE_SECONDS = 2.0
_CALM_SECONDS = 120.0  # until all is ready again after the last fault, on a busy machine
_JOBS_SECONDS = 120.0
_LEASES_SECONDS = DEADLINE_SECONDS + 10.0
_ATTACK_SECONDS = 60.0
_CALIBRATION_SECONDS = 10.0
_STALL_SECONDS = 0.1  # between two looks for a stall of this process
_QUICK = ("text", "image", "simulated", "app")


@dataclass(frozen=True)
class Options:
    """Contents of a run.

    ``overload``: the load as a multiple of the capacity. ``hostile``: the number of hostile inputs. If both are 0,
    faults are injected. ``late``: seconds after its deadline by which a request must have ended. A busy machine needs
    more.
    """

    seed: int
    minutes: float = 2.0
    verbs: frozenset[str] = frozenset({"kill", "stop", "term", "fill"})
    roles: frozenset[str] = frozenset()
    clients: int = 4
    attacks: bool = True
    overload: float = 0.0
    hostile: int = 0
    late: float = 2.0
    nodes: int = 1


@dataclass(frozen=True)
class Result:
    """A run and its judgement; ``restarts`` and ``alone`` (seconds) of crowds."""

    record: Record
    violations: list[Violation]
    log: str
    restarts: int = 0
    alone: tuple[float, ...] = ()


def run(options: Options) -> Result:
    """Start a system, run against it, stop it."""
    with tempfile.TemporaryDirectory(prefix="omnibus-chaos-") as name:
        with started(Path(name), options.nodes) as stack:
            scenario = _crowd if options.overload or options.hostile else _chaos
            record, restarts, alone = asyncio.run(scenario(stack, options))
        record.leftovers = stack.leftovers
    bounds = Bounds(deadline_seconds=DEADLINE_SECONDS, late_seconds=options.late)
    if options.hostile or options.overload:
        violations = judge_crowd(record, alone if options.hostile else (), restarts, bounds)
    else:
        violations = judge(record, bounds)
    return Result(record, violations, stack.system.log, restarts, alone)


async def _chaos(stack: Stack, options: Options) -> tuple[Record, int, tuple[float, ...]]:
    async with _opened(stack, options) as (record, load):
        until = record.seconds
        async with asyncio.TaskGroup() as group:
            for number in range(1, options.clients + 1):
                group.create_task(load.client(number, until))
            group.create_task(load.jobs(until))
            group.create_task(_faults(stack, record, load, options, until))
            if options.attacks:
                group.create_task(_attacks(stack, record, min(until, _ATTACK_SECONDS)))
        await _calm(stack, record, load)
    return record, 0, ()


async def _faults(stack: Stack, record: Record, load: Load, options: Options, until: float) -> None:
    async with asyncio.TaskGroup() as probes:

        def note(event: Event) -> None:
            record.events.append(event)
            why = f" skipped: {event.skipped}" if event.skipped else ""
            print(f"{event.at:6.1f} s  {event.name} {event.victim}{why}", flush=True)
            if not event.skipped:
                probes.create_task(load.probe(event))

        injector = Injector(stack, note)
        for fault in schedule(options.seed, set(options.verbs), set(options.roles) or {role for role, _ in WEIGHTS}):
            await asyncio.sleep(fault.pause)
            # Time to be seen to recover is part of the run.
            if stack.now + fault.seconds > until - 5.0 or not stack.runs:
                return
            await injector.inject(fault)


async def _attacks(stack: Stack, record: Record, seconds: float) -> None:
    record.attacks += await crowd(stack.system.urls, 2, seconds)


async def _crowd(stack: Stack, options: Options) -> tuple[Record, int, tuple[float, ...]]:
    """Run good clients alone, then together with hostile or too many requests."""
    async with _opened(stack, options) as (record, load):
        calm = Record(options.seed, _CALIBRATION_SECONDS, answers=record.answers)
        before = await asyncio.to_thread(watch.look, stack)
        await _alone(stack, Load(stack, calm), options.clients)
        alone = tuple(outcome.seconds for outcome in calm.outcomes if outcome.ok)
        begin, until = stack.now, stack.now + 60 * options.minutes
        async with asyncio.TaskGroup() as group:
            others = group.create_task(_others(load, until))
            if options.hostile:
                group.create_task(_hostile(load, record, options, others))
            else:
                rate = options.overload * len(alone) / _CALIBRATION_SECONDS
                group.create_task(_flood(load, record, rate, begin, until, stack))
        after = await asyncio.to_thread(watch.look, stack)
        restarts = watch.restarts(before, after)
        await _calm(stack, record, load)
    return record, restarts, alone


async def _alone(stack: Stack, load: Load, clients: int) -> None:
    until = stack.now + _CALIBRATION_SECONDS
    await asyncio.gather(*(load.client(900 + number, until, _quick) for number in range(clients)))


async def _others(load: Load, until: float) -> None:
    await asyncio.gather(*(load.client(800 + number, until, _quick) for number in range(2)))


def _quick(dice: Random) -> Request:
    return requests.good(dice.choice(_QUICK), dice.random() < 0.4)


async def _hostile(load: Load, record: Record, options: Options, others: "asyncio.Task[None]") -> None:
    numbers = iter(range(options.hostile))

    async def one_after_another() -> None:
        for number in numbers:
            dice = Random(f"{options.seed} hostile {number}")
            outcome = await load.send(number, load.hostile(dice), dice.randrange(2))
            record.outcomes.append(outcome)

    await asyncio.gather(*(one_after_another() for _ in range(4)))
    others.cancel()


async def _flood(load: Load, record: Record, rate: float, begin: float, until: float, stack: Stack) -> None:
    """Send ``rate`` requests a second, without waiting for answers."""

    async def one(number: int) -> None:
        dice = Random(f"{record.seed} flood {number}")
        record.outcomes.append(await load.send(number, _quick(dice), dice.randrange(2)))

    async with asyncio.TaskGroup() as group:
        number = 0
        while stack.now < until:
            group.create_task(one(number))
            number += 1
            await asyncio.sleep(max(0.0, begin + number / rate - stack.now))


@contextlib.asynccontextmanager
async def _opened(stack: Stack, options: Options) -> AsyncIterator[tuple[Record, Load]]:
    """Yield a ready, watched system with its undisturbed answers."""
    record = Record(options.seed, 60 * options.minutes)
    await stack.system.becomes_ready()
    async with media_server() as server:
        load = Load(stack, record, server if options.attacks or options.hostile else "")
        await load.undisturbed()
        stack.restart_clock()
        stalls = asyncio.create_task(_watch_stalls(record))
        try:
            async with watched(stack, _SAMPLE_SECONDS, lambda: record.samples.extend(watch.look(stack))):
                yield record, load
        finally:
            stalls.cancel()


async def _watch_stalls(record: Record) -> None:
    """Record how late this process itself is: measurements of its clients are late by as much."""
    while True:
        due = time.monotonic() + _STALL_SECONDS
        await asyncio.sleep(_STALL_SECONDS)
        record.stalled_seconds = max(record.stalled_seconds, time.monotonic() - due)


async def _calm(stack: Stack, record: Record, load: Load) -> None:
    """Wait until everything serves, jobs have ended, and no block is leased."""
    if not stack.runs:
        return
    if missing := await stack.settled(_CALM_SECONDS):
        record.notes.append(missing)
    await load.all_once()
    await load.jobs_end(_JOBS_SECONDS)
    record.blocks_left = await stack.blocks(_LEASES_SECONDS)
