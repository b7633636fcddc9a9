"""Clients of an in-process HTTP server, with control over bytes and timing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from omnibus_gateway.http.connection import ConnectionLimits
from omnibus_gateway.http.server import GatewayServer, create_server
from tests.unit.gateway.house import ToyGateway

PATIENCE = 20.0


class HttpConnection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def drip(self, data: bytes, seconds: float, times: int = 10_000) -> None:
        """Send ``data`` repeatedly until the server closes the connection."""
        with suppress(ConnectionError):
            for _ in range(times):
                if self._reader.at_eof():
                    return
                await self.send(data)
                await asyncio.sleep(seconds)

    async def head(self) -> bytes:
        """Return the status line and headers of the next answer."""
        return await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE)

    async def status(self) -> int:
        return int((await self.head()).split()[1])

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next answer."""
        head = await self.head()
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await asyncio.wait_for(self._reader.readexactly(int(length.split(b":")[1])), PATIENCE)
        return int(head.split()[1]), body

    async def rest(self) -> bytes:
        """Return everything received until the server closes the connection."""
        got = b""
        with suppress(ConnectionError):
            while piece := await asyncio.wait_for(self._reader.read(1 << 16), PATIENCE):
                got += piece
        return got

    def close(self) -> None:
        self.writer.transport.abort()


class Doorway:
    """A ``server``, its port, and its clients from this test."""

    def __init__(self, server: GatewayServer, port: int) -> None:
        self.server = server
        self.port = port
        self._wires: list[HttpConnection] = []

    def stop(self) -> None:
        """Start closing the server."""
        self.server.should_exit = True

    async def wire(self, receive_bytes: int = 0) -> HttpConnection:
        """Return a connection; ``receive_bytes`` is the size of its receive buffer, 0 for the kernel's default."""
        end = socket.socket()
        if receive_bytes:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        end.setblocking(False)
        await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", self.port))
        connection = HttpConnection(*await asyncio.open_connection(sock=end))
        self._wires.append(connection)
        return connection

    async def get(self, path: str = "/health", more: str = "") -> int:
        """Return the status of a request on a separate connection."""
        wire = await self.wire()
        await wire.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode("latin-1"))
        status = await wire.status()
        wire.close()
        return status

    def close(self) -> None:
        for wire in self._wires:
            wire.close()


@asynccontextmanager
async def open_doorway(home: ToyGateway, direct: bool = True, send_bytes: int = 0) -> AsyncIterator[Doorway]:
    """Yield ``home`` on a real server, with the limits of its settings.

    With ``direct``, plain chats are answered directly. ``send_bytes`` is the size of a connection's send buffer, 0 for
    the kernel's default.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    if send_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    limits = ConnectionLimits.from_settings(home.settings)
    serving = create_server(home.app, limits=limits, direct=home.direct if direct else None)
    task = asyncio.ensure_future(serving.serve(sockets=[listener]))
    door = Doorway(serving, listener.getsockname()[1])
    try:
        yield door
    finally:
        door.close()
        serving.should_exit = serving.force_exit = True
        await task


def build_post(path: str, length: int | None, body: bytes = b"") -> bytes:
    """Return the beginning of a request with a body; without ``length`` it is chunked."""
    length_header = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{length_header}\r\n\r\n".encode() + body
