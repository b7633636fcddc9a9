"""Process of one app: ``python -m omnibus.app.worker <fd>``, started by a gateway.

``fd`` is one end of a Unix socket pair; see ``omnibus.app.protocol`` for the messages on it. The process ends when the
other end is closed.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from omnibus.app import protocol
from omnibus.app.introspect import LoadedApp, load_app
from omnibus.app.module_loader import UPLOAD
from omnibus.app.request import ServeRequest
from omnibus.app.sandbox import die_with_parent, restrict_process
from omnibus.app.transport import WorkerLink, encode_message, read_load_message, to_worker
from omnibus.errors import OmnibusError, from_problem
from omnibus.process.tuning import tune_garbage_collector

log = logging.getLogger(__name__)

#: Seconds that cancelled requests have to clean up when the worker stops.
CLEANUP_SECONDS = 2.0


class AppWorker:
    """Serves the requests of one app concurrently."""

    def __init__(self, app: LoadedApp, show_errors: bool = False) -> None:
        self._app = app
        self._show_errors = show_errors
        self._link: WorkerLink | None = None
        self._requests: dict[int, ServeRequest] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._on: dict[type, Callable[[Any], None]] = {
            protocol.Serve: self._start_request,
            protocol.Submitted: self._on_submitted,
            protocol.SegmentRefused: self._on_refused,
            protocol.Items: self._on_items,
            protocol.MediaPlaced: self._on_placed,
            protocol.More: self._on_more,
            protocol.Cancel: self._cancel_request,
            protocol.Ping: lambda _: self._send_pong(),
            protocol.StopWorker: lambda _: self._stop.set(),
        }

    async def serve_until_stopped(self, end: socket.socket) -> None:
        """Report that the app is ready, and serve until ``StopWorker``."""
        self._link = await WorkerLink.open(end, self._handle_message, self._on_link_lost)
        self._link.send(encode_message(protocol.AppReady(self._app.description)))
        await self._stop.wait()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=CLEANUP_SECONDS)
        self._link.close()

    def _handle_message(self, body: bytes) -> None:
        message = to_worker(body)
        self._on[type(message)](message)

    def _on_link_lost(self, error: OmnibusError | None) -> None:
        """Exit when the gateway is gone."""
        if error is not None:
            log.error("protocol error from the gateway: %s", error)
        if not self._stop.is_set():
            os._exit(1)

    def _start_request(self, message: protocol.Serve) -> None:
        assert self._link is not None  # noqa: S101 - it brought the message
        request = self._requests[message.id] = ServeRequest(self._app, self._link, message, self._show_errors)
        task = self._tasks[message.id] = asyncio.get_running_loop().create_task(request.run(), name=message.run)
        task.add_done_callback(lambda ended: self._forget_request(message.id, ended))

    def _forget_request(self, id: int, task: asyncio.Task[None]) -> None:
        self._requests.pop(id, None)
        self._tasks.pop(id, None)
        if task.cancelled() and self._link is not None:  # cancelled before its first step, so it sent no end
            self._link.send(encode_message(protocol.RequestEnd(id)))

    def _send_pong(self) -> None:
        if self._link is not None:
            self._link.send(encode_message(protocol.Pong()))

    def _on_submitted(self, message: protocol.Submitted) -> None:
        if message.id in self._requests:
            self._requests[message.id].resolve_submission(message.step)

    def _on_refused(self, message: protocol.SegmentRefused) -> None:
        if message.id in self._requests:
            self._requests[message.id].resolve_submission(message.step, from_problem(message.problem))

    def _on_items(self, message: protocol.Items) -> None:
        if message.id in self._requests:
            self._requests[message.id].receive_items(message)

    def _on_placed(self, message: protocol.MediaPlaced) -> None:
        if message.id in self._requests:
            error = from_problem(message.problem) if message.problem is not None else None
            self._requests[message.id].resolve_media(message.number, message.literal, error)

    def _on_more(self, message: protocol.More) -> None:
        if message.id in self._requests:
            self._requests[message.id].extend_window(message.nbytes)

    def _cancel_request(self, message: protocol.Cancel) -> None:
        task = self._tasks.get(message.id)
        if task is not None:
            task.cancel()


def main(arguments: list[str]) -> int:
    """Load the app of the gateway's message and serve it. Returns the exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's to handle
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    end = socket.socket(fileno=int(arguments[0]))
    end.set_inheritable(False)
    order = read_load_message(end)
    if order is None:
        return 1  # the gateway died meanwhile
    try:
        app = _load_app(order, end.fileno())
    except OmnibusError as error:
        end.sendall(encode_message(protocol.Broken(error.to_problem())))
        return 1
    tune_garbage_collector()
    uvloop.run(AppWorker(app, order.show_errors).serve_until_stopped(end))
    return 0


def _load_app(order: protocol.LoadApp, link: int) -> LoadedApp:
    restrictions = restrict_process(link, order.memory) if order.source.kind == UPLOAD else ()
    return load_app(order.source, order.text, restrictions)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
