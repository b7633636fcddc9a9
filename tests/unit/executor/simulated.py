"""Simulated executors on a virtual clock."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np

from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim import Clock, Profile, Simulation, decode_profile
from omnibus.executor.sim.runner import SimulatedRunner
from tests.unit.jobs import MemoryJob, MemoryPipe

#: Turns of the event loop after which all events of one time are done.
QUIET = 40

ENCODER = {"kind": "encode", "slots": 4, "batch": {"base": 1.0, "per_item": 1.0}, "tokens": {"image": 10}, "width": 3}
THINKER = {
    "kind": "think", "slots": 4, "batch": {"base": 1.0}, "step": {"base": 0.5, "per_item": 0.5}, "steps": 5, "width": 3,
}  # fmt: skip
TALKER = {"kind": "talk", "slots": 2, "step": {"base": 1.0}, "steps": {"per": 3}, "chunk": 4}
VOCODER = {"kind": "vocode", "slots": 2, "batch": {"base": 0.5, "per_token": 0.25}, "samples": 10, "rate": 8000}
ALL = {"vision": ENCODER, "thinker": THINKER, "talker": TALKER, "vocoder": VOCODER}


class Alarm:
    """A timer of a virtual clock."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def ring(self) -> None:
        self._callback()


class VirtualClock:
    """Time that advances only when no other work is left. ``set`` counts the timers."""

    def __init__(self) -> None:
        self.time = 100.0
        self.set = 0
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._driver: asyncio.Task[None] | None = None

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.time, self.later)

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return round(self.time - 100.0, 6)

    def later(self, seconds: float, callback: Callable[[], None]) -> Alarm:
        self.set += 1
        alarm = Alarm(callback)
        heapq.heappush(self._alarms, (self.time + seconds, self.set, alarm))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._run_alarms())
        return alarm

    async def _run_alarms(self) -> None:
        while self._alarms:
            await settle_events()
            when, _, alarm = heapq.heappop(self._alarms)
            if not alarm.cancelled:
                self.time = max(self.time, when)
                alarm.ring()
                await settle_events()


async def settle_events() -> None:
    for _ in range(QUIET):
        await asyncio.sleep(0)


def make_profile(components: dict[str, Any] | None = None, **more: Any) -> Profile:
    """A profile whose default option has ``components``."""
    return decode_profile(msgspec.json.encode({"default": {"components": components or ALL}, **more}))


def select_component(component: str, **changes: Any) -> dict[str, Any]:
    """Return the usual ``component`` alone, with ``changes``."""
    return {component: {**ALL[component], **changes}}


class Bench:
    """The runners of one simulated executor, by component, and its clock."""

    def __init__(self, profile: Profile, option: str = "O", **settings: Any) -> None:
        self.time = VirtualClock()
        self._simulation = Simulation(ExecutorSettings(option=option, **settings), profile, self.time.clock)
        self._runners: dict[str, SimulatedRunner] = {}

    def __getitem__(self, component: str) -> SimulatedRunner:
        if component not in self._runners:
            self._runners[component] = self._simulation.make_runner(component)
        return self._runners[component]

    async def begin(self, component: str, job: MemoryJob) -> "asyncio.Task[MemoryJob]":
        """Start ``job`` now."""
        runner = self[component]
        await runner.load()

        async def run_job() -> MemoryJob:
            await runner.run(job)
            return job

        task = asyncio.create_task(run_job())
        await settle_events()
        return task

    async def run(self, component: str, *jobs: MemoryJob) -> list[float]:
        """Run ``jobs`` together and return the time at which each finished."""
        await self[component].load()

        async def run_job(job: MemoryJob) -> float:
            await self[component].run(job)
            return self.time.passed

        async with asyncio.timeout(30):
            return list(await asyncio.gather(*map(run_job, jobs)))

    async def close(self) -> None:
        for runner in self._runners.values():
            await runner.close()


@asynccontextmanager
async def open_bench(profile: Profile, option: str = "O", **settings: Any) -> AsyncIterator[Bench]:
    new_bench = Bench(profile, option, **settings)
    try:
        yield new_bench
    finally:
        await new_bench.close()


# Jobs


def make_media_job(content: bytes = b"x" * 2048, modality: str = "image", **more: Any) -> MemoryJob:
    return MemoryJob({"media": Item({"modality": modality}, np.frombuffer(content, np.uint8))}, **more)


def make_chat_job(text: str = "hello there", wants: tuple[str, ...] = (), seed: int = 7, **params: Any) -> MemoryJob:
    return MemoryJob({"messages": [{"role": "user", "content": text}], "params": params}, wants, seed)


def make_speech_job(rows: MemoryPipe, seed: int = 7, **params: Any) -> MemoryJob:
    """Return a talker's job after a prompt of two tokens."""
    prompt, layout = Item({}, np.zeros((5, 3), np.float32)), Item({}, np.zeros((3, 2), np.int32))
    return MemoryJob({"prompt": prompt, "layout": layout, "rows": rows, "voice": "v", "params": params}, seed=seed)


def make_row(count: int = 1) -> Item:
    return Item({}, np.zeros((count, 3), np.float32))


def make_codes(*chunks: int) -> MemoryPipe:
    stream = MemoryPipe()
    for number in chunks:
        stream.feed(Item({"codes": list(range(number))}))
    stream.close({"finish_reason": "stop"})
    return stream
