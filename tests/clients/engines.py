"""The trained model with an engine that pauses during a long answer.

The pause leaves time to interrupt the answer.
"""

import asyncio
from typing import Any

import numpy as np

from omnibus.executor.runner import Job, Runner
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines.registry import transformers
from tests.bench.regressions.engines import WrappedJob, WrappedRunner
from tests.clients.voice.talk import LONG, PATIENCE

#: Seconds between the first and the second piece of audio of the answer to ``LONG``. A client that does not interrupt
#: it times out first.
WAIT_SECONDS = 2 * PATIENCE

_long: set[str] = set()  # invocations, known to all components of this executor


class _NotingRunner(WrappedRunner):
    async def run(self, job: Job) -> None:
        if LONG in str(job.inputs.get("messages")):
            _long.add(job.invocation)
        await self._runner.run(job)


class _WaitingRunner(WrappedRunner):
    async def run(self, job: Job) -> None:
        await self._runner.run(_WaitingJob(job))  # type: ignore[arg-type]


class _WaitingJob(WrappedJob):
    pieces = 0

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        self.pieces += 1
        if self.pieces > 1 and self._job.invocation in _long:
            await asyncio.sleep(WAIT_SECONDS)
        await self._job.send(output, data, array)


def waiting(component: str, settings: ExecutorSettings) -> Runner:
    """Transformers engine whose vocoder pauses during the answer to ``LONG``."""
    runner = transformers(component, settings)
    wrap = {"thinker": _NotingRunner, "vocoder": _WaitingRunner}.get(component)
    return wrap(runner) if wrap is not None else runner
