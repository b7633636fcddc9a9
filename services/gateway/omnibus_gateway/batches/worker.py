"""Worker of batches from all gateways: runs a few at a time, each under a lease."""

import asyncio
import logging
import time
from contextlib import suppress
from secrets import token_hex

from omnibus.errors import Fatal, KeyRevoked, OmnibusError, Retryable, StoreUnavailable
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus.store import REREAD_SECONDS, JobRecord, Store
from omnibus_gateway.batches.job_payload import KIND, BatchOutcome, BatchProgress, BatchSpec, decode_spec, encode
from omnibus_gateway.batches.line_sender import LineSender, failed_line
from omnibus_gateway.batches.results import BatchResults
from omnibus_gateway.batches.turn import BatchTurn, TurnOver
from omnibus_gateway.files.client_files import ClientFiles
from omnibus_gateway.openai.batches import BatchError, RequestCounts, Status, parse_lines
from omnibus_gateway.tenancy.deferred import DeferredWork, revoked_error
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from omnibus_gateway.videos.lease import JobLease

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
            except Exception as error:
                api_error = (
                    error if isinstance(error, OmnibusError) else Fatal("internal error: the gateway's log has more")
                )
                log.exception("%s failed", job.id)
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
