"""Configuration of uvicorn: signals are left to the service, and connections have limits."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from omnibus.settings import GatewaySettings
from omnibus_gateway.http.connection import ON_LEFT as ON_LEFT
from omnibus_gateway.http.connection import ConnectionLimits, LimitedHttpProtocol
from omnibus_gateway.http.exchange import MAX_MESSAGE_BYTES, PING_SECONDS, GatewayWebSocketProtocol
from omnibus_gateway.http.response import DirectRoute

#: Seconds for the TLS handshake of a connection that is accepted while the server closes.
TLS_HANDSHAKE_SECONDS = 2.0


class GatewayServer(uvicorn.Server):
    """uvicorn server without its own signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, then each connection; connections in the backlog are served like the others.

        The kernel has already accepted those. If the port closed first, it would reset them, and their clients could
        not know whether their request was processed. On a busy machine, many arrive in one turn of the event loop.
        """
        listeners = sockets or []
        waiting = [connection for listener in listeners for connection in _accept_all(listener)]
        for each in (*self.servers, *listeners):  # without an await, during which more could arrive
            each.close()
        await asyncio.gather(*map(self._serve_connection, waiting), return_exceptions=True)
        await super().shutdown(sockets)

    async def _serve_connection(self, connection: socket.socket) -> None:
        """Serve one request of ``connection`` from the backlog."""
        config = self.config

        def create_protocol() -> LimitedHttpProtocol:
            protocol: LimitedHttpProtocol = config.http_protocol_class(
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            protocol.is_last = True
            return protocol

        handshake = TLS_HANDSHAKE_SECONDS if config.ssl else None
        await asyncio.get_running_loop().connect_accepted_socket(
            create_protocol, connection, ssl=config.ssl, ssl_handshake_timeout=handshake
        )


def _accept_all(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield the connections in the backlog of ``listener``."""
    listener.setblocking(False)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # none is left, or there are no file descriptors
            return
        connection.setblocking(False)
        yield connection


def create_server(
    application: Any,
    certificate: str = "",
    key: str = "",
    limits: ConnectionLimits | None = None,
    direct: DirectRoute | None = None,
) -> GatewayServer:
    """Create a server for ``application`` on sockets for ``serve``; with a ``certificate``, only over TLS.

    Requests that ``direct`` accepts do not reach the ``application``.
    """
    limits = limits or ConnectionLimits.from_settings(GatewaySettings())
    return GatewayServer(
        uvicorn.Config(
            application,
            http=partial(LimitedHttpProtocol, limits=limits, direct=direct),
            ws=GatewayWebSocketProtocol,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            ws_per_message_deflate=False,
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
