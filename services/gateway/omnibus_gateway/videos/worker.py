"""Makes videos of all gateways: a few at a time, each under a lease."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Literal

import msgspec

from omnibus.errors import (
    DeadlineExceeded,
    OmnibusError,
    ProtocolError,
    Retryable,
    StageFailed,
    StoreUnavailable,
)
from omnibus.metrics import GATEWAY
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus.store import REREAD_SECONDS, JobRecord, Store
from omnibus.store.lease import JobLease
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.tenancy.tenant import revoked_error
from omnibus_gateway.videos.generate import VideoGenerator
from omnibus_gateway.videos.job_payload import KIND, decode_job, encode
from omnibus_gateway.videos.storage import VideoFiles

log = logging.getLogger(__name__)

#: Attempts that may end with the death of the gateway or an executor, before the job counts as their cause. Missing
#: resources (space, executors, the bus, the store, the sidecar) are not its fault, and do not count.
MAX_ATTEMPTS = 3
#: Seconds until a job is retried, and until the store is polled again.
_RETRY_PAUSE_SECONDS, _POLL_SECONDS = 5.0, 0.5
#: Seconds that a stopping gateway tries to release a job while the store is unavailable.
_GIVE_BACK_SECONDS = 5.0

#: Called with each job that has ended here, and whether its lease was still valid.
Ended = Callable[[JobRecord, bool], Awaitable[None]]


class VideoWorker:
    """Takes due jobs, and makes their videos with ``filming``."""

    def __init__(
        self, settings: GatewaySettings, store: Store, films: VideoFiles, filming: VideoGenerator, on_end: Ended
    ) -> None:
        self._settings = settings
        self._store = store
        self._films = films
        self._filming = filming
        self._ended = on_end
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(max(1, settings.videos))
        self._running: dict[str, JobLease] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running_jobs(self) -> dict[str, str]:
        """Jobs that are held here, with the owner of their lease."""
        return {id: lease.owner for id, lease in self._running.items()}

    def wake(self) -> None:
        """Look for due jobs now."""
        self._news.set()

    def lose_lease(self, id: str) -> None:
        """Stop working on job ``id``, which is no longer held here."""
        if id in self._running:
            self._running[id].mark_lost()

    def renew_lease(self, id: str) -> None:
        """Renew the lease of job ``id``: the store may have lost it."""
        if id in self._running:
            self._running[id].renew()

    async def serve(self) -> None:
        """Take jobs forever. When this is cancelled, running jobs are released for others."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._slots.acquire()
                job, lease = await self._next_job()
                self._running[job.id] = lease
                task = loop.create_task(self._run_job(job, lease), name=job.id)
                self._tasks.add(task)
                task.add_done_callback(self._on_task_done)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._running.pop(task.get_name(), None)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: its worker failed", task.get_name(), exc_info=task.exception())

    async def _next_job(self) -> tuple[JobRecord, JobLease]:
        loop, seconds = asyncio.get_running_loop(), self._settings.video_lease
        while True:
            self._news.clear()
            since, owner, wait = loop.time(), token_hex(8), _POLL_SECONDS
            if self._filming.is_ready:
                job_or_wait = await self._take_due_job(owner)
                if isinstance(job_or_wait, JobRecord):
                    return job_or_wait, JobLease(self._store, KIND, job_or_wait, owner, seconds, since)
                wait = min(max(job_or_wait, 0.01), REREAD_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    async def _take_due_job(self, owner: str) -> JobRecord | float:
        """Take a due job, or return the seconds until the next attempt."""
        try:
            return await self._store.take_job(KIND, owner, self._settings.video_lease)
        except StoreUnavailable:  # the follower of the store logs this
            return _POLL_SECONDS
        except Exception:  # a job that cannot be read must not block the others
            log.exception("a video that is due cannot be taken")
            return _RETRY_PAUSE_SECONDS

    # One job

    async def _run_job(self, job: JobRecord, lease: JobLease) -> None:
        loop = asyncio.get_running_loop()
        making = loop.create_task(self._make_video(job, lease), name=f"{job.id} made")
        keeping = loop.create_task(lease.hold_until_lost(), name=f"{job.id} kept")
        watching = loop.create_task(self._watch_key(job), name=f"{job.id} watched")
        try:
            await asyncio.wait({making, keeping, watching}, return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                await self._settle_job(job, lease, making.result())
            elif watching.done():
                await until_cancelled(making)
                await self._settle_job(job, lease, revoked_error())
            else:
                log.info("%s is no longer held here: it was removed, or another gateway continues it", job.id)
                await until_cancelled(making)
                await self._release_job(job, lease.owner)  # if the store or this process was unresponsive
        except asyncio.CancelledError:
            await until_cancelled(making)
            with suppress(TimeoutError):
                async with asyncio.timeout(_GIVE_BACK_SECONDS):
                    await self._release_job(job, lease.owner)
            raise
        finally:
            for task in (making, keeping, watching):
                await until_cancelled(task)

    async def _watch_key(self, job: JobRecord) -> None:
        """Return when the key of ``job`` is revoked; ``make_video`` raises other errors of it."""
        try:
            await self._filming.wait_revoked(job)
        except OmnibusError:
            await asyncio.Event().wait()

    async def _make_video(self, job: JobRecord, lease: JobLease) -> OmnibusError | None:
        """Make the video; return its error, if any."""
        self._filming.stop_invocations(job)
        try:
            if await self._films.expiry_time(job.id):
                return None  # its gateway died before it could record the end
            if job.failed_attempts >= MAX_ATTEMPTS:
                raise StageFailed(
                    f"it was begun {MAX_ATTEMPTS} times, and its gateway or an executor died each time: request a "
                    "smaller video"
                )
            if job.until <= time.time():
                raise DeadlineExceeded("the video's deadline passed while it waited: retry when fewer requests run")
            await self._filming.make_video(job, lease)
        except Exception as error:  # noqa: BLE001 the video's error
            return client_error(error, job.id)
        return None

    async def _settle_job(self, job: JobRecord, lease: JobLease, error: OmnibusError | None) -> None:
        later = isinstance(error, Retryable | ProtocolError) and job.until > time.time()
        if error is not None and later:  # another build may be able to read a job that this one cannot
            log.info("%s is tried again: %s", job.id, error)
            counts = lease.is_suspect or (lease.has_trace and isinstance(error, ProtocolError))
            await self._release_job(job, lease.owner, getattr(error, "retry_after", _RETRY_PAUSE_SECONDS), counts)
            return
        _count_outcome(job, error)
        over = self._ended_record(job, error)
        while True:
            try:
                was_held = await self._write_end(over, lease.owner)
                break
            except StoreUnavailable as away:
                if time.time() > job.expires:  # the job has expired
                    return
                log.warning("%s has %s, which the store does not know yet: %s", job.id, over.status, away)
                await asyncio.sleep(_POLL_SECONDS)
        await self._ended(over, was_held)

    def _ended_record(self, job: JobRecord, error: OmnibusError | None) -> JobRecord:
        now = time.time()
        changes = {"ended": now, "expires": now + self._settings.video_kept}
        if error is None:
            return msgspec.structs.replace(job, status="completed", progress=100, **changes)
        return msgspec.structs.replace(job, status="failed", outcome=encode(error.to_problem()), **changes)

    async def _write_end(self, over: JobRecord, owner: str) -> bool:
        """Record the end of a job; False if ``owner`` had lost it. Raises ``StoreUnavailable``."""
        status: Literal["completed", "failed"] = "completed" if over.status == "completed" else "failed"
        retention = self._settings.video_kept
        if await self._store.end_job(KIND, over.id, owner, status, over.outcome, retention):
            return True
        is_lost = await self._store.job(KIND, over.id) is None  # the store lost it, or has recorded its removal
        return is_lost and await self._store.restore_job(KIND, over, 0.0)

    async def _release_job(self, job: JobRecord, owner: str, seconds: float = 0.0, counts: bool = False) -> None:
        """Release the job when the store is available; until then, the attempt counts."""
        while time.time() < job.expires:
            try:
                await self._store.free_job(KIND, job.id, owner, seconds, counts)
                return
            except StoreUnavailable as away:
                log.warning("%s is released when the store is available: %s", job.id, away)
                await asyncio.sleep(_POLL_SECONDS)


def _count_outcome(job: JobRecord, error: OmnibusError | None) -> None:
    with suppress(ProtocolError):
        GATEWAY.request_counter(decode_job(job).model, "ok" if error is None else error.code).inc()
