"""Jobs that outlive the requests that created them, and their workers.

A job is ``queued``, then ``in_progress`` while a worker holds it, then ``completed`` or ``failed``. A worker holds a
job for some seconds at a time and renews that regularly. If it fails to renew, the job is due for another worker. Each
holder has a unique name, so that a late one cannot change the job. Times are the server's: clocks of workers do not
matter.

Input files of jobs, stored separately: lists of jobs do not read them.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from itertools import count
from secrets import token_hex
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from omnibus.errors import Overloaded
from omnibus.store.connection import FunctionRefused, StoreConnection

JobStatus = Literal["queued", "in_progress", "completed", "failed"]
_STATUS: dict[bytes, JobStatus] = {
    b"queued": "queued",
    b"in_progress": "in_progress",
    b"completed": "completed",
    b"failed": "failed",
}
#: Seconds until a client that was rejected for lack of room may retry.
_RETRY_AFTER_SECONDS = 10.0


class JobRecord(Struct, frozen=True, kw_only=True):
    """One job. Times are Unix seconds; those of future events are 0.

    ``request`` and ``outcome`` are opaque to the store. ``until`` is the end of the client's interest in the job, and
    ``expires`` the time of its removal. ``attempt`` counts the workers that started it. ``faults`` counts the attempts
    that the job itself made fail, as their workers reported. ``silent`` names the workers that stopped without a
    report. ``trace`` lists the holder's work in progress, which the next holder may have to clean up. ``tenant`` is
    empty if tenants are not distinguished. ``key`` is the SHA-256 of the API key under which the job runs. It is empty
    without keys, and in jobs of builds that did not record it.
    """

    id: str
    request: bytes
    created: float
    until: float
    expires: float
    status: JobStatus = "queued"
    progress: int = 0
    attempt: int = 0
    faults: int = 0
    silent: tuple[str, ...] = ()
    ended: float = 0.0
    outcome: bytes = b""
    trace: bytes = b""
    tenant: str = ""
    key: str = ""

    @property
    def state(self) -> "JobState":
        return JobState(self.status, self.attempt, self.ended)

    @property
    def failed_attempts(self) -> int:
        """Known number of attempts that the job itself made fail."""
        return self.faults + len(self.silent)

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed")


class JobState(NamedTuple):
    """Progress of a job: a later state never turns into an earlier one."""

    status: JobStatus
    attempt: int
    ended: float


class JobReview(NamedTuple):
    """Jobs in the store, compared with those that the caller remembers.

    ``life`` changes when the store loses its data. ``states`` has those of the newest jobs by id. Of the remembered
    jobs, ``removed`` were removed on purpose, and ``lost`` are unknown to the store.
    """

    life: str
    states: dict[str, JobState]
    removed: list[str]
    lost: list[str]


class JobRules(Struct, frozen=True):
    """Limits on open jobs and all jobs, in total and per tenant.

    Open jobs are queued or in progress. 0 means no limit for a tenant.
    """

    open: int
    kept: int
    tenant_open: int = 0
    tenant_kept: int = 0


class JobPage(NamedTuple):
    """Jobs in order, and whether more follow them."""

    jobs: list[JobRecord]
    more: bool


class JobStore(StoreConnection):
    """Jobs by kind and id. A kind is a word such as ``video``."""

    async def put_job(self, kind: str, job: JobRecord, rules: JobRules) -> bool:
        """Add a job unless its id exists; return whether it was added.

        A job that has ended stays so. Raises ``Overloaded`` if ``rules`` allow no more jobs.
        """
        limits = (job.tenant, *map(str, (rules.open, rules.kept, rules.tenant_open, rules.tenant_kept)))
        fields = _job_fields(job, "", "queued")
        try:
            is_new = await self._run_function(
                "omnibus_put_job", _job_keys(kind), job.id, _milliseconds_text(job.expires), *limits, *fields
            )
        except FunctionRefused as error:
            raise Overloaded(_FULL_MESSAGES[error.what], retry_after=_RETRY_AFTER_SECONDS) from error
        return bool(is_new)

    async def restore_job(self, kind: str, job: JobRecord, seconds: float, owner: str = "") -> bool:
        """Write a job that the store may have lost; return whether ``job`` is now its state.

        Of two states the later one wins, and a removed job stays removed. With ``owner`` it is held again for
        ``seconds``, unless another worker took it meanwhile. Without one it is due after ``seconds``, in which its
        holder can renew.
        """
        status: JobStatus = "in_progress" if owner else job.status
        about = (_milliseconds_text(job.expires), _milliseconds_text(seconds), owner, status, str(job.attempt))
        fields = _job_fields(job, owner, status)
        return bool(await self._run_function("omnibus_restore_job", _job_keys(kind), job.id, *about, *fields))

    async def review_jobs(self, kind: str, most: int, known_ids: Collection[str]) -> JobReview:
        """Return the ``most`` newest jobs' states, and which ``known_ids`` ids are gone."""
        reply = await self._run_function("omnibus_review_jobs", _job_keys(kind), token_hex(8), str(most), *known_ids)
        life, flat, removed_ids, lost_ids = reply
        rows = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
        states = {
            id.decode(): JobState(_STATUS[status], int(attempt), int(end_time) / 1000)
            for id, status, attempt, end_time in rows
            if status in _STATUS
        }
        return JobReview(life.decode(), states, [id.decode() for id in removed_ids], [id.decode() for id in lost_ids])

    async def take_job(self, kind: str, owner: str, seconds: float) -> JobRecord | float:
        """Hold a due job for ``seconds``: without one, return the seconds until the next.

        Tenants take turns: first those with the fewest jobs in progress, then those with the oldest turn.
        """
        reply = await self._run_function("omnibus_take_job", _job_keys(kind), owner, _milliseconds_text(seconds))
        return _decode_record(reply[0].decode(), reply[1:]) if isinstance(reply, list) else int(reply) / 1000

    async def job_waits(self, kind: str, tenant: str) -> bool:
        """Return whether a due job belongs to a tenant less busy than ``tenant``.

        A less busy tenant has fewer jobs in progress.
        """
        return bool(await self._run_known_function("omnibus_job_waits", _job_keys(kind), tenant))

    async def hold_job(self, kind: str, id: str, owner: str, seconds: float, progress: int, trace: bytes = b"") -> bool:
        """Hold a job for another ``seconds``, and record its progress and ``trace``.

        The progress is in percent. Returns False if ``owner`` has lost it.
        """
        arguments = (id, owner, _milliseconds_text(seconds), str(progress), _as_text(trace))
        return bool(await self._run_function("omnibus_hold_job", _job_keys(kind), *arguments))

    async def free_job(self, kind: str, id: str, owner: str, seconds: float = 0.0, counts: bool = False) -> bool:
        """Release a job, due again in ``seconds``; return False if ``owner`` has lost it.

        With ``counts`` the attempt is one of its ``faults``. Without it no attempt of ``owner`` counts, even if
        ``owner`` has lost the job: it was silent for another reason.
        """
        arguments = (id, owner, _milliseconds_text(seconds), str(int(counts)))
        return bool(await self._run_function("omnibus_free_job", _job_keys(kind), *arguments))

    async def end_job(
        self, kind: str, id: str, owner: str, status: Literal["completed", "failed"], outcome: bytes, seconds: float
    ) -> bool:
        """End a job once and store it for ``seconds``; return False if ``owner`` has lost it."""
        arguments = (id, owner, status, _as_text(outcome), _milliseconds_text(seconds))
        return bool(await self._run_function("omnibus_end_job", _job_keys(kind), *arguments))

    async def drop_job(self, kind: str, id: str) -> bool:
        """Remove a job in any state; return False if it does not exist."""
        return bool(await self._run_function("omnibus_drop_job", _job_keys(kind), id))

    async def job(self, kind: str, id: str) -> JobRecord | None:
        """Return a job: None if it does not exist or has expired."""
        jobs = await self._fetch_jobs(kind, [id])
        return jobs.get(id)

    async def jobs(self, kind: str, limit: int = 20, after: str = "", newest: bool = True) -> JobPage | None:
        """Return at most ``limit`` jobs by creation time, those after ``after``.

        Returns None if ``after`` no longer exists.
        """
        creation_key = self._redis_key(f"jobs:{kind}:made")
        begin = 0
        if after:
            rank = await self._run_command(
                self._redis.zrevrank(creation_key, after) if newest else self._redis.zrank(creation_key, after)
            )
            if rank is None:
                return None
            begin = int(rank) + 1
        ids = await self._run_command(self._redis.zrange(creation_key, begin, begin + limit, desc=newest))
        page_jobs = await self._fetch_jobs(kind, [id.decode() for id in ids])
        return JobPage(list(page_jobs.values())[:limit], len(ids) > limit)

    async def held_jobs(self, kind: str, owners: dict[str, str]) -> set[str]:
        """Return the ids in ``owners`` that these owners still hold."""
        async with self._redis.pipeline(transaction=False) as several:
            for id in owners:
                several.hget(self._redis_key(f"job:{kind}:{id}"), "owner")
            holders = await self._run_command(several.execute()) if owners else []
        return {id for (id, owner), holder in zip(owners.items(), holders, strict=True) if holder == owner.encode()}

    async def read_jobs(self, kind: str, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Return the jobs of ``ids`` that exist, by id."""
        return await self._fetch_jobs(kind, ids)

    def job_changes(self, kind: str) -> AsyncIterator[int]:
        """Yield a number after each change of jobs, and every few seconds. Reconnects automatically."""
        numbers = count()

        async def next_number() -> int:
            return next(numbers)

        return self._follow_channel(f"jobs:{kind}", next_number)

    async def _fetch_jobs(self, kind: str, ids: Sequence[str]) -> dict[str, JobRecord]:
        async with self._redis.pipeline(transaction=False) as several:
            for id in ids:
                key = self._redis_key(f"job:{kind}:{id}")
                several.hmget(key, *_FIELDS)
                several.pexpiretime(key)
            replies = await self._run_command(several.execute()) if ids else []
        bodies = zip(ids, replies[::2], replies[1::2], strict=True)
        return {id: _decode_record(id, [*values, expires]) for id, values, expires in bodies if values[0] is not None}


_FIELDS = (
    "request", "created", "until", "status", "progress", "attempt", "faults", "silent", "ended", "outcome", "trace",
    "tenant", "key",
)  # fmt: skip
_FULL_MESSAGES = {
    "open": "too many jobs are waiting or in progress: try again later",
    "kept": "the limit of stored jobs is reached: delete some, or wait until they expire",
    "tenant_open": "you have as many open jobs as one tenant may have: try again later",
    "tenant_kept": "your limit of stored jobs is reached: delete some, or wait until they expire",
}


def _job_keys(kind: str) -> tuple[str, ...]:
    root = f"jobs:{kind}"
    return (
        f"{root}:made",
        f"{root}:due",
        f"{root}:ends",
        f"job:{kind}:",
        root,
        f"{root}:removed",
        f"{root}:life",
        f"{root}:turns",
    )


def _job_fields(job: JobRecord, owner: str, open_status: JobStatus) -> list[str]:
    """Return a job as a flat list of names and values.

    A job that has not ended gets ``open_status`` and belongs to ``owner``.
    """
    fields = {
        "request": job.request,
        "status": job.status if job.is_over else open_status,
        "attempt": str(job.attempt),
        "faults": str(job.faults),
        "silent": " ".join(job.silent),
        "progress": "0" if open_status == "queued" and not job.is_over else str(job.progress),
        "created": _milliseconds_text(job.created),
        "until": _milliseconds_text(job.until),
        "ended": _milliseconds_text(job.ended),
        "outcome": job.outcome,
        "trace": b"" if job.is_over else job.trace,
        "owner": "" if job.is_over else owner,
        "tenant": job.tenant,
        "key": job.key,
    }
    return [_as_text(each) for pair in fields.items() for each in pair]


def _decode_record(id: str, values: Sequence[Any]) -> JobRecord:
    (
        request,
        creation_time,
        until,
        status,
        progress,
        attempt,
        faults,
        silent,
        end_time,
        outcome,
        trace,
        tenant,
        key,
        expires,
    ) = values
    return JobRecord(
        id=id,
        request=bytes(request),
        created=int(creation_time) / 1000,
        until=int(until) / 1000,
        status=_STATUS[status],
        progress=int(progress),
        attempt=int(attempt),
        faults=int(faults or 0),
        silent=tuple(bytes(silent or b"").decode().split()),
        ended=int(end_time) / 1000,
        outcome=bytes(outcome),
        trace=bytes(trace or b""),
        tenant=bytes(tenant or b"").decode(),
        key=bytes(key or b"").decode(),
        expires=int(expires) / 1000,
    )


def _milliseconds_text(seconds: float) -> str:
    return str(round(seconds * 1000))


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


class JobFileStore(StoreConnection):
    """Files by the kind and id of their job."""

    async def put_job_file(self, kind: str, id: str, data: bytes, seconds: float) -> None:
        """Store ``data`` for ``seconds``."""
        await self._run_command(self._redis.set(self._file_key(kind, id), data, px=max(1, round(seconds * 1000))))

    async def job_file(self, kind: str, id: str) -> bytes | None:
        """Return the file: None if it does not exist or has expired."""
        content: bytes | None = await self._run_command(self._redis.get(self._file_key(kind, id)))
        return content

    async def drop_job_file(self, kind: str, id: str) -> None:
        """Remove a file, if there is one."""
        await self._run_command(self._redis.delete(self._file_key(kind, id)))

    def _file_key(self, kind: str, id: str) -> str:
        return self._redis_key(f"jobfile:{kind}:{id}")
