"""One request in a worker: runs its graphs as segments of a ``ClientRequest``, and returns its answer."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omnibus.app import protocol
from omnibus.app.protocol import unpack_items
from omnibus.errors import AppFailed, DeadlineExceeded, OmnibusError, ProtocolError, from_problem
from omnibus_gateway.apps.graph_submission import (
    AppOutputStream,
    SegmentRunner,
    SegmentSubmissions,
    check_json_line,
    output_names,
)
from omnibus_gateway.apps.worker_process import WorkerProcess
from omnibus_gateway.core import AppCallLog, ItemStream


class Call:
    """Request ``run`` in the worker ``process``.

    Read its answer once, with ``read_answer``, ``read_parts`` or ``wait_for_outputs``. The run ends with the answer:
    done, failed, expired, or cancelled. The run of a chat ends with its streams: the caller of ``wait_for_outputs``
    ends it, and calls ``close``.
    """

    def __init__(
        self,
        process: WorkerProcess,
        run: SegmentRunner,
        kind: str,
        issued_literals: frozenset[bytes],
        cancel_within: float,
    ) -> None:
        self._process = process
        self._run = run
        self._kind = kind
        self._placed = bool(issued_literals)
        self.log: AppCallLog | None = None  # once it was sent, if the run has a log
        self._cancel_within = cancel_within
        self._loop = asyncio.get_running_loop()
        self._id = process.add_request(self)
        self._segments = SegmentSubmissions(process, self._id, run, issued_literals)
        self._answer: bytes | None = None
        self._outputs: dict[str, ItemStream] | None = None
        self._parts: deque[tuple[bytes, int]] = deque()
        self._ahead = 0
        self._failure: OmnibusError | None = None
        self._over = False  # the worker has ended it
        self._ended = False  # the run has ended, or the caller ends it
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None

    def send_to_worker(self, body: bytes, number: int) -> None:
        """Send it to the worker. Raises ``TooLarge``."""
        run = self._run
        if run.logs_calls:
            self.log = AppCallLog(self._kind, number, body, placed=self._placed)
        try:
            self._process.send(protocol.Serve(self._id, run.id, body, self._kind, number, run.deadline))
        except OmnibusError as error:
            self._mark_ended()
            self._fail(error)
            raise
        self._timer = self._loop.call_later(max(0.0, run.deadline - time.time()), self._expire)

    # Answers

    async def read_answer(self) -> bytes:
        """Return the whole answer as JSON.

        Raises ``AppFailed``, ``DeadlineExceeded``, and any typed error of the app.
        """
        with self._reading_answer():
            while self._open_ended:
                await self._wait_for_change()
            self._raise_failure()
            if self._answer is None:
                raise AppFailed(f"the app {self._app_name} ended without an answer", stage=self._app_name)
            return self._answer

    async def read_parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a streaming answer as JSON. Raises as ``read_answer``, after the parts.

        If you do not read it to its end, close it: see ``contextlib.aclosing``.
        """
        with self._reading_answer():
            while self._parts or self._open_ended:
                while self._parts:
                    body, nbytes = self._parts.popleft()
                    yield body
                    self._return_credit(nbytes)
                if self._open_ended:
                    await self._wait_for_change()
            self._raise_failure()

    async def wait_for_outputs(self) -> dict[str, ItemStream]:
        """Wait until the app names the streams of a chat; return them. Raises as ``read_answer``."""
        try:
            while self._outputs is None and self._open_ended:
                await self._wait_for_change()
            if self._outputs is None:
                self._raise_failure()
                raise AppFailed(f"the app {self._app_name} ended without an answer", stage=self._app_name)
        except BaseException as error:
            self._end_unread(error)
            raise
        self._ended = True  # now the reader of the streams ends it
        return self._outputs

    def cancel(self) -> None:
        """End the run as cancelled: the client has disconnected."""
        self._end_run("cancelled")
        self.close()

    def close(self) -> None:
        """Cancel it in the worker; kill the worker if it does not react in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._segments.close()
        if not self._over and self._patience is None:
            self._process.send(protocol.Cancel(self._id))
            why = f"it did not end a cancelled request within {self._cancel_within:g} s"
            self._patience = self._loop.call_later(self._cancel_within, self._process.kill, why)

    # Ends

    @property
    def _app_name(self) -> str:
        return self._process.name

    @property
    def _open_ended(self) -> bool:
        """True if more may follow. After a failure nothing follows, even if the worker has not ended the request."""
        return not self._over and self._failure is None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_for_change(self) -> None:
        self._news.clear()
        await self._news.wait()

    @contextmanager
    def _reading_answer(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._end_unread(error)
            raise
        self._end_run("done")
        self.close()

    def _end_unread(self, error: BaseException) -> None:
        """End the run: the answer will not be read to its end."""
        self._end_run(_end_status(error) if isinstance(error, OmnibusError) else "cancelled")
        self.close()

    def _end_run(self, status: str) -> None:
        if not self._ended:
            self._ended = True
            self._run.end(status)

    def _expire(self) -> None:
        self._fail(DeadlineExceeded.of_app(self._app_name))
        self.close()

    def _fail(self, error: OmnibusError) -> None:
        """Fail with ``error``: readers get it after the parts that have arrived."""
        self._failure = self._failure or error
        for output in self._open_outputs():
            output.fail(error)
        if not self._ended and self._outputs is None:  # readers of outputs get the error from them
            self._run.fail(error)
            self._end_run(_end_status(error))
        self._news.set()

    def _open_outputs(self) -> list[AppOutputStream]:
        outputs = self._outputs or {}
        return [output for output in outputs.values() if isinstance(output, AppOutputStream) and not output.ended]

    # Messages of the worker

    def handle_message(self, message: protocol.WorkerMessage, nbytes: int) -> None:
        """Handle a message of this request. Raises ``ProtocolError`` for an invalid one."""
        _HANDLERS[type(message)](self, message, nbytes)

    def on_worker_lost(self, error: OmnibusError) -> None:
        """Fail: the worker process has ended."""
        if not self._over:
            self._mark_ended()
            self._fail(error)

    def _mark_ended(self) -> None:
        """Mark it as ended by the worker."""
        self._over = True
        if self._patience is not None:
            self._patience.cancel()
        self._process.remove_request(self._id)
        self._news.set()

    def _return_credit(self, nbytes: int) -> None:
        self._ahead -= nbytes
        if not self._over:
            self._process.send(protocol.More(self._id, nbytes))

    def _on_answer(self, message: protocol.ServeAnswer, _: int) -> None:
        if self._answer is not None:
            raise ProtocolError("a request is answered twice")
        self._answer = check_json_line(message.body)
        if self._kind != protocol.JSON:
            self._outputs = {
                name: self._output_stream(name, message.refs.get(name))
                for name in output_names(self._kind, message.body)
            }
        elif self.log is not None:
            self.log.answer.add_part(message.body)
        self._news.set()

    def _output_stream(self, name: str, place: tuple[int, int, str] | None) -> ItemStream:
        return (
            AppOutputStream(self._app_name, self._kind, name, self._return_credit)
            if place is None
            else self._segments.detach_output(place)
        )

    def _on_part(self, message: protocol.AnswerPart, nbytes: int) -> None:
        self._count_bytes(nbytes)
        self._parts.append((check_json_line(message.body), nbytes))
        if self.log is not None:
            self.log.answer.add_part(message.body)
        self._news.set()

    def _on_give(self, message: protocol.Give, nbytes: int) -> None:
        output = (self._outputs or {}).get(message.name)
        if not isinstance(output, AppOutputStream):
            raise ProtocolError(f"{message.name[:80]!r} is not an expected output")
        if message.ended:
            output.end()
        else:
            self._count_bytes(nbytes)
            output.add_items(unpack_items(message.items), nbytes)

    def _on_end(self, _: protocol.RequestEnd, __: int) -> None:
        self._mark_ended()
        if self._open_outputs():
            self._fail(AppFailed(f"the app {self._app_name} ended in the middle of its answer", stage=self._app_name))

    def _on_failed(self, message: protocol.RequestFailed, _: int) -> None:
        self._mark_ended()
        self._fail(from_problem(message.problem))

    def _count_bytes(self, nbytes: int) -> None:
        if self._ahead and self._ahead + nbytes > protocol.WINDOW_BYTES:
            raise ProtocolError("the worker sends parts faster than they are read")
        self._ahead += nbytes


#: Handlers by message type. In each call they would form a reference cycle, which waits for the garbage collector.
_HANDLERS: dict[type, Callable[[Call, Any, int], None]] = {
    protocol.Submit: lambda call, message, _: call._segments.submit(message),
    protocol.PlaceMedia: lambda call, message, _: call._segments.place_media(message),
    protocol.Read: lambda call, message, _: call._segments.read_output(message),
    protocol.ServeAnswer: Call._on_answer,
    protocol.AnswerPart: Call._on_part,
    protocol.Give: Call._on_give,
    protocol.RequestEnd: Call._on_end,
    protocol.RequestFailed: Call._on_failed,
}


def _end_status(error: OmnibusError) -> str:
    return "expired" if isinstance(error, DeadlineExceeded) else "failed"
