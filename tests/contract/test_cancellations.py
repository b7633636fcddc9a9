"""A cancellation ends a call even if an answer or error coincides.

``asyncio.wait_for``, which libraries use, returns its result instead of raising such a cancellation up to Python 3.11.
Here each of its calls is cancelled in the same turn of the event loop in which it has a result. nats-py and redis-py
use ``wait_for``. obstore, uvicorn and calls in threads are awaited directly, which loses no cancellation. A separate
task connects to NATS.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus
from omnibus.bus.nats import bus as nats_bus
from omnibus.settings import BusSettings
from omnibus.store import Store

RECORD = subjects.record_subject("chat", "c-1")
_numbers = count()
_wait_for = asyncio.wait_for


class Cancelling:
    """``asyncio.wait_for`` whose caller is cancelled when the result or error arrives.

    ``count``: how often that happened.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None  # the one that is to be cancelled, whose calls count
        self.count = 0

    async def wait_for(self, call: Awaitable[Any], timeout: float | None) -> Any:
        task, answer = asyncio.current_task(), asyncio.ensure_future(call)
        if task is self.task and task is not None:
            self.count += 1
            answer.add_done_callback(lambda _: task.cancel())  # before those who wait for it know
        return await _wait_for(answer, timeout)


@pytest.fixture
def canceller(monkeypatch: pytest.MonkeyPatch) -> Cancelling:
    instance = Cancelling()
    monkeypatch.setattr(asyncio, "wait_for", instance.wait_for)
    return instance


async def is_cancelled(cancelling: Cancelling, call: Awaitable[Any]) -> bool:
    """Return True if cancelling ``call`` as its answer arrives ends it."""

    async def run_call() -> Any:
        cancelling.task = asyncio.current_task()
        return await call

    task = asyncio.create_task(run_call())
    await asyncio.wait([task], timeout=30)
    cancelling.task = None
    assert cancelling.count, "the library does not wait with asyncio.wait_for: this call needs no test"
    return task.cancelled()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    new_bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    await new_bus.open_records(60.0, 1 << 20)
    yield new_bus
    await new_bus.drain()


async def answer_yes(_: Delivery) -> AsyncIterator[bytes]:
    yield b"yes"


async def send_request(bus: NatsBus) -> Any:
    subject = f"cancelled.{next(_numbers)}"
    await bus.add_responder(subject, answer_yes)
    return await bus.request(subject, b"?", 5.0)


STREAM = nats_bus.INVOCATIONS
BUS_CALLS: dict[str, Callable[[NatsBus], Awaitable[Any]]] = {
    "request": send_request,
    "request without responders": lambda bus: bus.request("cancelled.nobody", b"?", 5.0),
    "flush": lambda bus: bus._flush_connection(5),
    "open a stream": lambda bus: bus.open_records(60.0, 1 << 20),
    "store a record": lambda bus: bus.store_record(RECORD, b"x", f"id-{next(_numbers)}"),
    "append a record": lambda bus: bus.append_record(STREAM, f"{RECORD}{next(_numbers)}", b"x", "id", 0),
    "append behind another": lambda bus: bus.append_record(STREAM, RECORD, b"x", f"id-{next(_numbers)}", 999),
    "read records": lambda bus: bus.read_records(RECORD),
    "read records that are not there": lambda bus: bus.read_records(f"{subjects.ROOT}.inv.none.none"),
    "read the latest": lambda bus: bus.read_latest(STREAM, 1),
    "list streams": lambda bus: bus.list_streams(),
    "purge": lambda bus: bus.purge_subject(STREAM, RECORD),
    "register a service": lambda bus: bus.register_service("cancelled", {}, {"go": ("cancelled.go", answer_yes)}),
}


@pytest.mark.parametrize("name", BUS_CALLS)
async def test_calls_of_the_bus_end(bus: NatsBus, canceller: Cancelling, name: str):
    await bus.store_record(RECORD, b"x", f"id-{next(_numbers)}")

    assert await is_cancelled(canceller, BUS_CALLS[name](bus))


STORE_CALLS: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "open": lambda store: store.open(),
    "ping": lambda store: store.ping(),
    "read": lambda store: store.plan(),
    "function": lambda store: store.put_source("text"),
    "pipeline": lambda store: store._read_apps(),
    "announcements": lambda store: anext(aiter(store.app_changes())),
}


@pytest.mark.parametrize("name", STORE_CALLS)
async def test_calls_of_the_store_end(store: Store, canceller: Cancelling, name: str):
    assert await is_cancelled(canceller, STORE_CALLS[name](store))
