"""One request in a worker: its graphs run as segments of a ``Run``, its answer goes to the client."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omnibus.app import protocol
from omnibus.app.array_codec import unpack
from omnibus.errors import AppFailed, DeadlineExceeded, OmnibusError, ProtocolError, from_problem
from services.gateway.apps.graph_submission import Runs, Segments
from services.gateway.apps.output_buffer import Given, checked, names
from services.gateway.apps.worker_process import Process
from services.gateway.dispatch.streams import Incoming


class Call:
    """Request ``run`` in the worker ``process``. Its answer is read once: ``answer``, ``parts`` or ``outputs``.

    The run ends with the answer: done, failed, expired, or cancelled. A chat's run ends with its streams:
    whoever got ``outputs`` ends it, and calls ``close``.
    """

    def __init__(self, process: Process, run: Runs, kind: str, issued: frozenset[bytes], cancel_within: float) -> None:
        self._process = process
        self._run = run
        self._kind = kind
        self._cancel_within = cancel_within
        self._loop = asyncio.get_running_loop()
        self._id = process.add(self)
        self._segments = Segments(process, self._id, run, issued)
        self._answer: bytes | None = None
        self._outputs: dict[str, Incoming] | None = None
        self._parts: deque[tuple[bytes, int]] = deque()
        self._ahead = 0
        self._failure: OmnibusError | None = None
        self._over = False  # in the worker
        self._ended = False  # the run has ended, or others end it
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._on: dict[type, Callable[[Any, int], None]] = {
            protocol.Submit: lambda message, _: self._segments.submit(message),
            protocol.Read: lambda message, _: self._segments.read(message),
            protocol.Answer: self._on_answer,
            protocol.Part: self._on_part,
            protocol.Give: self._on_give,
            protocol.End: self._on_end,
            protocol.Failed: self._on_failed,
        }

    def begin(self, body: bytes, number: int) -> None:
        """Hand it to the worker. Raises ``TooLarge``."""
        run = self._run
        try:
            self._process.send(protocol.Serve(self._id, run.id, body, self._kind, number, run.deadline))
        except OmnibusError as error:
            self._finish()
            self._fail(error)
            raise
        self._timer = self._loop.call_later(max(0.0, run.deadline - time.time()), self._expire)

    # What the client gets

    async def answer(self) -> bytes:
        """The whole answer as JSON. Raises ``AppFailed``, ``DeadlineExceeded``, and whatever typed error the app
        raised."""
        with self._reading():
            while self._open_ended:
                await self._next()
            self._check()
            if self._answer is None:
                raise AppFailed(f"the app {self._name} ended without an answer", stage=self._name)
            return self._answer

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The parts of an answer that streams, each as JSON. Raises as ``answer`` does, after what came before.

        Close it when it is not read to its end: see ``contextlib.aclosing``.
        """
        with self._reading():
            while self._parts or self._open_ended:
                while self._parts:
                    body, nbytes = self._parts.popleft()
                    yield body
                    self._took(nbytes)
                if self._open_ended:
                    await self._next()
            self._check()

    async def outputs(self) -> dict[str, Incoming]:
        """A chat's streams by name, once the app has said where they come from. Raises as ``answer`` does."""
        try:
            while self._outputs is None and self._open_ended:
                await self._next()
            if self._outputs is None:
                self._check()
                raise AppFailed(f"the app {self._name} ended without an answer", stage=self._name)
        except BaseException as error:
            self._settle(error)
            raise
        self._ended = True  # from here on by whoever reads the streams
        return self._outputs

    def cancel(self) -> None:
        """The client left: everything stops."""
        self._end("cancelled")
        self.close()

    def close(self) -> None:
        """Nobody waits for it any more: the worker ends it, soon or by force."""
        if self._timer is not None:
            self._timer.cancel()
        self._segments.close()
        if not self._over and self._patience is None:
            self._process.send(protocol.Cancel(self._id))
            why = f"it did not end a cancelled request within {self._cancel_within:g} s"
            self._patience = self._loop.call_later(self._cancel_within, self._process.kill, why)

    # Ends

    @property
    def _name(self) -> str:
        return self._process.name

    @property
    def _open_ended(self) -> bool:
        """True if more may come. A failure is final also while the worker has not ended the request, or hangs."""
        return not self._over and self._failure is None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._settle(error)
            raise
        self._end("done")
        self.close()

    def _settle(self, error: BaseException) -> None:
        """The answer will not be read to its end."""
        self._end(_status(error) if isinstance(error, OmnibusError) else "cancelled")
        self.close()

    def _end(self, status: str) -> None:
        if not self._ended:
            self._ended = True
            self._run.end(status)

    def _expire(self) -> None:
        self._fail(DeadlineExceeded(f"the app {self._name} did not answer within its deadline", stage=self._name))
        self.close()

    def _fail(self, error: OmnibusError) -> None:
        """Fail with ``error``: readers get it after what is there already."""
        self._failure = self._failure or error
        for given in self._open():
            given.fail(error)
        if not self._ended and self._outputs is None:  # whoever reads outputs gets it by them
            self._run.fail(error)
            self._end(_status(error))
        self._news.set()

    def _open(self) -> list[Given]:
        outputs = self._outputs or {}
        return [output for output in outputs.values() if isinstance(output, Given) and not output.ended]

    # The worker's side

    def take(self, message: protocol.Message, nbytes: int) -> None:
        """A message about this request. Raises ``ProtocolError`` for one that no honest worker sends."""
        self._on[type(message)](message, nbytes)

    def lost(self, error: OmnibusError) -> None:
        """The worker is gone."""
        if not self._over:
            self._finish()
            self._fail(error)

    def _finish(self) -> None:
        """The worker has ended it."""
        self._over = True
        if self._patience is not None:
            self._patience.cancel()
        self._process.remove(self._id)
        self._news.set()

    def _took(self, nbytes: int) -> None:
        self._ahead -= nbytes
        if not self._over:
            self._process.send(protocol.More(self._id, nbytes))

    def _on_answer(self, message: protocol.Answer, _: int) -> None:
        if self._answer is not None:
            raise ProtocolError("a request is answered twice")
        self._answer = checked(message.body)
        if self._kind == protocol.CHAT:
            self._outputs = {name: self._output(name, message.refs.get(name)) for name in names(message.body)}
        self._news.set()

    def _output(self, name: str, place: tuple[int, int, str] | None) -> Incoming:
        return Given(self._name, name, self._took) if place is None else self._segments.hand(place)

    def _on_part(self, message: protocol.Part, nbytes: int) -> None:
        self._count(nbytes)
        self._parts.append((checked(message.body), nbytes))
        self._news.set()

    def _on_give(self, message: protocol.Give, nbytes: int) -> None:
        given = (self._outputs or {}).get(message.name)
        if not isinstance(given, Given):
            raise ProtocolError(f"{message.name[:80]!r} is no output that is awaited")
        if message.ended:
            given.end()
        else:
            self._count(nbytes)
            given.give(unpack(message.items), nbytes)

    def _on_end(self, _: protocol.End, __: int) -> None:
        self._finish()
        if self._open():
            self._fail(AppFailed(f"the app {self._name} ended before its answer was whole", stage=self._name))

    def _on_failed(self, message: protocol.Failed, _: int) -> None:
        self._finish()
        self._fail(from_problem(message.problem))

    def _count(self, nbytes: int) -> None:
        if self._ahead and self._ahead + nbytes > protocol.WINDOW:
            raise ProtocolError("parts are sent faster than they are taken")
        self._ahead += nbytes


def _status(error: OmnibusError) -> str:
    return "expired" if isinstance(error, DeadlineExceeded) else "failed"
