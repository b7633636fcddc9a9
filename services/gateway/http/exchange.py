"""One chat request over ASGI: the answer as it is sent, and its one end, however that comes about."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from omnibus.errors import Fatal, OmnibusError, clear_tracebacks
from omnibus.metrics import GATEWAY
from omnibus.task import ChatOutput
from services.gateway.http.server import ON_LEFT
from services.gateway.media.spoken_answers import SpokenAnswers
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.errors import error_body, error_headers, status_of
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.continuing import HEADER, ResumableStream, claimed_error
from services.gateway.request.request import ClientRequest
from services.gateway.tasks import chat_response

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"

T = TypeVar("T")


class ChatExchange:
    """A request in flight and everything that must happen once when it is over."""

    def __init__(
        self,
        run: ClientRequest,
        request: ChatRequest,
        output: ChatOutput,
        on_end: Callable[[], None] | None = None,
        keeper: SpokenAnswers | None = None,
        continued: ResumableStream | None = None,
    ) -> None:
        self.run = run
        self.request = request
        self.output = output
        self.got = AnswerAccumulator(request.model, run.created)
        self._over = False
        self._on_end = on_end
        self._keeper = keeper
        self._continued = continued
        self._timer = asyncio.get_running_loop().call_later(max(0.0, run.deadline - time.time()), self._on_deadline)
        if continued is not None:
            continued.set_claim_callback(self._on_claimed)

    async def send_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. A client that leaves cancels what still runs."""
        watch = None
        if ON_LEFT in scope:
            scope[ON_LEFT] = self.on_client_left
        else:
            watch = asyncio.get_running_loop().create_task(self._watch_disconnect(receive))
        try:
            await (self._send_stream(send) if self.request.stream else self._send_completion(send))
        finally:
            if watch is not None:
                watch.cancel()
            self.on_client_left()  # nothing when the answer is whole

    async def _send_completion(self, send: Send) -> None:
        try:
            body = await chat_response.render_completion(self.run, self.request, self.output, self.got, self._keeper)
        except OmnibusError as error:
            self.run.fail(error)
            self.end("failed")
            await send_error(send, error, self.run.id)
            return
        self.end("done")
        await send_response(send, 200, JSON, body, self._response_headers())

    async def _send_stream(self, send: Send) -> None:
        continued = self._continued
        if continued is not None:
            await continued.save_record(self.run)
        parts = chat_response.stream_events(
            self.run, self.request, self.output, self.got, self.end, self._keeper, continued
        )
        try:
            first = await anext(parts)
        except OmnibusError as error:  # nothing has left: an answer like any other
            await send_error(send, error, self.run.id)
            return
        headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), *self._response_headers()]
        if continued is not None and continued.record is not None:
            headers.append((HEADER, continued.token.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for part in parts:
            if part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _watch_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.on_client_left()

    def _response_headers(self) -> list[tuple[bytes, bytes]]:
        return response_headers(self.run)

    def _on_deadline(self) -> None:
        self.run.expire()
        self.end("expired")

    def _on_claimed(self) -> None:
        """The client waits for the rest elsewhere."""
        self.run.fail(claimed_error())
        self.end("cancelled")

    def on_client_left(self) -> None:
        """The client left: everything stops."""
        if not self._over:
            self.run.fail(Fatal("the client left"))
            self.end("cancelled")

    def end(self, status: str) -> None:
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        GATEWAY.request_counter(self.request.model, self._outcome_code(status)).inc()
        GATEWAY.duration_histogram(self.request.model).observe(time.time() - self.run.created)
        self.run.end(status, self.got)
        if self._continued is not None:
            self._continued.close(whole=status == "done")
        if self._on_end is not None:
            self._on_end()

    def _outcome_code(self, status: str) -> str:
        """Return the outcome to count: a client that left is no fault of the gateway, even if its run failed."""
        if status in ("done", "cancelled"):
            return "ok" if status == "done" else status
        return self.run.failure.code if self.run.failure is not None else status


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises ``ClientLeft`` in the middle of it."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if body := message.get("body", b""):
            yield body
        if not message.get("more_body"):
            return


async def while_connected(scope: Scope, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do ``work`` for as long as the client waits for it. Raises ``ClientLeft``; the work was cancelled then."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    watch = None
    if ON_LEFT in scope:
        scope[ON_LEFT] = task.cancel
    else:
        watch = loop.create_task(_cancel_on_leave(receive, task))
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            task.cancel()
            raise
        raise ClientLeft from None
    finally:
        if watch is not None:
            watch.cancel()
        elif scope[ON_LEFT] == task.cancel:
            scope[ON_LEFT] = None
        # The traceback of an error refers to this frame. If that referred to the error's task, they would stay until
        # the garbage collector comes by, which is seldom, and the body of the request with them.
        del task, watch


async def _cancel_on_leave(receive: Receive, task: "asyncio.Task[Any]") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


def response_headers(run: ClientRequest) -> list[tuple[bytes, bytes]]:
    """Headers that tell a client where to look: invocation, path and plan epoch."""
    return [
        (b"x-request-id", run.id.encode()),
        (b"x-omnibus-path", run.path.encode()),
        (b"x-omnibus-epoch", b"%d" % run.epoch),
    ]


async def send_response(send: Send, status: int, kind: bytes, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    """A whole response."""
    headers: list[Any] = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: OmnibusError, id: str = "") -> None:
    """An error in OpenAI's shape. It ends here."""
    extra = [(key.lower().encode(), value.encode()) for key, value in error_headers(error).items()]
    if id:
        extra.append((b"x-request-id", id.encode()))
    await send_response(send, status_of(error), JSON, error_body(error, id), extra)
    clear_tracebacks(error)
