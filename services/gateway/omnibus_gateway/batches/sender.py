"""Sending of a batch's lines to the routes of this gateway, and the file of their results."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import msgspec
from starlette.types import ASGIApp

from omnibus.errors import Fatal
from omnibus_gateway.http.connection import BODY_COMPLETE, ON_LEFT
from omnibus_gateway.media.client_files import ClientFiles, owner_prefix
from omnibus_gateway.openai.batches import (
    BatchLine,
    LineError,
    LineResponse,
    RequestCounts,
    ResultLine,
    decode_body_fields,
)
from omnibus_gateway.tenancy.tenant import DeferredWork, current_tenant

#: Statuses after which a line is retried: there was no room, or an executor was lost.
_RETRIED = frozenset({429, 503, 507})
#: Seconds before the retry of a line without ``Retry-After``, and the limit of that time.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


class LineSender:
    """Sends lines to ``routes``, which handle POST requests by path. A line counts as a request of its batch's key."""

    def __init__(self, routes: Mapping[str, ASGIApp], deferred_work: DeferredWork) -> None:
        self._routes = routes
        self._deferred = deferred_work
        self._calling: set[asyncio.Task[Any] | None] = set()

    def is_calling(self, task: asyncio.Task[Any]) -> bool:
        """Return whether ``task`` runs a request, not waiting for a turn."""
        return task in self._calling

    async def send_line(self, line: BatchLine) -> ResultLine:
        """Send a line and return its result. Retries while there is no room; the caller limits the time."""
        fields = decode_body_fields(line.body)
        if not isinstance(fields, dict) or fields.get("stream"):
            message = (
                "the body of a line must be an object"
                if not isinstance(fields, dict)
                else "lines cannot be streamed: omit stream"
            )
            return _result(line, error=LineError(code="invalid_body", message=message))
        pause = _PAUSE_SECONDS
        while True:
            tenant = current_tenant()
            await self._deferred.wait_turn(tenant)
            with self._deferred.counted(tenant), self._called():
                status, headers, body = await self._call_route(line)
            if status not in _RETRIED:
                return _result(line, response=_response(status, headers, body))
            await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, max(pause, _retry_after(headers))))
            pause *= 2

    @contextmanager
    def _called(self) -> Iterator[None]:
        task = asyncio.current_task()
        self._calling.add(task)
        try:
            yield
        finally:
            self._calling.discard(task)

    async def _call_route(self, line: BatchLine) -> tuple[int, dict[bytes, bytes], bytes]:
        body = bytes(line.body)
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        events: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # there is no client to disconnect: cancellation ends this
            raise AssertionError

        async def send(message: Any) -> None:
            events.append(message)

        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        scope = {
            "type": "http", "method": "POST", "path": line.url, "raw_path": line.url.encode(), "query_string": b"",
            "http_version": "1.1", "scheme": "http", "root_path": "", "headers": headers, "server": None,
            "client": None, ON_LEFT: None, BODY_COMPLETE: True,
        }  # fmt: skip
        await self._routes[line.url](scope, receive, send)
        if not events:
            raise Fatal(f"{line.url} sent no response")
        return events[0]["status"], dict(events[0]["headers"]), b"".join(each.get("body", b"") for each in events[1:])


def failed_line(line: BatchLine, code: str, message: str) -> ResultLine:
    """Return the result of a line that was not sent."""
    return _result(line, error=LineError(code=code, message=message))


def _result(line: BatchLine, response: LineResponse | None = None, error: LineError | None = None) -> ResultLine:
    return ResultLine(id=f"batch_req_{token_hex(12)}", custom_id=line.custom_id, response=response, error=error)


def _response(status: int, headers: dict[bytes, bytes], body: bytes) -> LineResponse:
    id = headers.get(b"x-request-id", b"").decode("latin-1")
    return LineResponse(status_code=status, request_id=id, body=msgspec.Raw(body or b"null"))


def _retry_after(headers: dict[bytes, bytes]) -> float:
    header = headers.get(b"retry-after", b"0")
    return float(header) if header.isdigit() else 0.0


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
