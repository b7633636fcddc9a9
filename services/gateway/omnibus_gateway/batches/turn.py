"""One turn of a batch: sends a few lines at a time, until the batch ends or yields to other tenants."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

from omnibus.service import until_cancelled
from omnibus.store import JobRecord, Store
from omnibus_gateway.batches.job_payload import KIND
from omnibus_gateway.batches.line_sender import LineSender
from omnibus_gateway.batches.results import BatchResults
from omnibus_gateway.openai.batches import BatchLine, Status

#: Seconds of a turn, after which a batch yields to a waiting batch of another tenant with fewer running ones.
TURN_SECONDS = 5.0
#: Seconds between two checks for new results, a cancellation and waiting batches.
_LOOK_SECONDS = 1.0


class TurnOver(Exception):
    """The batch yields to other tenants' batches, and continues after them."""


class BatchTurn:
    """Sends the lines of ``job`` without a result through ``sender``. ``revoked_event`` is set when its key is
    revoked."""

    def __init__(
        self, store: Store, sender: LineSender, job: JobRecord, results: BatchResults, revoked_event: asyncio.Event
    ) -> None:
        self._store = store
        self._sender = sender
        self._job = job
        self._results = results
        self._revoked = revoked_event
        self._end = time.monotonic() + TURN_SECONDS
        self._is_over = False

    async def send_lines(self, lines: list[BatchLine], parallel: int) -> Status:
        """Send ``lines``, ``parallel`` at a time. Returns the final status. Raises ``TurnOver``."""
        waiting = iter(self._results.missing(lines))
        sending = {asyncio.create_task(self._send_in_turn(waiting)) for _ in range(parallel)}
        revoked_task = asyncio.create_task(self._revoked.wait())
        try:
            while sending:
                seconds = max(0.0, min(_LOOK_SECONDS, self._job.until - time.time()))
                done_tasks, _ = await asyncio.wait(
                    {*sending, revoked_task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                sending -= done_tasks
                _raise_errors(done_tasks - {revoked_task})
                if status := await self._find_end():
                    return status
                await self._check_turn(sending)
            if self._results.missing(lines):
                raise TurnOver
            return "completed"
        finally:
            for task in (*sending, revoked_task):
                await until_cancelled(task)
            await self._results.write()

    async def _find_end(self) -> Status | None:
        """Write new results. Returns the status if the batch ends early, else None."""
        if self._revoked.is_set():
            return "failed"
        await self._results.write()
        if self._job.until <= time.time():
            return "expired"
        return "cancelled" if await self._results.is_cancelled() else None

    async def _check_turn(self, sending: set["asyncio.Task[None]"]) -> None:
        """Start no more lines if the turn is over and others wait. Lines in progress finish."""
        if time.monotonic() < self._end or not await self._store.job_waits(KIND, self._job.tenant):
            return
        self._is_over = True
        for task in sending:
            if not self._sender.is_calling(task):  # it waits for room
                task.cancel()

    async def _send_in_turn(self, waiting: Iterator[BatchLine]) -> None:
        for line in waiting:
            self._results.add(await self._sender.send_line(line))
            if self._is_over:
                return


def _raise_errors(done_tasks: Iterable["asyncio.Task[Any]"]) -> None:
    for task in done_tasks:
        if not task.cancelled():
            task.result()
