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
from tests.chaos.attacks import media_server, open_crowd
from tests.chaos.faults import WEIGHTS, Injector, schedule_faults
from tests.chaos.judge import Bounds, Violation, judge_crowd, judge_record
from tests.chaos.load import ChaosLoad
from tests.chaos.outcome import FaultEvent, Record
from tests.chaos.requests import ChaosRequest
from tests.chaos.stack import DEADLINE_SECONDS, Stack, start_stack, watch_stack

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


def run_chaos(options: Options) -> Result:
    """Start a system, run against it, stop it."""
    with tempfile.TemporaryDirectory(prefix="omnibus-chaos-") as name:
        with start_stack(Path(name), options.nodes) as stack:
            scenario = _crowd_scenario if options.overload or options.hostile else _chaos_scenario
            record, restarts, alone = asyncio.run(scenario(stack, options))
        record.leftovers = stack.leftovers
    bounds = Bounds(deadline_seconds=DEADLINE_SECONDS, late_seconds=options.late)
    if options.hostile or options.overload:
        violations = judge_crowd(record, alone if options.hostile else (), restarts, bounds)
    else:
        violations = judge_record(record, bounds)
    return Result(record, violations, stack.system.log, restarts, alone)


async def _chaos_scenario(stack: Stack, options: Options) -> tuple[Record, int, tuple[float, ...]]:
    async with _open_system(stack, options) as (record, load):
        until = record.seconds
        async with asyncio.TaskGroup() as group:
            for number in range(1, options.clients + 1):
                group.create_task(load.client(number, until))
            group.create_task(load.jobs(until))
            group.create_task(_inject_faults(stack, record, load, options, until))
            if options.attacks:
                group.create_task(_send_attacks(stack, record, min(until, _ATTACK_SECONDS)))
        await _wait_calm(stack, record, load)
    return record, 0, ()


async def _inject_faults(stack: Stack, record: Record, load: ChaosLoad, options: Options, until: float) -> None:
    async with asyncio.TaskGroup() as probes:

        def note_event(event: FaultEvent) -> None:
            record.events.append(event)
            why = f" skipped: {event.skipped}" if event.skipped else ""
            print(f"{event.at:6.1f} s  {event.name} {event.victim}{why}", flush=True)
            if not event.skipped:
                probes.create_task(load.probe_victim(event))

        injector = Injector(stack, note_event)
        for fault in schedule_faults(
            options.seed, set(options.verbs), set(options.roles) or {role for role, _ in WEIGHTS}
        ):
            await asyncio.sleep(fault.pause)
            # Time to be seen to recover is part of the run.
            if stack.elapsed_seconds + fault.seconds > until - 5.0 or not stack.is_running:
                return
            await injector.inject_fault(fault)


async def _send_attacks(stack: Stack, record: Record, seconds: float) -> None:
    record.attacks += await open_crowd(stack.system.urls, 2, seconds)


async def _crowd_scenario(stack: Stack, options: Options) -> tuple[Record, int, tuple[float, ...]]:
    """Run good clients alone, then together with hostile or too many requests."""
    async with _open_system(stack, options) as (record, load):
        calm = Record(options.seed, _CALIBRATION_SECONDS, answers=record.answers)
        before = await asyncio.to_thread(watch.take_samples, stack)
        await _run_alone(stack, ChaosLoad(stack, calm), options.clients)
        alone = tuple(outcome.seconds for outcome in calm.outcomes if outcome.is_ok)
        begin, until = stack.elapsed_seconds, stack.elapsed_seconds + 60 * options.minutes
        async with asyncio.TaskGroup() as group:
            other_clients = group.create_task(_run_others(load, until))
            if options.hostile:
                group.create_task(_send_hostile(load, record, options, other_clients))
            else:
                rate = options.overload * len(alone) / _CALIBRATION_SECONDS
                group.create_task(_send_flood(load, record, rate, begin, until, stack))
        after = await asyncio.to_thread(watch.take_samples, stack)
        restarts = watch.count_restarts(before, after)
        await _wait_calm(stack, record, load)
    return record, restarts, alone


async def _run_alone(stack: Stack, load: ChaosLoad, clients: int) -> None:
    until = stack.elapsed_seconds + _CALIBRATION_SECONDS
    await asyncio.gather(*(load.client(900 + number, until, _draw_quick) for number in range(clients)))


async def _run_others(load: ChaosLoad, until: float) -> None:
    await asyncio.gather(*(load.client(800 + number, until, _draw_quick) for number in range(2)))


def _draw_quick(dice: Random) -> ChaosRequest:
    return requests.make_good(dice.choice(_QUICK), dice.random() < 0.4)


async def _send_hostile(load: ChaosLoad, record: Record, options: Options, other_clients: "asyncio.Task[None]") -> None:
    numbers = iter(range(options.hostile))

    async def one_after_another() -> None:
        for number in numbers:
            dice = Random(f"{options.seed} hostile {number}")
            outcome = await load.send_request(number, load.hostile(dice), dice.randrange(2))
            record.outcomes.append(outcome)

    await asyncio.gather(*(one_after_another() for _ in range(4)))
    other_clients.cancel()


async def _send_flood(load: ChaosLoad, record: Record, rate: float, begin: float, until: float, stack: Stack) -> None:
    """Send ``rate`` requests a second, without waiting for answers."""

    async def send_one(number: int) -> None:
        dice = Random(f"{record.seed} flood {number}")
        record.outcomes.append(await load.send_request(number, _draw_quick(dice), dice.randrange(2)))

    async with asyncio.TaskGroup() as group:
        number = 0
        while stack.elapsed_seconds < until:
            group.create_task(send_one(number))
            number += 1
            await asyncio.sleep(max(0.0, begin + number / rate - stack.elapsed_seconds))


@contextlib.asynccontextmanager
async def _open_system(stack: Stack, options: Options) -> AsyncIterator[tuple[Record, ChaosLoad]]:
    """Yield a ready, watched system with its undisturbed answers."""
    record = Record(options.seed, 60 * options.minutes)
    await stack.system.becomes_ready()
    async with media_server() as server:
        load = ChaosLoad(stack, record, server if options.attacks or options.hostile else "")
        await load.send_undisturbed()
        stack.restart_clock()
        stalls = asyncio.create_task(_watch_stalls(record))
        try:
            async with watch_stack(stack, _SAMPLE_SECONDS, lambda: record.samples.extend(watch.take_samples(stack))):
                yield record, load
        finally:
            stalls.cancel()


async def _watch_stalls(record: Record) -> None:
    """Record how late this process itself is: measurements of its clients are late by as much."""
    while True:
        due = time.monotonic() + _STALL_SECONDS
        await asyncio.sleep(_STALL_SECONDS)
        record.stalled_seconds = max(record.stalled_seconds, time.monotonic() - due)


async def _wait_calm(stack: Stack, record: Record, load: ChaosLoad) -> None:
    """Wait until everything serves, jobs have ended, and no block is leased."""
    if not stack.is_running:
        return
    if missing := await stack.wait_settled(_CALM_SECONDS):
        record.notes.append(missing)
    await load.all_once()
    await load.jobs_end(_JOBS_SECONDS)
    record.blocks_left = await stack.count_blocks(_LEASES_SECONDS)
