"""A closing server answers everything already on its way. It resets no connection, even under load."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from tests.unit.gateway.house import House
from tests.unit.gateway.wires import Doorway, Wire, doorway

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLIENTS = 20


def connect(door: Doorway) -> socket.socket:
    """Return a connection accepted by the kernel only; the event loop does not run."""
    return socket.create_connection(("127.0.0.1", door.port))


async def stop(door: Doorway, come: Callable[[], object]) -> None:
    """Stop the server; ``come`` is called in the loop turn that closes it, before it closes."""
    close, closes = door.server.shutdown, asyncio.Event()

    async def shutdown(sockets: list[socket.socket] | None = None) -> None:
        come()
        closes.set()
        await close(sockets)

    door.server.shutdown = shutdown  # type: ignore[method-assign]
    door.stop()
    await closes.wait()


async def opened(client: socket.socket) -> Wire:
    client.setblocking(False)
    return Wire(*await asyncio.open_connection(sock=client))


async def check_last_answer(wire: Wire) -> None:
    head = await wire.head()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head
    assert b"ok" in await wire.rest()
    wire.close()


@pytest.mark.parametrize("is_sent", [True, False], ids=["with its request", "before its request"])
async def test_connections_that_wait_to_be_accepted_are_served(home: House, is_sent: bool):
    clients = []
    async with doorway(home) as door:
        assert await door.get() == 200

        def come() -> None:
            for _ in range(CLIENTS):
                clients.append(connect(door))
                clients[-1].sendall(REQUEST if is_sent else b"")

        await stop(door, come)

        for client in clients:
            wire = await opened(client)
            await wire.send(b"" if is_sent else REQUEST)
            await check_last_answer(wire)
        with pytest.raises(ConnectionRefusedError):
            connect(door)


async def test_a_client_that_has_just_connected_may_send_its_request(home: House):
    async with doorway(home) as door:
        wire = await door.wire()
        door.stop()
        await asyncio.sleep(0.3)

        await wire.send(REQUEST)

        await check_last_answer(wire)


async def test_a_request_that_has_come_over_an_open_connection_is_answered(home: House):
    async with doorway(home) as door:
        client = connect(door)
        wire = await opened(client)
        await wire.send(REQUEST)
        assert b"ok" in (await wire.answer())[1]

        await stop(door, lambda: client.send(REQUEST))

        await check_last_answer(wire)


async def test_half_a_head_may_become_whole(home: House):
    async with doorway(home) as door:
        wire = await door.wire()
        await wire.send(REQUEST)
        await wire.answer()
        await wire.send(REQUEST[:9])
        await asyncio.sleep(0.1)
        door.stop()
        await asyncio.sleep(0.3)

        await wire.send(REQUEST[9:])

        await check_last_answer(wire)


async def test_clients_that_say_nothing_keep_no_server(home: House):
    async with doorway(home) as door:
        silent, kept = await door.wire(), await door.wire()
        await kept.send(REQUEST)
        await kept.answer()
        door.stop()

        assert await kept.rest() == b""
        assert await silent.rest() == b""
