"""Batches at one gateway: client operations and the worker."""

import asyncio
import logging
import time
from collections.abc import Mapping

from starlette.types import ASGIApp

from omnibus.errors import Conflict, Forbidden, NotFound, ProtocolError
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus.store import JobRecord, Store
from omnibus_gateway.batches.job_payload import (
    KIND,
    BatchSpec,
    batch_not_found,
    batch_view,
    check_batch_id,
    decode_spec,
    encode,
)
from omnibus_gateway.batches.line_sender import LineSender
from omnibus_gateway.batches.results import BatchResults
from omnibus_gateway.batches.worker import BatchWorker
from omnibus_gateway.files.client_files import ClientFiles
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.batches import Batch, BatchList, BatchQuery, BatchRequest
from omnibus_gateway.tenancy.deferred import DeferredWork
from omnibus_gateway.tenancy.tenant import current_tenant, put_counted_job

log = logging.getLogger(__name__)

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
