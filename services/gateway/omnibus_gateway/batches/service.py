"""Batches at one gateway: client operations and the worker.

One turn of a batch: sends a few lines at a time, until the batch ends or yields to other tenants.

Worker of batches from all gateways: runs a few at a time, each under a lease.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any

from starlette.types import ASGIApp

from omnibus.errors import (
    Conflict,
    Forbidden,
    KeyRevoked,
    NotFound,
    ProtocolError,
    Retryable,
    StoreUnavailable,
)
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus.store import REREAD_SECONDS, JobRecord, Store
from omnibus.store.lease import JobLease
from omnibus_gateway.batches.job_payload import (
    KIND,
    BatchOutcome,
    BatchProgress,
    BatchSpec,
    batch_not_found,
    batch_view,
    check_batch_id,
    decode_spec,
    encode,
)
from omnibus_gateway.batches.sender import BatchResults, LineSender, failed_line
from omnibus_gateway.media.client_files import ClientFiles
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.batches import (
    Batch,
    BatchError,
    BatchLine,
    BatchList,
    BatchQuery,
    BatchRequest,
    RequestCounts,
    Status,
    parse_lines,
)
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.tenancy.tenant import (
    DeferredWork,
    Tenant,
    acting_as,
    current_tenant,
    put_counted_job,
    revoked_error,
)

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


log = logging.getLogger(__name__)

#: Share of the tenant's weight for a batch, which waits in a separate queue from the tenant's other requests.
_WEIGHT = 0.01
#: Limits: lines of one batch, and batches that a gateway runs at the same time.
MAX_LINES, _MAX_BATCHES = 50_000, 2
#: Seconds of a lease, and seconds between two reads of an unavailable store.
_LEASE_SECONDS, _POLL_SECONDS = 20.0, 0.5
#: Seconds before the retry of a batch after a transient error.
_RETRY_SECONDS = 5.0
_MESSAGES: dict[Status, str] = {
    "expired": "the batch expired before this line was answered",
    "cancelled": "the batch was cancelled before this line was answered",
}


class BatchWorker:
    """Takes due batches and sends their lines through ``sender``."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        files: ClientFiles,
        sender: LineSender,
        deferred_work: DeferredWork,
    ) -> None:
        self._deferred = deferred_work
        self._settings = settings
        self._store = store
        self._files = files
        self._sender = sender
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Wake the workers, because a batch may be due."""
        self._news.set()

    async def serve(self) -> None:
        """Run batches forever. On cancellation, releases the current ones to other gateways."""
        workers = [asyncio.create_task(self._serve_one()) for _ in range(_MAX_BATCHES)]
        try:
            await asyncio.wait(workers)
        finally:
            for task in workers:  # once each: a second cancellation would interrupt the release
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _serve_one(self) -> None:
        while True:
            job, lease = await self._next_job()
            try:
                await self._run_job(job, lease)
            except asyncio.CancelledError:
                await self._release(job, lease)
                raise
            except TurnOver:
                await self._release(job, lease)
            except Retryable as error:
                log.info("retrying %s: %s", job.id, error)
                await self._release(job, lease, _RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 the batch has it
                api_error = client_error(error, job.id)
                await self._end(job, lease, _failed([BatchError(code=api_error.code, message=api_error.message)]))

    async def _next_job(self) -> tuple[JobRecord, JobLease]:
        loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            since, owner, wait = loop.time(), token_hex(8), _POLL_SECONDS
            with suppress(StoreUnavailable):
                job_or_wait = await self._store.take_job(KIND, owner, _LEASE_SECONDS)
                if isinstance(job_or_wait, JobRecord):
                    return job_or_wait, JobLease(self._store, KIND, job_or_wait, owner, _LEASE_SECONDS, since)
                wait = min(max(job_or_wait, 0.01), REREAD_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    async def _run_job(self, job: JobRecord, lease: JobLease) -> None:
        """Run a job while its lease and its key are valid."""
        spec = decode_spec(job)
        tenant, revoked_event = self._find_tenant(job, spec)
        with acting_as(tenant):
            working = asyncio.create_task(self._work(job, spec, lease, revoked_event))
            holding = asyncio.create_task(lease.hold_until_lost())
            watching = asyncio.create_task(self._watch_key(tenant, revoked_event))
            try:
                await asyncio.wait({working, holding}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    await self._end(job, lease, working.result())
                    await BatchResults(self._files, job.id).discard()
                else:
                    log.info("lost the lease of %s", job.id)
            finally:
                # Cancel the work last: it may raise, and a task that still renews the lease would take it from the next
                # worker.
                for task in (holding, watching, working):
                    await until_cancelled(task)

    def _find_tenant(self, job: JobRecord, spec: BatchSpec) -> tuple[Tenant, asyncio.Event]:
        """Return the tenant in its batch queue, and its key's revocation event.

        Raises ``Retryable`` while the keys are unknown.
        """
        revoked_event = asyncio.Event()
        try:
            tenant = self._deferred.find_tenant(spec.tenant, spec.weight, job.key)
        except KeyRevoked:
            tenant = Tenant(spec.tenant, spec.weight)
            revoked_event.set()
        return tenant._replace(weight=tenant.weight * _WEIGHT, queue=f"{spec.tenant} batch"), revoked_event

    async def _watch_key(self, tenant: Tenant, revoked_event: asyncio.Event) -> None:
        await self._deferred.wait_revoked(tenant)
        revoked_event.set()

    async def _work(
        self, job: JobRecord, spec: BatchSpec, lease: JobLease, revoked_event: asyncio.Event
    ) -> BatchOutcome:
        data = (await self._files.read(spec.input_file_id)).data
        lines, errors = await asyncio.to_thread(parse_lines, data, spec.endpoint, MAX_LINES)
        if errors:
            return _failed(errors)
        results, began = BatchResults(self._files, job.id), time.time()
        await results.load()
        lease.set_trace(lambda: encode(BatchProgress(counts=results.counts(len(lines)), began=began)))
        turn = BatchTurn(self._store, self._sender, job, results, revoked_event)
        status = await turn.send_lines(lines, self._settings.batch_parallel)
        job_error = revoked_error() if status == "failed" else None
        if status != "completed":
            code, message = (job_error.code, job_error.message) if job_error else (f"batch_{status}", _MESSAGES[status])
            for line in results.missing(lines):
                results.add(failed_line(line, code, message))
        await lease.confirm()
        output, error_file = await results.close(lines, spec.output_seconds)
        return BatchOutcome(
            status=status,
            counts=results.counts(len(lines)),
            began=began,
            output_file_id=output,
            error_file_id=error_file,
            errors=[BatchError(code=job_error.code, message=job_error.message)] if job_error else [],
        )

    async def _end(self, job: JobRecord, lease: JobLease, outcome: BatchOutcome) -> None:
        over = "failed" if outcome.status == "failed" else "completed"
        retention = self._settings.upload_seconds
        while True:
            try:
                await self._store.end_job(KIND, job.id, lease.owner, over, encode(outcome), retention)  # type: ignore[arg-type]
                return
            except StoreUnavailable as away:
                log.warning("%s is %s, but the store does not have this yet: %s", job.id, outcome.status, away)
                if time.time() > job.expires:
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def _release(self, job: JobRecord, lease: JobLease, seconds: float = 0.0) -> None:
        """Release a batch. If that fails, its lease expires."""
        with suppress(StoreUnavailable):
            await self._store.free_job(KIND, job.id, lease.owner, seconds)


def _failed(errors: list[BatchError]) -> BatchOutcome:
    return BatchOutcome(status="failed", counts=RequestCounts(), began=0.0, errors=errors)


#: Limits for all gateways together: open batches, and batches in the store including those that have ended.
MAX_OPEN, MAX_KEPT = 64, 512
#: Seconds of the only completion window, 24 hours.
_WINDOW_SECONDS = 86400.0


class Batches:
    """Operations on batches. Jobs are in ``store``, their inputs and outputs in ``files``.

    ``routes`` handle POST requests to the endpoints that lines of batches may have.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        files: ClientFiles,
        routes: Mapping[str, ASGIApp],
        deferred_work: DeferredWork | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._files = files
        self.endpoints = tuple(routes)
        deferred_work = deferred_work or DeferredWork()
        self._worker = BatchWorker(settings, store, files, LineSender(routes, deferred_work), deferred_work)
        self._tasks: list[asyncio.Task[None]] = []

    def startup(self) -> None:
        """Start the worker, if files and batches are enabled."""
        if self._files.is_enabled and self._settings.batch_parallel:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._worker.serve()), loop.create_task(self._follow_jobs())]

    async def shutdown(self) -> None:
        """Stop the worker and release its batches to other gateways."""
        for task in self._tasks:
            await until_cancelled(task)

    async def create(self, batch_request: BatchRequest) -> Batch:
        """Store a batch, which runs later. Raises ``OmnibusError``."""
        if not self._settings.batch_parallel:
            raise Forbidden("batches are disabled: set OMNIBUS_GATEWAY_BATCH_PARALLEL to more than 0")
        try:
            await self._files.get(batch_request.input_file_id)
        except NotFound as error:
            error.param = "input_file_id"
            raise
        tenant, now = current_tenant(), time.time()
        spec = BatchSpec(
            endpoint=batch_request.endpoint,
            input_file_id=batch_request.input_file_id,
            metadata=batch_request.metadata,
            output_seconds=float(batch_request.output_expires_after.seconds)
            if batch_request.output_expires_after is not None
            else 0.0,
            tenant=tenant.name,
            weight=tenant.weight,
        )
        until = now + _WINDOW_SECONDS
        job = JobRecord(
            id=new_secret_id("batch_"),
            request=encode(spec),
            created=now,
            until=until,
            expires=until + self._settings.upload_seconds,
            tenant=tenant.name,
            key=tenant.key.sha256 if tenant.key is not None else "",
        )
        await put_counted_job(self._settings, self._store, KIND, job, MAX_OPEN, MAX_KEPT)
        self._worker.wake()
        return batch_view(job, False)

    async def show(self, id: str) -> Batch:
        """Raises ``NotFound``."""
        return await self._view(await self._find_job(id))

    async def list_batches(self, query: BatchQuery) -> BatchList:
        """List the tenant's batches, newest first. Raises ``NotFound`` for an unknown ``after``."""
        after = (await self._find_job(query.after)).id if query.after else ""
        views: list[Batch] = []
        more = True
        while more and len(views) < query.limit:  # skips those of other tenants
            page = await self._store.jobs(KIND, query.limit - len(views), after)
            if page is None:
                raise batch_not_found()
            views += [await self._view(job) for job in page.jobs if _is_own(job)]
            more = page.more and bool(page.jobs)
            after = page.jobs[-1].id if page.jobs else after
        first, last = (views[0].id, views[-1].id) if views else (None, None)
        return BatchList(data=views, has_more=more, first_id=first, last_id=last)

    async def cancel(self, id: str) -> Batch:
        """Cancel a batch, with the results so far. Raises ``NotFound``, and ``Conflict`` if it has ended."""
        job = await self._find_job(id)
        if job.is_over:
            raise Conflict(f"the batch has ended: its status is {batch_view(job, False).status}", param="batch_id")
        await BatchResults(self._files, job.id).cancel()
        return batch_view(job, True)

    async def _view(self, job: JobRecord) -> Batch:
        return batch_view(job, not job.is_over and await BatchResults(self._files, job.id).is_cancelled())

    async def _find_job(self, id: str) -> JobRecord:
        job = await self._store.job(KIND, check_batch_id(id))
        if job is None or not _is_own(job):
            raise batch_not_found()
        return job

    async def _follow_jobs(self) -> None:
        async for _ in self._store.job_changes(KIND):
            self._worker.wake()


def _is_own(job: JobRecord) -> bool:
    """Return whether a batch belongs to the current tenant."""
    try:
        return decode_spec(job).tenant == current_tenant().name
    except ProtocolError as error:
        log.error("omitted a batch: %s", error)
        return False
