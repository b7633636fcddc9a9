"""Input files of jobs, stored separately: lists of jobs do not read them."""

from omnibus.store.connection import StoreConnection


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
