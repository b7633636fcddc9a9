"""uvicorn as the gateway uses it: the service's own signal handling, and connections with limits."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from omnibus.settings import GatewaySettings
from services.gateway.http.connection import ON_LEFT as ON_LEFT
from services.gateway.http.connection import ConnectionLimits, LimitedHttpProtocol
from services.gateway.http.direct import DirectRoute


class GatewayServer(uvicorn.Server):
    """A server that leaves signals to the service lifecycle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def create_server(
    application: Any,
    certificate: str = "",
    key: str = "",
    limits: ConnectionLimits | None = None,
    direct: DirectRoute | None = None,
) -> GatewayServer:
    """A server for ``application`` on sockets that are given to ``serve``; with a ``certificate`` over TLS alone.

    Requests that ``direct`` takes do not reach the ``application``.
    """
    limits = limits or ConnectionLimits.from_settings(GatewaySettings())
    return GatewayServer(
        uvicorn.Config(
            application,
            http=partial(LimitedHttpProtocol, limits=limits, direct=direct),
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
