"""One chat request over ASGI: the answer as it is sent, and its one end, however that comes about."""

import asyncio
import time
from typing import Any

from starlette.types import Receive, Scope, Send

from omnibus.errors import DeadlineExceeded, Fatal, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.task import ChatOutput
from services.gateway import answer
from services.gateway.collected import Collected
from services.gateway.dispatch import Dispatcher
from services.gateway.openai.problems import error_body, error_headers, status_of
from services.gateway.openai.schema import ChatRequest
from services.gateway.records import Records
from services.gateway.running import Running
from services.gateway.server import ON_LEFT

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class Exchange:
    """A request in flight and everything that must happen once when it is over."""

    def __init__(
        self, running: Running, request: ChatRequest, output: ChatOutput, dispatcher: Dispatcher, records: Records
    ) -> None:
        self.running = running
        self.request = request
        self.output = output
        self.got = Collected(request.model, running.invocation.created)
        self._dispatcher = dispatcher
        self._records = records
        self._over = False
        left = running.invocation.deadline - time.time()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. A client that leaves cancels what still runs."""
        watch = None
        if ON_LEFT in scope:
            scope[ON_LEFT] = self.left
        else:
            watch = asyncio.get_running_loop().create_task(self._watch(receive))
        try:
            await (self._stream(send) if self.request.stream else self._whole(send))
        finally:
            if watch is not None:
                watch.cancel()
            self.left()  # nothing when the answer is whole

    async def _whole(self, send: Send) -> None:
        try:
            body = await answer.whole(self.running, self.request, self.output, self.got)
        except OmnibusError as error:
            self.end("failed")
            await problem(send, error, self.running.id)
            return
        self.end("done")
        await respond(send, 200, JSON, body, self._about())

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), *self._about()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in answer.events(self.running, self.request, self.output, self.got, self.end):
            if part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left()

    def _about(self) -> list[tuple[bytes, bytes]]:
        """Headers that tell a client where to look: invocation, path and plan epoch."""
        invocation = self.running.invocation
        return [
            (b"x-request-id", invocation.id.encode()),
            (b"x-omnibus-path", invocation.path.encode()),
            (b"x-omnibus-epoch", b"%d" % invocation.epoch),
        ]

    def _expire(self) -> None:
        self.running.fail(DeadlineExceeded("the request took longer than its deadline"))
        self.end("expired")

    def left(self) -> None:
        """The client left: everything stops."""
        if not self._over:
            self.running.fail(Fatal("the client left"))
            self.end("cancelled")

    def end(self, status: str) -> None:
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        failure = self.running.failure
        GATEWAY.outcome(self.request.model, "ok" if status == "done" else failure.code if failure else status).inc()
        GATEWAY.seconds(self.request.model).observe(time.time() - self.running.invocation.created)
        if status == "done":
            self._dispatcher.complete(self.running, lambda: self._record("done"))
        else:
            self._dispatcher.finish(self.running, status)
            self._record(status)

    def _record(self, status: str) -> None:
        self._records.end(self.running, status, self.got)


async def respond(send: Send, status: int, kind: bytes, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    """A whole response."""
    headers: list[Any] = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def problem(send: Send, error: OmnibusError, id: str = "") -> None:
    """An error in OpenAI's shape."""
    extra = [(key.lower().encode(), value.encode()) for key, value in error_headers(error).items()]
    if id:
        extra.append((b"x-request-id", id.encode()))
    await respond(send, status_of(error), JSON, error_body(error, id), extra)
