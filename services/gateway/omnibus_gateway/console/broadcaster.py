"""A watch of the cluster that broadcasts states to all viewers. It runs while there are any."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import msgspec

from omnibus.bus import Bus
from omnibus.cluster.monitor import Watch, state_values
from omnibus.errors import BusUnavailable, OmnibusError, Overloaded
from omnibus.service import until_cancelled
from omnibus.store import Store
from omnibus_gateway.openai.errors import client_error

#: Shortest interval between two states in seconds, and longest one while rates age without news.
MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.5, 1.0
#: Seconds that the first state waits for the plan, and then for the answers to the census.
PLAN_WAIT_SECONDS, CENSUS_WAIT_SECONDS = 2.0, 0.1
#: Seconds of silence after which a stream sends an empty message, so that a disconnected viewer is noticed.
KEEPALIVE_SECONDS = 15.0
#: Limit of concurrent viewers.
MAX_VIEWERS = 32
#: Fields that always change, and do not make a state new.
_TIME_FIELDS = ("at", "seconds")

_encode = msgspec.json.Encoder().encode


class LiveStates:
    """States of the whole cluster, in the format of ``omnibus.cluster.monitor.to_json``."""

    def __init__(self, store: Store, bus: Bus) -> None:
        self._store = store
        self._bus = bus
        self._viewers: set[asyncio.Queue[bytes | OmnibusError]] = set()
        self._latest: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def viewer_count(self) -> int:
        return len(self._viewers)

    async def stream_states(self) -> AsyncGenerator[bytes, None]:
        """Yield JSON of the current state and each later one; b"" after ``KEEPALIVE_SECONDS`` without one.

        Raises ``Overloaded`` if there are too many viewers, and ``BusUnavailable`` if the watch cannot start or ends.
        """
        if len(self._viewers) >= MAX_VIEWERS:
            raise Overloaded(
                f"this gateway's console has {MAX_VIEWERS} viewers, the limit: close one, or use another gateway"
            )
        # A slow viewer skips states: only the newest one matters.
        queue: asyncio.Queue[bytes | OmnibusError] = asyncio.Queue(1)
        self._viewers.add(queue)
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._watch_states())
            elif self._latest is not None:
                queue.put_nowait(self._latest)
            while True:
                yield await _next_state(queue)
        finally:
            self._viewers.discard(queue)
            if not self._viewers:
                await self._cancel_watch()

    async def close(self) -> None:
        """End the streams of all viewers."""
        self._send_to_viewers(BusUnavailable("the gateway is stopping: reconnect"))
        await self._cancel_watch()

    async def _cancel_watch(self) -> None:
        task, self._task, self._latest = self._task, None, None
        if task is not None:
            await until_cancelled(task)

    async def _watch_states(self) -> None:
        news = asyncio.Event()
        try:
            async with Watch(self._store, self._bus, news.set).following() as watch:
                before: dict[str, Any] = {}
                watch.poll_presence()
                await _wait_for_event(watch.begun, PLAN_WAIT_SECONDS)
                await asyncio.sleep(CENSUS_WAIT_SECONDS)
                while True:
                    state = state_values(watch.seen, watch.poll_presence())
                    same = {name: value for name, value in state.items() if name not in _TIME_FIELDS}
                    if same != before:
                        before, self._latest = same, _encode(state)
                        self._send_to_viewers(self._latest)
                    news.clear()
                    await asyncio.sleep(MIN_INTERVAL_SECONDS)
                    await _wait_for_event(news, MAX_INTERVAL_SECONDS - MIN_INTERVAL_SECONDS)
        except Exception as error:  # noqa: BLE001 viewers get it
            self._fail_viewers(client_error(error, "the console's watch"))

    def _fail_viewers(self, error: OmnibusError) -> None:
        self._task, self._latest = None, None
        self._send_to_viewers(error)

    def _send_to_viewers(self, state: bytes | OmnibusError) -> None:
        for queue in self._viewers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(state)


async def _next_state(queue: "asyncio.Queue[bytes | OmnibusError]") -> bytes:
    try:
        async with asyncio.timeout(KEEPALIVE_SECONDS):
            state = await queue.get()
    except TimeoutError:
        return b""
    if isinstance(state, OmnibusError):
        raise state
    return state


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
