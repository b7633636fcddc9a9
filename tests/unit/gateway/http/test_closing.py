"""A closing server answers everything already on its way. It resets no connection, even under load."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from tests.unit.gateway.house import ToyGateway
from tests.unit.gateway.wires import Doorway, HttpConnection, open_doorway

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLIENTS = 20


def connect_client(door: Doorway) -> socket.socket:
    """Return a connection accepted by the kernel only; the event loop does not run."""
    return socket.create_connection(("127.0.0.1", door.port))


async def stop_server(door: Doorway, on_close: Callable[[], object]) -> None:
    """Stop the server; ``on_close`` is called in the loop turn that closes it, before it closes."""
    close, closes = door.server.shutdown, asyncio.Event()

    async def call_and_close(sockets: list[socket.socket] | None = None) -> None:
        on_close()
        closes.set()
        await close(sockets)

    door.server.shutdown = call_and_close  # type: ignore[method-assign]
    door.stop()
    await closes.wait()


async def open_wire(client: socket.socket) -> HttpConnection:
    client.setblocking(False)
    return HttpConnection(*await asyncio.open_connection(sock=client))


async def check_last_answer(wire: HttpConnection) -> None:
    head = await wire.head()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head
    assert b"ok" in await wire.rest()
    wire.close()


@pytest.mark.parametrize("is_sent", [True, False], ids=["with its request", "before its request"])
async def test_connections_that_wait_to_be_accepted_are_served(home: ToyGateway, is_sent: bool):
    clients = []
    async with open_doorway(home) as door:
        assert await door.get() == 200

        def connect_clients() -> None:
            for _ in range(CLIENTS):
                clients.append(connect_client(door))
                clients[-1].sendall(REQUEST if is_sent else b"")

        await stop_server(door, connect_clients)

        for client in clients:
            wire = await open_wire(client)
            await wire.send(b"" if is_sent else REQUEST)
            await check_last_answer(wire)
        with pytest.raises(ConnectionRefusedError):
            connect_client(door)


async def test_a_client_that_has_just_connected_may_send_its_request(home: ToyGateway):
    async with open_doorway(home) as door:
        wire = await door.wire()
        door.stop()
        await asyncio.sleep(0.3)

        await wire.send(REQUEST)

        await check_last_answer(wire)


async def test_a_request_that_has_come_over_an_open_connection_is_answered(home: ToyGateway):
    async with open_doorway(home) as door:
        client = connect_client(door)
        wire = await open_wire(client)
        await wire.send(REQUEST)
        assert b"ok" in (await wire.answer())[1]

        await stop_server(door, lambda: client.send(REQUEST))

        await check_last_answer(wire)


async def test_half_a_head_may_become_whole(home: ToyGateway):
    async with open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(REQUEST)
        await wire.answer()
        await wire.send(REQUEST[:9])
        await asyncio.sleep(0.1)
        door.stop()
        await asyncio.sleep(0.3)

        await wire.send(REQUEST[9:])

        await check_last_answer(wire)


async def test_clients_that_say_nothing_keep_no_server(home: ToyGateway):
    async with open_doorway(home) as door:
        silent, idle_wire = await door.wire(), await door.wire()
        await idle_wire.send(REQUEST)
        await idle_wire.answer()
        door.stop()

        assert await idle_wire.rest() == b""
        assert await silent.rest() == b""
