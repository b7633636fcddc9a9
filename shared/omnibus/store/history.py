"""Counts of system events by time, and the last failed requests, for the console's history.

Old ones expire, which bounds their size.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from omnibus.store.connection import StoreConnection

#: Seconds of one bucket, and seconds that buckets of that size are kept at most: fine ones for the last hours, coarse
#: ones for as long as the caller says.
FINE_STEP_SECONDS, MIDDLE_STEP_SECONDS, COARSE_STEP_SECONDS = 10, 120, 1200
KEPT_SECONDS = {FINE_STEP_SECONDS: 3 * 3600.0, MIDDLE_STEP_SECONDS: 26 * 3600.0, COARSE_STEP_SECONDS: float("inf")}
#: Fields of one bucket; more are left out.
MAX_FIELDS = 4096

#: Failed requests that are kept of each error code.
MAX_FAILURES = 500

_HISTORY, _LEAD, _FAILURES, _CODES = "history", "history:lead", "failures:code", "failures:codes"


class Bucket(NamedTuple):
    """Counts from ``start``, in Unix seconds, until the next bucket starts."""

    start: int
    counts: dict[str, int]


class HistoryStore(StoreConnection):
    """Buckets of counts. All gateways add to the same ones."""

    async def add_history(self, counts: Mapping[str, int], kept_seconds: float, at: float | None = None) -> None:
        """Add ``counts`` to the buckets of the time ``at``, by default now.

        The caller chooses their names.
        """
        moment = time.time() if at is None else at
        names = list(counts)[:MAX_FIELDS]
        async with self._redis.pipeline(transaction=True) as all_at_once:
            for step, retention in KEPT_SECONDS.items():
                key = self._redis_key(f"{_HISTORY}:{step}:{int(moment) // step * step}")
                for name in names:
                    all_at_once.hincrby(key, name, counts[name])
                all_at_once.expire(key, int(min(retention, kept_seconds)) + step)
            await self._run_command(all_at_once.execute())

    async def history(self, step: int, first: float, last: float) -> list[Bucket]:
        """Return the buckets from ``first`` to ``last``, including empty ones.

        They have ``step`` seconds, a key of ``KEPT_SECONDS``.
        """
        starts = range(int(first) // step * step, int(last) + 1, step)
        async with self._redis.pipeline(transaction=False) as reads:
            for start in starts:
                reads.hgetall(self._redis_key(f"{_HISTORY}:{step}:{start}"))
            rows = await self._run_command(reads.execute())
        return [
            Bucket(start, {name.decode(): int(value) for name, value in counts.items()})
            for start, counts in zip(starts, rows, strict=True)
        ]

    async def add_failures(self, failures: Mapping[str, Sequence[bytes]], kept_seconds: float) -> None:
        """Add failed requests by error code, the newest last. Each code has the last ``MAX_FAILURES``."""
        async with self._redis.pipeline(transaction=True) as all_at_once:
            all_at_once.sadd(self._redis_key(_CODES), *failures)
            all_at_once.expire(self._redis_key(_CODES), int(kept_seconds))
            for code, bodies in failures.items():
                key = self._redis_key(f"{_FAILURES}:{code}")
                all_at_once.lpush(key, *bodies)
                all_at_once.ltrim(key, 0, MAX_FAILURES - 1)
                all_at_once.expire(key, int(kept_seconds))
            await self._run_command(all_at_once.execute())

    async def failures(self) -> list[bytes]:
        """Return the failed requests of all codes."""
        codes = sorted(await self._run_command(self._redis.smembers(self._redis_key(_CODES))))
        async with self._redis.pipeline(transaction=False) as reads:
            for code in codes:
                reads.lrange(self._redis_key(f"{_FAILURES}:{code.decode()}"), 0, -1)
            rows = await self._run_command(reads.execute())
        return [body for bodies in rows for body in bodies]

    async def lead_history(self, leader: str, seconds: float) -> bool:
        """Return whether ``leader`` leads for the next ``seconds``.

        The leading gateway alone counts events that all gateways see.
        """
        key, milliseconds = self._redis_key(_LEAD), int(seconds * 1000)
        if await self._run_command(self._redis.set(key, leader, nx=True, px=milliseconds)):
            return True
        if await self._run_command(self._redis.get(key)) != leader.encode():
            return False
        await self._run_command(self._redis.pexpire(key, milliseconds))
        return True
