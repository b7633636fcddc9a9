"""Sender of the lines of batches to the routes of this gateway."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import msgspec
from starlette.types import ASGIApp

from omnibus.errors import Fatal
from omnibus_gateway.http.connection import BODY_COMPLETE, ON_LEFT
from omnibus_gateway.openai.batches import BatchLine, LineError, LineResponse, ResultLine, decode_body_fields
from omnibus_gateway.tenancy.deferred import DeferredWork
from omnibus_gateway.tenancy.tenant import current_tenant

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
