"""Copy of the store's jobs at each gateway: restores lost jobs, but not removed ones."""

import logging
import time
from collections.abc import Collection

import msgspec

from omnibus.store import JobRecord, Store
from omnibus_gateway.videos.job_payload import KIND
from omnibus_gateway.videos.storage import VideoFiles

log = logging.getLogger(__name__)

#: Seconds that removals are remembered, in case the store loses them.
_REMOVED_TTL_SECONDS = 3600.0


class JobMirror:
    """Follows at most ``capacity`` jobs of ``store``; ``films`` shows which of them have a file.

    A delayed gateway may remember an older state than the store had. The file of a video decides in that case, so that
    a finished video stays completed.
    """

    def __init__(self, store: Store, films: VideoFiles, capacity: int, lease_seconds: float) -> None:
        self._store = store
        self._films = films
        self._capacity = capacity
        self._lease_seconds = lease_seconds
        self._jobs: dict[str, JobRecord] = {}
        self._removed: dict[str, float] = {}  # Unix seconds of their removal
        self._life = ""

    def __contains__(self, id: str) -> bool:
        return id in self._jobs

    def put(self, job: JobRecord) -> None:
        """Remember a job, unless a later state is known."""
        known_job = self._jobs.get(job.id)
        if known_job is None or (job.is_over, job.attempt) >= (known_job.is_over, known_job.attempt):
            self._jobs[job.id] = job

    def remove(self, id: str) -> None:
        """Forget a job that a client removed."""
        self._jobs.pop(id, None)
        self._removed[id] = time.time()

    def ids_of(self, tenant: str) -> list[str]:
        return [job.id for job in self._jobs.values() if job.tenant == tenant]

    async def synchronise(self, held_ids: Collection[str]) -> None:
        """Read changes, and restore lost jobs; the leases of jobs ``held_ids`` here restore those.

        Raises ``StoreUnavailable``.
        """
        review = await self._store.review_jobs(KIND, self._capacity, list(self._jobs))
        if self._life and review.life != self._life:
            await self._repeat_removals()
        self._life = review.life
        for id in review.removed:
            self._jobs.pop(id, None)
            await self._films.remove_files(id)  # the removal may be at a gateway with another directory
        await self._restore_lost([id for id in review.lost if id not in held_ids])
        changed_ids = [
            id for id, state in review.states.items() if self._job_state(id) != state and id not in self._removed
        ]
        for job in (await self._store.read_jobs(KIND, changed_ids)).values():
            self.put(job)
        self._trim_jobs(review.states)

    def _job_state(self, id: str) -> object:
        job = self._jobs.get(id)
        return job.state if job is not None else None

    async def _repeat_removals(self) -> None:
        now = time.time()
        self._removed = {id: at for id, at in self._removed.items() if at > now - _REMOVED_TTL_SECONDS}
        for id in self._removed:
            await self._store.drop_job(KIND, id)

    async def _restore_lost(self, lost_ids: list[str]) -> None:
        restored_count = 0
        for id in sorted(lost_ids, key=lambda id: self._jobs[id].created):
            job = await self.as_made(self._jobs[id])
            if job is None or job.expires <= time.time():
                self._jobs.pop(id, None)
            elif await self._store.restore_job(KIND, job, self._lease_seconds):
                self._jobs[id] = job
                restored_count += 1
        if restored_count:
            log.warning("the store lost %d videos: they were restored", restored_count)

    async def as_made(self, job: JobRecord) -> JobRecord | None:
        """Mark a job as completed if its file exists; None for a removed one."""
        if job.status == "failed":
            return job
        expires = await self._films.expiry_time(job.id)
        if job.status == "completed":
            return job if expires else None
        if not expires:
            return job
        return msgspec.structs.replace(job, status="completed", progress=100, ended=time.time(), expires=expires)

    def _trim_jobs(self, there: Collection[str]) -> None:
        """Forget expired jobs, and the oldest ones over the capacity."""
        now = time.time()
        expired_ids = [id for id, job in self._jobs.items() if id not in there and job.expires <= now]
        oldest = sorted(self._jobs, key=lambda id: self._jobs[id].created)[: max(0, len(self._jobs) - self._capacity)]
        for id in (*expired_ids, *oldest):
            self._jobs.pop(id, None)
