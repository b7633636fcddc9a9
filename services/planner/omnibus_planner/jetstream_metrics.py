"""JetStream's lag for Prometheus: NATS itself exports none."""

import asyncio
import logging

from omnibus.bus import Bus, StreamState
from omnibus.errors import BusUnavailable
from omnibus.metrics import STREAMS

log = logging.getLogger(__name__)

#: Seconds between two polls.
POLL_SECONDS = 5.0


class StreamMetrics:
    """The streams at the last poll; none while it fails."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._found: list[StreamState] = []
        self._silent = False
        STREAMS.messages.set_values(lambda: {(each.name,): each.messages for each in self._found})
        STREAMS.bytes.set_values(lambda: {(each.name,): each.bytes for each in self._found})
        STREAMS.limit.set_values(lambda: {(each.name,): each.limit for each in self._found if each.limit > 0})
        STREAMS.last.set_values(lambda: {(each.name,): each.last for each in self._found})
        STREAMS.pending.set_values(lambda: {key: pending for key, (pending, _) in self._consumer_counts().items()})
        STREAMS.unacknowledged.set_values(
            lambda: {key: waiting for key, (_, waiting) in self._consumer_counts().items()}
        )

    async def run(self) -> None:
        """Poll repeatedly, until cancelled."""
        while True:
            await self.refresh_streams()
            await asyncio.sleep(POLL_SECONDS)

    async def refresh_streams(self) -> None:
        try:
            self._found, self._silent = await self._bus.list_streams(), False
        except BusUnavailable as error:
            self._found = []
            if not self._silent:
                log.warning("%s", error)
            self._silent = True

    def _consumer_counts(self) -> dict[tuple[str, ...], tuple[int, int]]:
        return {(each.name, name): counts for each in self._found for name, counts in each.consumers.items()}
