"""The trained model with an engine that waits in the middle of a long answer, so that there is time to interrupt it."""

import asyncio
from typing import Any

from omnibus.executor.runner import Job, Runner
from omnibus.executor.settings import ExecutorSettings
from services.engines import transformers
from tests.bench.regressions.engines import WrappedJob, WrappedRunner
from tests.clients.voice.talk import LONG, PATIENCE

#: Words of the answer to ``LONG`` that are spoken before the wait, and its seconds: a client that does not interrupt the
#: answer gives up before it goes on.
SPOKEN_WORDS, WAIT_SECONDS = 4, 2 * PATIENCE


class _WaitingRunner(WrappedRunner):
    async def run(self, job: Job) -> None:
        waits = LONG in str(job.inputs.get("messages"))
        await self._runner.run(_WaitingJob(job) if waits else job)  # type: ignore[arg-type]


class _WaitingJob(WrappedJob):
    words = 0

    async def send_text(self, output: str, data: dict[str, Any]) -> None:
        self.words += len(str(data.get("text", "")).split())
        if self.words > SPOKEN_WORDS:
            await asyncio.sleep(WAIT_SECONDS)
        await self._job.send_text(output, data)


def waiting(component: str, settings: ExecutorSettings) -> Runner:
    """The transformers engine, whose thinker waits in the middle of the answer to ``LONG``."""
    runner = transformers(component, settings)
    return _WaitingRunner(runner) if component == "thinker" else runner
