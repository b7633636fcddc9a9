"""Requests and replies with publish and subscribe, equal on every bus."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

from omnibus.bus import Bus, Delivery, Responder
from omnibus.errors import DeadlineExceeded, NotFound

log = logging.getLogger(__name__)


async def request_replies(
    bus: Bus, inbox: str, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None
) -> AsyncIterator[bytes]:
    """Yield replies on ``inbox`` until the empty one. ``timeout`` bounds each wait, in seconds.

    Raises ``NotFound`` without a subscriber and ``DeadlineExceeded``.
    """
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    stop = await bus.subscribe(inbox, deliveries.put_nowait)
    try:
        bus.publish(subject, data, reply=inbox, headers=headers)
        while True:
            try:
                async with asyncio.timeout(timeout):
                    delivery = await deliveries.get()
            except TimeoutError as error:
                raise DeadlineExceeded(f"no answer on {subject} within {timeout:g} s") from error
            if delivery.refused:
                raise NotFound(f"no subscriber on {subject}")
            if not delivery.data:
                return
            yield delivery.data
    finally:
        await stop()


async def send_replies(bus: Bus, responder: Responder, delivery: Delivery) -> None:
    """Send the messages of ``responder``, then the empty message."""
    try:
        async for part in responder(delivery):
            if delivery.reply:
                bus.publish(delivery.reply, part)
    except Exception:  # the client must not wait for more
        log.exception("responder of %s failed", delivery.subject)
    if delivery.reply:
        bus.publish(delivery.reply, b"")
