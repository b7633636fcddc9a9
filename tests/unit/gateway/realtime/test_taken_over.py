"""A client that reconnects takes over its session from an open connection."""

from typing import Any

import pytest
from uvicorn.protocols.utils import ClientDisconnected
from websockets.exceptions import ConnectionClosed

from omnibus_gateway.http import exchange as gateway_websocket
from omnibus_gateway.http.exchange import GatewayWebSocketProtocol
from tests.unit.gateway.house import OMNI
from tests.unit.gateway.realtime_doors import Doors
from tests.unit.sidecar.node import wait_until


async def test_of_two_connections_the_last_one_has_the_session(doors: Doors):
    await doors.serve(OMNI)
    async with doors.opened() as caller, doors.resumed(caller) as other:
        await other.until("session.resumed")
        await caller.send("response.create", response={})
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                await caller.next()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1008
        await other.say("still here")
    await doors.first.emptied()


async def test_a_connection_that_writes_still_loses_the_session_with_nothing_lost(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
):
    """The second gateway reads the log before the first sees the takeover."""
    await doors.serve(OMNI)
    async with doors.opened() as caller:
        last = caller.events[-1]["event_id"]
        read, bus = doors.second.bus.read_subject, doors.second.bus
        late = iter(["one", "two"])

        async def read_and_be_late(*asked: Any) -> Any:
            result = await read(*asked)
            if text := next(late, ""):
                await caller.say(text)
            return result

        monkeypatch.setattr(bus, "read_subject", read_and_be_late)
        async with doors.resumed(caller, last) as other:
            resume_events = await other.until("session.resumed")
            await other.say("three")

    texts = [
        event["item"]["content"][0]["text"] for event in resume_events if event["type"] == "conversation.item.added"
    ]
    assert texts == ["one", "two"]
    await doors.first.emptied()


async def test_a_client_that_answers_no_ping_has_left_and_may_come_back(doors: Doors, monkeypatch: pytest.MonkeyPatch):
    protocols: list[GatewayWebSocketProtocol] = []

    def start_keepalive(self: GatewayWebSocketProtocol) -> None:
        protocols.append(self)

    monkeypatch.setattr(GatewayWebSocketProtocol, "start_keepalive", start_keepalive)
    monkeypatch.setattr(gateway_websocket, "CLOSE_SECONDS", 0.01)
    await doors.serve(OMNI)
    async with doors.opened() as caller:
        (protocol,) = protocols

        protocol.keepalive_timeout()

        with pytest.raises(ClientDisconnected):
            await protocol.send({"type": "websocket.send", "text": "late"})
        await wait_until(lambda: not doors.first.table.sessions.count)
        async with doors.resumed(caller) as other:
            await other.until("session.resumed")
        caller.socket.transport.abort()
