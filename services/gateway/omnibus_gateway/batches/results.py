"""Results of a running batch, stored in pieces to repeat no line."""

from secrets import token_hex

import msgspec

from omnibus_gateway.files.client_files import ClientFiles, owner_prefix
from omnibus_gateway.openai.batches import BatchLine, RequestCounts, ResultLine

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ResultLine).decode


class BatchResults:
    """Results of batch ``id`` of the current tenant."""

    def __init__(self, files: ClientFiles, id: str) -> None:
        self._files = files
        self._id = id
        self._done: dict[str, ResultLine] = {}
        self._unwritten: list[ResultLine] = []

    @property
    def _prefix(self) -> str:
        return f"{owner_prefix()}/batches/{self._id}"

    async def load(self) -> None:
        """Read the results that earlier workers wrote."""
        for piece in await self._files.storage.list(f"{self._prefix}/results"):
            for text in (await self._files.storage.get(piece.key)).splitlines():
                result = _decode(text)
                self._done[result.custom_id] = result

    def missing(self, lines: list[BatchLine]) -> list[BatchLine]:
        """Return the lines of ``lines`` that have no result yet."""
        return [line for line in lines if line.custom_id not in self._done]

    def add(self, result: ResultLine) -> None:
        self._done[result.custom_id] = result
        self._unwritten.append(result)

    async def write(self) -> None:
        """Write the results since the last call."""
        fresh, self._unwritten = self._unwritten, []
        if fresh:
            await self._files.storage.put(f"{self._prefix}/results/{token_hex(8)}", _join_lines(fresh))

    def counts(self, total: int) -> RequestCounts:
        """Count the lines of a batch that has ``total``."""
        good = sum(map(is_success, self._done.values()))
        return RequestCounts(total=total, completed=good, failed=len(self._done) - good)

    async def close(self, lines: list[BatchLine], seconds: float) -> tuple[str | None, str | None]:
        """Write the results to files in the order of ``lines``. Returns the ids of the output and error files."""
        results = [self._done[line.custom_id] for line in lines if line.custom_id in self._done]
        good = [each for each in results if is_success(each)]
        bad = [each for each in results if not is_success(each)]
        output = await self._write_file(good, "output", seconds)
        return output, await self._write_file(bad, "error", seconds)

    async def discard(self) -> None:
        """Remove the pieces after the batch has ended."""
        for piece in await self._files.storage.list(self._prefix):
            await self._files.storage.delete(piece.key)

    async def is_cancelled(self) -> bool:
        """Return whether a client cancelled the batch."""
        return bool(await self._files.storage.list(f"{self._prefix}/cancelled"))

    async def cancel(self) -> None:
        """Mark the batch as cancelled for its worker."""
        await self._files.storage.put(f"{self._prefix}/cancelled/now", b"")

    async def _write_file(self, results: list[ResultLine], name: str, seconds: float) -> str | None:
        if not results:
            return None
        data, file = _join_lines(results), f"{self._id}_{name}.jsonl"
        output_file = await self._files.add(data, file, "batch_output", "application/jsonl", seconds, limited=False)
        return output_file.id


def is_success(result: ResultLine) -> bool:
    """Return whether a line has a successful response."""
    return result.response is not None and result.response.status_code < 400


def _join_lines(results: list[ResultLine]) -> bytes:
    return b"".join(_encode(each) + b"\n" for each in results)
