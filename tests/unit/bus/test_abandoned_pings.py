"""A ping whose sender does not wait any more does not end the connection."""

import asyncio
from contextlib import suppress

import pytest

from omnibus.bus import Delivery
from omnibus.bus.nats import NatsBus
from omnibus.settings import BusSettings


@pytest.mark.behaviour(
    "nats-py 2.16",
    "stops reading at the answer to a ping whose sender was cancelled, without an error",
    "drops such answers",
    source="NATS protocol, PING and PONG: an answer is no fault",
)
@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_cancelled_subscription_leaves_the_connection(nats_url: str, turns: int):
    bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    for _ in range(5):
        task = asyncio.ensure_future(bus.subscribe("abandoned", lambda delivery: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    heard: asyncio.Queue[Delivery] = asyncio.Queue()
    await bus.subscribe("later", heard.put_nowait)

    bus.publish("later", b"x")
    delivery = await asyncio.wait_for(heard.get(), 5.0)

    assert (delivery.data, bus.reconnects, bus.connected) == (b"x", 0, True)
    await bus.drain()
