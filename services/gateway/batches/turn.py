"""One turn of a batch: its lines are sent, a few at a time, until it is over or other tenants' batches are next."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

from omnibus.service import until_cancelled
from omnibus.store import JobRecord, Store
from services.gateway.batches.job_payload import KIND
from services.gateway.batches.line_sender import LineSender
from services.gateway.batches.results import BatchResults
from services.gateway.openai.batches import BatchLine, Status

#: Seconds that a batch is worked on before it makes room, where batches of another tenant wait that has fewer at work.
TURN_SECONDS = 5.0
#: Seconds between two looks for new results to be written, for who cancelled the batch, and for others that wait.
_LOOK_SECONDS = 1.0


class TurnOver(Exception):
    """Other tenants' batches wait: this one goes on after them."""


class BatchTurn:
    """Sends the lines of ``job`` that have no result yet by ``sender``; ``revoked`` is set when its key is."""

    def __init__(
        self, store: Store, sender: LineSender, job: JobRecord, results: BatchResults, revoked: asyncio.Event
    ) -> None:
        self._store = store
        self._sender = sender
        self._job = job
        self._results = results
        self._revoked = revoked
        self._end = time.monotonic() + TURN_SECONDS
        self._is_over = False

    async def send_lines(self, lines: list[BatchLine], parallel: int) -> Status:
        """Send ``lines``, ``parallel`` at a time; returns how that ended. Raises ``TurnOver``."""
        waiting = iter(self._results.missing(lines))
        sending = {asyncio.create_task(self._send_in_turn(waiting)) for _ in range(parallel)}
        revoked = asyncio.create_task(self._revoked.wait())
        try:
            while sending:
                seconds = max(0.0, min(_LOOK_SECONDS, self._job.until - time.time()))
                done, _ = await asyncio.wait({*sending, revoked}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                sending -= done
                _raise_errors(done - {revoked})
                if status := await self._find_end():
                    return status
                await self._check_turn(sending)
            if self._results.missing(lines):
                raise TurnOver
            return "completed"
        finally:
            for task in (*sending, revoked):
                await until_cancelled(task)
            await self._results.write()

    async def _find_end(self) -> Status | None:
        """Write what has come; returns how the batch ends before all lines are answered, if it does."""
        if self._revoked.is_set():
            return "failed"
        await self._results.write()
        if self._job.until <= time.time():
            return "expired"
        return "cancelled" if await self._results.is_cancelled() else None

    async def _check_turn(self, sending: set["asyncio.Task[None]"]) -> None:
        """Begin no more lines once the turn has lasted and others wait; those that are being answered are finished."""
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


def _raise_errors(done: Iterable["asyncio.Task[Any]"]) -> None:
    for task in done:
        if not task.cancelled():
            task.result()
