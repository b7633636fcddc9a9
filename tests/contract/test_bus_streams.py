"""State of JetStream streams on the bus: their fill level, and the lag of durable consumers."""

from collections.abc import AsyncIterator

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from omnibus.bus import StreamState, subjects
from omnibus.bus.nats import NatsBus
from omnibus.errors import BusUnavailable
from omnibus.metrics import STREAMS, render_exposition
from omnibus.metrics.collectors import REGISTRY
from omnibus.settings import BusSettings
from omnibus_planner.jetstream_metrics import StreamMetrics
from tests.memory_bus import MemoryBus
from tests.unit.sidecar.node import wait_until

RECORD = subjects.record_subject("chat", "a-1")
LIMIT = 1 << 20


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    new_bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    for old in await new_bus._js.streams_info():
        await new_bus._js.delete_stream(str(old.config.name))
    await new_bus.open_records(60.0, LIMIT)
    yield new_bus
    await new_bus.drain()


async def wait_for_messages(bus: NatsBus, count: int) -> StreamState:
    """Return the only stream once it contains ``count`` messages."""
    streams: list[StreamState] = []

    async def has_messages() -> bool:
        streams[:] = await bus.list_streams()
        return streams[0].messages == count

    await wait_until(has_messages)
    return streams[0]


async def test_a_stream_says_what_it_keeps(bus: NatsBus):
    for number in range(3):
        bus.publish_record(RECORD, b"x" * 100, f"{number}")

    state = await wait_for_messages(bus, 3)

    assert (state.name, state.limit, state.last, dict(state.consumers)) == (subjects.INVOCATIONS.name, LIMIT, 3, {})
    assert state.bytes >= 300


async def test_a_durable_consumer_says_how_far_it_is_and_others_are_left_out(bus: NatsBus, nats_url: str):
    client = await nats.connect(nats_url)
    stream = client.jetstream()
    await stream.add_consumer(
        subjects.INVOCATIONS.name, ConsumerConfig(durable_name="slow", ack_policy=AckPolicy.EXPLICIT)
    )
    await stream.add_consumer(subjects.INVOCATIONS.name, ConsumerConfig(ack_policy=AckPolicy.EXPLICIT))
    for number in range(3):
        bus.publish_record(RECORD, b"x", f"{number}")
    await wait_for_messages(bus, 3)
    reader = await stream.pull_subscribe_bind("slow", subjects.INVOCATIONS.name)
    await reader.fetch(1)

    [state] = await bus.list_streams()

    assert dict(state.consumers) == {"slow": (2, 1)}
    await client.close()


async def test_the_planner_tells_prometheus(bus: NatsBus):
    bus.publish_record(RECORD, b"x", "1")
    await wait_for_messages(bus, 1)
    watch = StreamMetrics(bus)

    await watch.refresh_streams()

    stream = {"stream": subjects.INVOCATIONS.name}
    assert REGISTRY.get_sample_value("omnibus_stream_messages", stream) == 1
    assert REGISTRY.get_sample_value("omnibus_stream_limit_bytes", stream) == LIMIT


async def test_streams_that_cannot_be_seen_are_not_told(bus: NatsBus):
    watch = StreamMetrics(bus)
    await watch.refresh_streams()
    await bus.drain()

    await watch.refresh_streams()

    assert not any(line.startswith(b"omnibus_stream_") for line in render_exposition().splitlines())
    with pytest.raises(BusUnavailable):
        await bus.list_streams()
    STREAMS.messages.set_values(None)


async def test_the_bus_of_one_process_has_none():
    assert await MemoryBus().list_streams() == []
