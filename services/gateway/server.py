"""uvicorn as the gateway uses it: the service's own signal handling, and word of clients that leave."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Key of the scope under which a handler puts what is to be called when its client leaves.
ON_LEFT = "omnibus.on_left"


class Protocol(HttpToolsProtocol):
    """Calls the handler back when the connection is lost, so that no request needs a task that waits for it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[ON_LEFT] = None

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.cycle
        super().connection_lost(exc)
        if cycle is not None and cycle.disconnected:
            left: Callable[[], None] | None = cycle.scope.get(ON_LEFT)
            if left is not None:
                left()


class Server(uvicorn.Server):
    """A server that leaves signals to the service lifecycle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server(application: Any, certificate: str = "", key: str = "") -> Server:
    """A server for ``application`` on sockets that are given to ``serve``; with a ``certificate`` over TLS alone."""
    return Server(
        uvicorn.Config(
            application,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=30,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        )
    )
