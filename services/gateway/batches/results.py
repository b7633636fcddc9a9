"""Results of a batch while it is worked on: pieces of files, so that who goes on with it sends no line twice."""

from secrets import token_hex

import msgspec

from services.gateway.files.client_files import ClientFiles, owner_prefix
from services.gateway.openai.batches import BatchLine, RequestCounts, ResultLine

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ResultLine).decode


class BatchResults:
    """Results of batch ``id`` of the tenant that is being served."""

    def __init__(self, files: ClientFiles, id: str) -> None:
        self._files = files
        self._id = id
        self._done: dict[str, ResultLine] = {}
        self._unwritten: list[ResultLine] = []

    @property
    def _prefix(self) -> str:
        return f"{owner_prefix()}/batches/{self._id}"

    async def load(self) -> None:
        """Read the results that somebody wrote who worked on the batch before."""
        for piece in await self._files.storage.list(f"{self._prefix}/results"):
            for text in (await self._files.storage.get(piece.key)).splitlines():
                found = _decode(text)
                self._done[found.custom_id] = found

    def missing(self, lines: list[BatchLine]) -> list[BatchLine]:
        """Lines of ``lines`` that have no result yet."""
        return [line for line in lines if line.custom_id not in self._done]

    def add(self, result: ResultLine) -> None:
        self._done[result.custom_id] = result
        self._unwritten.append(result)

    async def write(self) -> None:
        """Write what has come since the last time."""
        fresh, self._unwritten = self._unwritten, []
        if fresh:
            await self._files.storage.put(f"{self._prefix}/results/{token_hex(8)}", _join_lines(fresh))

    def counts(self, total: int) -> RequestCounts:
        """Counts of the lines of a batch that has ``total``."""
        good = sum(map(is_success, self._done.values()))
        return RequestCounts(total=total, completed=good, failed=len(self._done) - good)

    async def close(self, lines: list[BatchLine], seconds: float) -> tuple[str | None, str | None]:
        """Make files of the results, in the order of ``lines``; returns their ids: of good ones, and of others."""
        ordered = [self._done[line.custom_id] for line in lines if line.custom_id in self._done]
        good = [each for each in ordered if is_success(each)]
        bad = [each for each in ordered if not is_success(each)]
        output = await self._write_file(good, "output", seconds)
        return output, await self._write_file(bad, "error", seconds)

    async def discard(self) -> None:
        """Remove the pieces, once the batch is over."""
        for piece in await self._files.storage.list(self._prefix):
            await self._files.storage.delete(piece.key)

    async def is_cancelled(self) -> bool:
        """Return whether somebody cancelled the batch."""
        return bool(await self._files.storage.list(f"{self._prefix}/cancelled"))

    async def cancel(self) -> None:
        """Have whoever works on the batch end it."""
        await self._files.storage.put(f"{self._prefix}/cancelled/now", b"")

    async def _write_file(self, results: list[ResultLine], name: str, seconds: float) -> str | None:
        if not results:
            return None
        data, file = _join_lines(results), f"{self._id}_{name}.jsonl"
        made = await self._files.add(data, file, "batch_output", "application/jsonl", seconds, limited=False)
        return made.id


def is_success(result: ResultLine) -> bool:
    """Return whether a line was answered as it wanted."""
    return result.response is not None and result.response.status_code < 400


def _join_lines(results: list[ResultLine]) -> bytes:
    return b"".join(_encode(each) + b"\n" for each in results)
