"""The process of one app: ``python -m omnibus.app.worker <fd>``, started by a gateway.

``fd`` is one end of a Unix socket pair; ``omnibus.app.protocol`` says what goes over it. The process ends when
the other end is closed.
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
from omnibus.app.introspect import Loaded, loaded
from omnibus.app.module_loader import UPLOAD
from omnibus.app.request import Request
from omnibus.app.sandbox import die_with_parent, restrict
from omnibus.app.transport import Link
from omnibus.errors import OmnibusError, from_problem

log = logging.getLogger(__name__)

#: Seconds that cancelled requests have to clean up when the worker is told to stop.
CLEANUP = 2.0


class Worker:
    """Serves the requests of one app side by side."""

    def __init__(self, app: Loaded) -> None:
        self._app = app
        self._link: Link | None = None
        self._requests: dict[int, Request] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._on: dict[type, Callable[[Any], None]] = {
            protocol.Serve: self._serve,
            protocol.Submitted: self._submitted,
            protocol.Refused: self._refused,
            protocol.Items: self._items,
            protocol.More: self._more,
            protocol.Cancel: self._cancel,
            protocol.Ping: lambda _: self._pong(),
            protocol.Stop: lambda _: self._stop.set(),
        }

    async def live(self, end: socket.socket) -> None:
        """Say that the app is ready, and serve until told to stop."""
        self._link = await Link.open(end, self._receive, self._lost)
        self._link.send(protocol.encode(protocol.Ready(self._app.description)))
        await self._stop.wait()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=CLEANUP)
        self._link.close()

    def _receive(self, body: bytes) -> None:
        message = protocol.to_worker(body)
        self._on[type(message)](message)

    def _lost(self, error: OmnibusError | None) -> None:
        """Without a gateway there is nothing left to do, and nobody to hear of it."""
        if error is not None:
            log.error("protocol error from the gateway: %s", error)
        if not self._stop.is_set():
            os._exit(1)

    def _serve(self, message: protocol.Serve) -> None:
        assert self._link is not None  # noqa: S101 - it brought the message
        request = self._requests[message.id] = Request(self._app, self._link, message)
        task = self._tasks[message.id] = asyncio.get_running_loop().create_task(request.run(), name=message.run)
        task.add_done_callback(lambda ended: self._forget(message.id, ended))

    def _forget(self, id: int, ended: asyncio.Task[None]) -> None:
        self._requests.pop(id, None)
        self._tasks.pop(id, None)
        if ended.cancelled() and self._link is not None:  # before its first step, so it could not say so itself
            self._link.send(protocol.encode(protocol.End(id)))

    def _pong(self) -> None:
        if self._link is not None:
            self._link.send(protocol.encode(protocol.Pong()))

    def _submitted(self, message: protocol.Submitted) -> None:
        if message.id in self._requests:
            self._requests[message.id].submitted(message.step)

    def _refused(self, message: protocol.Refused) -> None:
        if message.id in self._requests:
            self._requests[message.id].submitted(message.step, from_problem(message.problem))

    def _items(self, message: protocol.Items) -> None:
        if message.id in self._requests:
            self._requests[message.id].arrived(message)

    def _more(self, message: protocol.More) -> None:
        if message.id in self._requests:
            self._requests[message.id].taken(message.nbytes)

    def _cancel(self, message: protocol.Cancel) -> None:
        task = self._tasks.get(message.id)
        if task is not None:
            task.cancel()


def main(arguments: list[str]) -> int:
    """Load the app that the gateway names, and serve it; returns the exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's to handle
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    end = socket.socket(fileno=int(arguments[0]))
    end.set_inheritable(False)
    order = protocol.read(end)
    if order is None:
        return 1  # the gateway died meanwhile
    try:
        app = _load(order, end.fileno())
    except OmnibusError as error:
        end.sendall(protocol.encode(protocol.Broken(error.problem())))
        return 1
    uvloop.run(Worker(app).live(end))
    return 0


def _load(order: protocol.Load, link: int) -> Loaded:
    held = restrict(link, order.memory) if order.source.kind == UPLOAD else ()
    return loaded(order.source, order.text, held)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
