"""Faults: drawn for a run by its seed, and injected into processes, disks or the store."""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import psutil
from redis.asyncio import Redis
from redis.exceptions import RedisError

from omnibus.settings import UpSettings
from tests.chaos.outcome import FaultEvent
from tests.chaos.requests import cases_of
from tests.chaos.stack import OWN_DISKS, Stack

KILL, TERM, STOP, FILL = "kill", "term", "stop", "fill"
#: What can happen to whom, and how often.
WEIGHTS: dict[tuple[str, str], int] = {
    ("executor", KILL): 4,
    ("executor", STOP): 3,
    ("executor", TERM): 2,
    ("gateway", KILL): 2,
    ("gateway", STOP): 1,
    ("gateway", TERM): 2,
    ("sidecar", KILL): 2,
    ("sidecar", STOP): 1,
    ("sidecar", TERM): 1,
    ("nats", KILL): 1,
    ("nats", STOP): 1,
    ("nats", TERM): 1,
    ("valkey", KILL): 1,
    ("valkey", STOP): 1,
    ("valkey", TERM): 1,
    ("planner", KILL): 1,
    ("planner", STOP): 1,
    ("planner", TERM): 1,
    ("app worker", KILL): 2,
    ("app worker", STOP): 1,
    ("app worker", TERM): 1,
    ("fork-server", KILL): 1,
    ("disk", FILL): 1,
    ("shared memory", FILL): 1,
    ("store", FILL): 1,
}
_SIGNALS = {KILL: signal.SIGKILL, TERM: signal.SIGTERM, STOP: signal.SIGSTOP}
_FROZEN_SECONDS = (2.0, 8.0)
_FULL_SECONDS = 6.0
#: ``omnibus up`` gives a process up that ends too often; faults must not be that cause.
_MOST_IN_A_MINUTE = 3


@dataclass(frozen=True)
class Fault:
    """A fault as drawn: its victim is ``place`` modulo the number of candidates."""

    number: int
    role: str
    verb: str
    seconds: float
    place: int
    pause: float  # seconds of quiet before it


def schedule_faults(seed: int, verbs: set[str], roles: set[str]) -> Iterator[Fault]:
    """Endless faults, the same for the same arguments.

    The first ones are one of each, in a drawn order.
    """
    dice = Random(f"faults of {seed}")
    candidates = [key for key in WEIGHTS if key[0] in roles and key[1] in verbs]
    if not candidates:
        return
    first = deque(dice.sample(candidates, len(candidates)))
    number = 0
    while True:
        role, verb = first.popleft() if first else dice.choices(candidates, [WEIGHTS[key] for key in candidates])[0]
        seconds = {STOP: round(dice.uniform(*_FROZEN_SECONDS), 1), FILL: _FULL_SECONDS}.get(verb, 0.0)
        yield Fault(number, role, verb, seconds, dice.randrange(1 << 16), round(dice.uniform(1.0, 4.0), 1))
        number += 1


class Injector:
    """Does faults to a running system, one after the other."""

    def __init__(self, stack: Stack, note: Callable[[FaultEvent], None]) -> None:
        self._stack = stack
        self._note = note
        self._lately: dict[str, deque[float]] = {}

    async def inject_fault(self, fault: Fault) -> FaultEvent:
        """Inject ``fault``, undo lasting effects, and return the event."""
        fill = _FILLS.get(fault.role)
        if fill is not None:
            return await self._fill_disk(fault, fill)
        victims = await self._stack.find_victims(fault.role)
        names = [name for name in victims if not self._is_spent(name)]
        event = FaultEvent(fault.number, self._stack.elapsed_seconds, fault.role, fault.verb, seconds=fault.seconds)
        if not names:
            return self._record_event(replace(event, skipped="nobody plays this role, or all were ended often enough"))
        name = names[fault.place % len(names)]
        gateway = int(name.rpartition("-")[2]) if fault.role == "gateway" else -1
        event = replace(
            event, at=self._stack.elapsed_seconds, victim=name, gateway=gateway, cases=_find_cases(fault.role, name)
        )
        return await self._send_signal(victims[name], event)

    async def _send_signal(self, process: psutil.Process, event: FaultEvent) -> FaultEvent:
        if event.verb != STOP:
            self._lately.setdefault(event.victim, deque(maxlen=_MOST_IN_A_MINUTE)).append(self._stack.elapsed_seconds)
        try:
            process.send_signal(_SIGNALS[event.verb])
        except psutil.Error as error:
            return self._record_event(replace(event, skipped=repr(error)))
        self._record_event(event)
        if event.verb == STOP:
            await asyncio.sleep(event.seconds)
            with contextlib.suppress(psutil.Error):  # it may have been replaced meanwhile, which is as well
                process.send_signal(signal.SIGCONT)
        return event

    async def _fill_disk(
        self, fault: Fault, fill: Callable[[Stack], contextlib.AbstractAsyncContextManager[str]]
    ) -> FaultEvent:
        async with fill(self._stack) as reason:
            event = FaultEvent(
                fault.number, self._stack.elapsed_seconds, fault.role, fault.verb, "", fault.seconds, skipped=reason
            )
            self._record_event(event)
            if not reason:
                await asyncio.sleep(fault.seconds)
        return event

    def _record_event(self, event: FaultEvent) -> FaultEvent:
        self._note(event)
        return event

    def _is_spent(self, name: str) -> bool:
        times = self._lately.get(name, ())
        return len([at for at in times if self._stack.elapsed_seconds - at < 60]) >= _MOST_IN_A_MINUTE


def _find_cases(role: str, name: str) -> tuple[str, ...]:
    if role == "executor":
        return cases_of(name)
    return ("app",) if role == "app worker" else ()


# What is filled


@contextlib.asynccontextmanager
async def _fill_directory(directory: Path) -> AsyncIterator[str]:
    """Fill the disk of ``directory`` while the block runs."""
    path = directory / "chaos-fills-this"
    await asyncio.to_thread(_take_all, path)
    try:
        yield ""
    finally:
        path.unlink(missing_ok=True)


def _take_all(path: Path) -> None:
    block = bytes(1 << 20)
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(block)
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(block[:4096])


@contextlib.asynccontextmanager
async def _full_disk(_: Stack) -> AsyncIterator[str]:
    if place := os.environ.get(OWN_DISKS):
        async with _fill_directory(Path(place)) as reason:
            yield reason
    else:
        yield "no disk of its own: a mount namespace is needed, as root has it"


@contextlib.asynccontextmanager
async def _full_memory(_: Stack) -> AsyncIterator[str]:
    if OWN_DISKS in os.environ:
        async with _fill_directory(Path("/dev/shm")) as reason:
            yield reason
    else:
        yield "no shared memory of its own: a mount namespace is needed, as root has it"


@contextlib.asynccontextmanager
async def _full_store(stack: Stack) -> AsyncIterator[str]:
    url = stack.system.state.store_url
    reason = await _limit_memory(url, "1mb")
    try:
        yield reason
    finally:
        if not reason:
            await _limit_memory(url, str(UpSettings().store_bytes))


async def _limit_memory(url: str, bytes: str) -> str:
    """Set ``maxmemory``; why it could not be set."""
    async with Redis.from_url(url, socket_timeout=5) as redis:
        try:
            await redis.config_set("maxmemory", bytes)
        except (RedisError, OSError) as error:
            return f"maxmemory cannot be set: {error}"
    return ""


_FILLS: dict[str, Callable[[Stack], contextlib.AbstractAsyncContextManager[str]]] = {
    "disk": _full_disk,
    "shared memory": _full_memory,
    "store": _full_store,
}
