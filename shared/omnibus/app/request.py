"""Request in a worker: runs ``serve``, submits its graphs to the gateway, and sends the answer."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

from omnibus.app import protocol
from omnibus.app.introspect import AppFunction, LoadedApp
from omnibus.app.protocol import pack_items, unpack_items
from omnibus.app.routes import (
    ROUTES,
    AppRoute,
    direct_source,
    encode_answer,
    iterate_items,
    parse_request,
    route_outputs,
)
from omnibus.app.transport import WorkerLink, counted_bytes, encode_message
from omnibus.concurrency import gather_calls
from omnibus.errors import AppFailed, DeadlineExceeded, OmnibusError, TooLarge, from_problem
from omnibus.plan import choice_point
from omnibus.task import Segment, use
from omnibus.task.result import Source
from omnibus.tensors.handle import Item

log = logging.getLogger(__name__)

Place = tuple[int, int, str]


class ServeRequest:
    """Request ``order.id``. It is the ``Runtime`` of the tasks that ``serve`` calls."""

    def __init__(self, app: LoadedApp, link: WorkerLink, order: protocol.Serve, show_errors: bool = False) -> None:
        self.id = order.id
        self._show_errors = show_errors
        self._app = app
        self._link = link
        self._order = order
        self._segments: dict[int, asyncio.Future[None]] = {}
        self._media: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._media_numbers = count()
        self._sources: dict[Place, PipeSource] = {}
        self._ahead = 0
        self._room = asyncio.Event()
        self._over = False

    # Runtime

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Source]:
        if self._over:
            raise _request_over_error()
        frame = self._encode_submission(segment, step)
        future = self._segments[step] = asyncio.get_running_loop().create_future()
        self._link.send(frame)
        try:
            await future
        finally:
            del self._segments[step]
        sources: dict[tuple[int, str], Source] = {}
        for node, output in segment.outputs:
            place = (step, node, output)
            sources[node, output] = self._sources[place] = PipeSource(self._link, self.id, place)
        return sources

    async def place_media(self, data: bytes, modality: str) -> dict[str, Any]:
        if self._over:
            raise _request_over_error()
        number = next(self._media_numbers)
        frame = _encode_media(protocol.PlaceMedia(self.id, number, modality, data))
        future = self._media[number] = asyncio.get_running_loop().create_future()
        self._link.send(frame)
        try:
            return await future
        finally:
            del self._media[number]

    def _encode_submission(self, segment: Segment, step: int) -> bytes:
        try:
            return encode_message(protocol.Submit(self.id, step, segment))
        except TooLarge as error:
            text = f"a graph of {len(segment.nodes)} calls is too large: reduce loops, or split the request"
            raise TooLarge(f"{text} ({error.message})") from error

    def choice_point(self, site: int) -> float:
        """Return a point of a Kronecker sequence, one per choice. The shares of choices are met evenly, also in
        combination."""
        return choice_point(self._order.number, site, site * 0.5**0.5)

    # Messages of the gateway

    def resolve_submission(self, step: int, error: OmnibusError | None = None) -> None:
        future = self._segments.get(step)
        if future is not None and not future.done():
            future.set_result(None) if error is None else future.set_exception(error)

    def resolve_media(self, number: int, literal: dict[str, Any], error: OmnibusError | None = None) -> None:
        future = self._media.get(number)
        if future is not None and not future.done():
            future.set_result(literal) if error is None else future.set_exception(error)

    def receive_items(self, message: protocol.Items) -> None:
        source = self._sources.get((message.step, message.node, message.output))
        if source is not None:
            source.receive_items(message)

    def extend_window(self, nbytes: int) -> None:
        self._ahead -= nbytes
        self._room.set()

    # Serving

    async def run(self) -> None:
        """Serve the request. Its last message is one ``RequestEnd`` or ``RequestFailed``."""
        self._link.send(encode_message(await self._final_message()))
        self._over = True
        for step in self._segments:
            self.resolve_submission(step, _request_over_error())
        for number in self._media:
            self.resolve_media(number, {}, _request_over_error())
        for source in self._sources.values():
            source.close()

    async def _final_message(self) -> protocol.WorkerMessage:
        deadline = asyncio.timeout(self._order.deadline - time.time())
        try:
            async with deadline:
                with use(self):
                    await self._call_serve()
        except asyncio.CancelledError:
            pass  # no client waits for it
        except OmnibusError as error:
            return protocol.RequestFailed(self.id, self._name_app_in_error(error).to_problem())
        except (Exception, SystemExit) as error:
            if deadline.expired():
                late = DeadlineExceeded(f"the app {self._app_name} did not answer within its deadline")
                return protocol.RequestFailed(self.id, late.to_problem())
            log.exception("%s: the app's serve failed", self._order.run)
            text = f"the app {self._app_name} failed: {type(error).__name__}"
            message = f"{text}: {error}{self._line_of(error)}" if self._show_errors else text
            failure = AppFailed(f"{message}; the gateway's log has more under {self._order.run}")
            return protocol.RequestFailed(self.id, failure.to_problem())
        return protocol.RequestEnd(self.id)

    def _line_of(self, error: BaseException) -> str:
        line = self._app.find_line(error)
        return f" ({Path(self._app.file).name}:{line.lineno}: {line.line})" if line else ""

    @property
    def _app_name(self) -> str:
        return self._app.description.name

    def _name_app_in_error(self, error: OmnibusError) -> OmnibusError:
        if isinstance(error, AppFailed):
            log.error("%s: %s", self._order.run, error)
            return AppFailed(f"the app {self._app_name} failed: {error.message}")
        return error

    async def _call_serve(self) -> None:
        kind = self._order.kind
        function = self._app.functions[kind]
        answer = function.call(parse_request(function.request, self._order.body))
        if hasattr(answer, "__aiter__"):
            await self._send_parts(answer, function)
            return
        answer = await answer
        if kind != protocol.JSON:
            await self._send_outputs(ROUTES[kind], route_outputs(ROUTES[kind], answer))
        elif function.streams:
            await self._send_parts(answer, function)
        else:
            body = await encode_answer(function.response, answer)
            self._link.send(_encode_frame(protocol.ServeAnswer(self.id, body)))

    async def _send_parts(self, answer: Any, function: AppFunction) -> None:
        if not hasattr(answer, "__aiter__"):
            raise AppFailed(f"`serve` is annotated as a stream, but returned a value of type {type(answer).__name__}")
        async with aclosing(_iterate_closing(answer)) as parts:
            async for part in parts:
                await self._send_with_backpressure(
                    protocol.AnswerPart(self.id, await encode_answer(function.response, part))
                )

    async def _send_outputs(self, route: AppRoute, outputs: dict[str, Any]) -> None:
        refs = {}
        for name, value in outputs.items():
            source = direct_source(route, name, value)
            if isinstance(source, PipeSource) and source.untouched:
                refs[name] = source.place
        self._link.send(_encode_frame(protocol.ServeAnswer(self.id, await encode_answer(None, list(outputs)), refs)))
        computed_outputs = {name: value for name, value in outputs.items() if name not in refs}
        await gather_calls(*(self._send_output(route, name, value) for name, value in computed_outputs.items()))

    async def _send_output(self, route: AppRoute, name: str, value: Any) -> None:
        async with aclosing(_iterate_closing(iterate_items(route.parts[name], name, value))) as items:
            async for item in items:
                await self._send_with_backpressure(protocol.Give(self.id, name, pack_items([item])))
        self._link.send(encode_message(protocol.Give(self.id, name, (), ended=True)))

    async def _send_with_backpressure(self, message: protocol.WorkerMessage) -> None:
        """Send a part when the window has space. A slow client thus slows only its own request."""
        frame = _encode_frame(message)
        nbytes = counted_bytes(frame)
        while self._ahead and self._ahead + nbytes > protocol.WINDOW_BYTES:
            self._room.clear()
            await self._room.wait()
        self._ahead += nbytes
        self._link.send(frame)


class PipeSource:
    """Output of a segment, read through the gateway: one batch per ``Read``."""

    def __init__(self, link: WorkerLink, request: int, place: Place) -> None:
        self.place = place
        self.untouched = True
        self._link = link
        self._request = request
        self._ready: list[Item] = []
        self._ended = False
        self._failure: OmnibusError | None = None
        self._requested = False
        self._arrival: asyncio.Future[None] | None = None

    async def next_items(self) -> list[Item]:
        """Return all items that are ready, at least one; empty after the last.

        Raises the error that ended the output.
        """
        self.untouched = False
        while not self._ready and not self._ended:
            if not self._requested:
                self._requested = True
                self._link.send(encode_message(protocol.Read(self._request, *self.place)))
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if not self._ready and self._failure is not None:
            raise self._failure
        items, self._ready = self._ready, []
        return items

    def receive_items(self, message: protocol.Items) -> None:
        self._requested = False
        self._ready += unpack_items(message.items)
        self._failure = from_problem(message.problem) if message.problem is not None else None
        self._ended = message.ended or self._failure is not None
        self._wake_reader()

    def close(self) -> None:
        """End all waits for this output, as the request is over."""
        if not self._ended:
            self._ended, self._failure = True, _request_over_error()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def _request_over_error() -> DeadlineExceeded:
    return DeadlineExceeded("the request is over: code that still runs cannot use its tasks")


def _encode_media(message: protocol.PlaceMedia) -> bytes:
    try:
        return encode_message(message)
    except TooLarge:
        raise TooLarge(
            f"a file of {len(message.data)} bytes is too large: it must have at most {protocol.MAX_MEDIA_BYTES}",
            param="media",
        ) from None


def _encode_frame(message: protocol.WorkerMessage) -> bytes:
    try:
        return encode_message(message)
    except TooLarge as error:
        raise AppFailed(f"`serve` returned too much at once: {error.message}") from error


async def _iterate_closing(answer: Any) -> AsyncGenerator[Any, None]:
    """Yield the parts of ``answer``, then close it if possible."""
    parts = aiter(answer)
    try:
        async for part in parts:
            yield part
    finally:
        if hasattr(parts, "aclose"):
            await parts.aclose()
