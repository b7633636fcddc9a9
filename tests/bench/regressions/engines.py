"""Faulty engines for candidates, and one without a fault.

They are late, fail, mix up requests, or fail only under load. Apart from its fault, each runs the component on the
transformers engine.
"""

import asyncio
import random
from typing import Any

import numpy as np

from omnibus.executor.runner import Job, Runner
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines.registry import transformers

#: Seconds by which a late engine begins later, and by which each of its outputs is late.
LATE_SECONDS, LATE_STEP_SECONDS = 0.4, 0.04
#: Seconds from the beginning of a job in which another one fails where jobs may not come together.
HOLD_SECONDS = 0.04
#: A failing engine fails one job in so many.
FAILS_EVERY = 3
#: Deviation of what a noisy encoder adds, in deviations of its embedding.
NOISE = 0.1


class WrappedRunner:
    """A runner that forwards to another; subclasses change jobs."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    async def run(self, job: Job) -> None:
        await self._runner.run(job)


class WrappedJob:
    """A job that forwards to another; subclasses change its outputs."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)


class _LateRunner(WrappedRunner):
    async def run(self, job: Job) -> None:
        await asyncio.sleep(LATE_SECONDS)
        await self._runner.run(job)


class _LateJob(WrappedJob):
    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await asyncio.sleep(LATE_STEP_SECONDS)
        await self._job.send(output, data, array)

    async def send_text(self, output: str, data: dict[str, Any]) -> None:
        await asyncio.sleep(LATE_STEP_SECONDS)
        await self._job.send_text(output, data)


class _LateStepsRunner(WrappedRunner):
    async def run(self, job: Job) -> None:
        await self._runner.run(_LateJob(job))  # type: ignore[arg-type]


class _FailingRunner(WrappedRunner):
    jobs = 0

    async def run(self, job: Job) -> None:
        self.jobs += 1
        if self.jobs % FAILS_EVERY == 0:
            raise MemoryError("out of memory")
        await self._runner.run(job)


class _SingleRunner(WrappedRunner):
    """Fail concurrent jobs; each job counts for ``HOLD_SECONDS``.

    Comparisons, which run in sequence, do not wait for that.
    """

    jobs = 0

    async def run(self, job: Job) -> None:
        self.jobs += 1
        asyncio.get_running_loop().call_later(HOLD_SECONDS, self._let_go)
        if self.jobs > 1:
            raise RuntimeError("two requests in one batch")
        await self._runner.run(job)

    def _let_go(self) -> None:
        self.jobs -= 1


class _StaleRunner(WrappedRunner):
    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.last: tuple[dict[str, Any], np.ndarray | None] | None = None

    async def run(self, job: Job) -> None:
        await self._runner.run(_StaleJob(job, self))  # type: ignore[arg-type]


class _StaleJob(WrappedJob):
    def __init__(self, job: Job, runner: _StaleRunner) -> None:
        super().__init__(job)
        self._runner = runner

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        current = dict(data), None if array is None else array.copy()
        result, self._runner.last = self._runner.last or current, current
        await self._job.put(output, *result)


class _NoisyRunner(WrappedRunner):
    async def run(self, job: Job) -> None:
        await self._runner.run(_NoisyJob(job))  # type: ignore[arg-type]


class _NoisyJob(WrappedJob):
    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        if array is not None:
            noise = np.random.default_rng(random.getrandbits(32)).normal(0.0, NOISE * array.std(), array.shape)
            array = (array + noise).astype(array.dtype)
        await self._job.put(output, data, array)


def plain(component: str, settings: ExecutorSettings) -> Runner:
    """The transformers engine under another name."""
    return WrappedRunner(transformers(component, settings))


def late(component: str, settings: ExecutorSettings) -> Runner:
    """One that begins late."""
    return _LateRunner(transformers(component, settings))


def late_steps(component: str, settings: ExecutorSettings) -> Runner:
    """Delay each token."""
    return _LateStepsRunner(transformers(component, settings))


def failing(component: str, settings: ExecutorSettings) -> Runner:
    """One that fails now and then."""
    return _FailingRunner(transformers(component, settings))


def single(component: str, settings: ExecutorSettings) -> Runner:
    """Fail concurrent requests, which no comparison in the shadow detects."""
    return _SingleRunner(transformers(component, settings))


def stale(component: str, settings: ExecutorSettings) -> Runner:
    """Give each request the result of the one before."""
    return _StaleRunner(transformers(component, settings))


def noisy(component: str, settings: ExecutorSettings) -> Runner:
    """Add noise to each result."""
    return _NoisyRunner(transformers(component, settings))
