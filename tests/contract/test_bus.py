"""The bus contract, for the in-process bus and a real NATS server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from omnibus.bus import Bus, Delivery
from omnibus.bus.nats import NatsBus
from omnibus.errors import BusUnavailable, DeadlineExceeded, NotFound, TooLarge
from omnibus.settings import BusSettings
from tests.contract.buses import LIMIT, PATIENCE, DeliveryCollector, wait_until_delivered


async def echo_parts(delivery: Delivery) -> AsyncIterator[bytes]:
    for part in delivery.data.split():
        yield part


# Publish and subscribe


async def test_deliveries_come_in_the_order_of_publishing(bus: Bus):
    collector = DeliveryCollector()
    await bus.subscribe("a.b", collector)

    for number in range(200):
        bus.publish("a.b", b"%d" % number)

    assert await collector.wait_for_count(200) == [b"%d" % number for number in range(200)]


async def test_a_delivery_comes_in_a_later_turn(bus: Bus):
    collector = DeliveryCollector()
    await bus.subscribe("a", collector)

    bus.publish("a", b"x")

    assert collector.bodies == []
    assert await collector.wait_for_count(1) == [b"x"]


async def test_a_delivery_says_everything_that_was_published(bus: Bus):
    collector = DeliveryCollector()
    await bus.subscribe("a.>", collector)
    await bus.subscribe("back", lambda _: None)

    bus.publish("a.b.c", "ünï".encode(), reply="back", headers={"Trace": "t-1"})
    await collector.wait_for_count(1)

    [delivery] = collector.deliveries
    assert delivery._replace(headers=None) == Delivery("a.b.c", "ünï".encode(), "back")
    assert dict(delivery.headers or {}) == {"Trace": "t-1"}


async def test_wildcards_catch_one_token_or_the_rest(bus: Bus):
    one, rest = DeliveryCollector(), DeliveryCollector()
    await bus.subscribe("a.*.c", one)
    await bus.subscribe("a.>", rest)

    for subject in ("a.b.c", "a.b", "a.x.c", "a", "b.b.c"):
        bus.publish(subject, subject.encode())
    await wait_until_delivered(bus)

    assert one.bodies == [b"a.b.c", b"a.x.c"]
    assert rest.bodies == [b"a.b.c", b"a.b", b"a.x.c"]


async def test_every_subscriber_gets_a_message_and_one_of_each_queue_group(bus: Bus):
    plain, group, other = (
        [DeliveryCollector(), DeliveryCollector()],
        [DeliveryCollector(), DeliveryCollector(), DeliveryCollector()],
        [DeliveryCollector()],
    )
    for each in plain:
        await bus.subscribe("a", each)
    for each in group:
        await bus.subscribe("a", each, queue="g")
    for each in other:
        await bus.subscribe("a", each, queue="h")

    for number in range(60):
        bus.publish("a", b"%d" % number)
    await wait_until_delivered(bus)

    everything = [b"%d" % number for number in range(60)]
    assert [each.bodies for each in plain] == [everything, everything]
    assert other[0].bodies == everything
    assert sorted(body for each in group for body in each.bodies) == sorted(everything)
    assert all(each.bodies for each in group)


async def test_nothing_comes_after_unsubscribing(bus: Bus):
    collector = DeliveryCollector()
    stop = await bus.subscribe("a", collector)
    bus.publish("a", b"before")
    await collector.wait_for_count(1)

    await stop()
    bus.publish("a", b"after")
    await wait_until_delivered(bus)

    assert collector.bodies == [b"before"]


async def test_a_handler_that_fails_costs_nobody_else_a_message(bus: Bus):
    collector = DeliveryCollector()

    def raise_error(_: Delivery) -> None:
        raise RuntimeError("broken handler")

    await bus.subscribe("a", raise_error)
    await bus.subscribe("a", collector)

    bus.publish("a", b"1")
    bus.publish("a", b"2")

    assert await collector.wait_for_count(2) == [b"1", b"2"]


async def test_publishing_where_nobody_listens_is_told_on_the_reply_subject(bus: Bus):
    collector = DeliveryCollector()
    await bus.subscribe("mine.>", collector)

    bus.publish("nobody.here", b"x", reply="mine.42.e-0")
    await collector.wait_for_count(1)

    assert collector.deliveries[0]._replace(headers=None) == Delivery("mine.42.e-0", b"", refused=True)


async def test_publishing_where_somebody_listens_tells_nothing(bus: Bus):
    collector, other_collector = DeliveryCollector(), DeliveryCollector()
    await bus.subscribe("mine.>", collector)
    await bus.subscribe("somebody.here", other_collector)

    bus.publish("somebody.here", b"x", reply="mine.42.e-0")
    bus.publish("nobody.here", b"x")
    await other_collector.wait_for_count(1)
    await wait_until_delivered(bus)

    assert collector.deliveries == []


async def test_a_message_over_the_limit_is_refused_before_it_is_sent(bus: Bus):
    collector = DeliveryCollector()
    await bus.subscribe("a", collector)

    with pytest.raises(TooLarge, match=f"{LIMIT + 1} bytes for a are over the bus limit of {LIMIT}"):
        bus.publish("a", b"x" * (LIMIT + 1))
    bus.publish("a", b"x" * LIMIT)

    assert await collector.wait_for_count(1) == [b"x" * LIMIT]


async def test_headers_count_towards_the_limit(bus: Bus):
    deliveries = DeliveryCollector()
    await bus.subscribe("a", deliveries)

    with pytest.raises(TooLarge, match=f"bytes for a are over the bus limit of {LIMIT}"):
        bus.publish("a", b"x" * (LIMIT - 10), headers={"Traceparent": "0" * 55})
    bus.publish("a", b"x" * bus.max_body, headers={"Traceparent": "0" * 55})

    assert await deliveries.wait_for_count(1) == [b"x" * bus.max_body]


async def test_a_closed_bus_says_so(bus: Bus):
    await bus.drain()
    await bus.drain()

    with pytest.raises(BusUnavailable):
        bus.publish("a", b"x")
    assert bus.connected is False


async def test_the_last_messages_before_closing_are_sent(bus: Bus, url: str):
    collector = DeliveryCollector()
    other: Bus = await NatsBus.connect(BusSettings(url=url), "other") if url else bus
    await other.subscribe("a", collector)

    bus.publish("a", b"last words")
    if other is not bus:
        await bus.drain()

    assert await collector.wait_for_count(1) == [b"last words"]
    await other.drain()


# Request and respond


async def test_a_request_gets_the_first_answer(bus: Bus):
    await bus.add_responder("ask", echo_parts)

    assert await bus.request("ask", b"one two", PATIENCE) == b"one"


async def test_requests_go_on_until_the_empty_message(bus: Bus):
    await bus.add_responder("ask", echo_parts)

    assert [part async for part in bus.request_stream("ask", b"one two three", PATIENCE)] == [b"one", b"two", b"three"]
    assert [part async for part in bus.request_stream("ask", b"", PATIENCE)] == []


async def test_many_requests_at_once_get_their_own_answers(bus: Bus):
    async def echo_slowly(delivery: Delivery) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        yield delivery.data
        await asyncio.sleep(0)
        yield delivery.data

    await bus.add_responder("ask", echo_slowly, queue="g")
    await bus.add_responder("ask", echo_slowly, queue="g")

    async def request_parts(number: int) -> list[bytes]:
        return [part async for part in bus.request_stream("ask", b"%d" % number, PATIENCE)]

    assert await asyncio.gather(*map(request_parts, range(30))) == [[b"%d" % number] * 2 for number in range(30)]


async def test_answers_stream_as_they_are_made(bus: Bus):
    more = asyncio.Event()

    async def yield_twice(_: Delivery) -> AsyncIterator[bytes]:
        yield b"first"
        await more.wait()
        yield b"second"

    await bus.add_responder("ask", yield_twice)

    parts = []
    async for part in bus.request_stream("ask", b"", PATIENCE):
        parts.append(part)
        more.set()

    assert parts == [b"first", b"second"]


async def test_a_request_to_nobody_is_not_found_at_once(bus: Bus):
    with pytest.raises(NotFound, match=r"no subscriber on who\.is"):
        await bus.request("who.is", b"", 60)
    with pytest.raises(NotFound, match=r"no subscriber on who\.is"):
        [part async for part in bus.request_stream("who.is", b"", 60)]


async def test_a_request_without_an_answer_ends_at_its_deadline(bus: Bus):
    await bus.subscribe("deaf", lambda _: None)

    with pytest.raises(DeadlineExceeded, match=r"no answer on deaf within 0\.05 s"):
        await bus.request("deaf", b"", 0.05)
    with pytest.raises(DeadlineExceeded, match=r"no answer on deaf within 0\.05 s"):
        [part async for part in bus.request_stream("deaf", b"", 0.05)]


async def test_a_stream_of_answers_that_stops_ends_at_its_deadline(bus: Bus):
    async def block_after_first(_: Delivery) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    await bus.add_responder("ask", block_after_first)
    answers = bus.request_stream("ask", b"", 0.2)

    assert await anext(answers) == b"first"
    with pytest.raises(DeadlineExceeded):
        await anext(answers)


async def test_a_responder_that_fails_still_ends_its_answers(bus: Bus):
    async def fail_after_first(_: Delivery) -> AsyncIterator[bytes]:
        yield b"first"
        raise RuntimeError("broken responder")

    await bus.add_responder("ask", fail_after_first)

    assert [part async for part in bus.request_stream("ask", b"", PATIENCE)] == [b"first"]


async def test_a_responder_may_be_told_without_being_asked(bus: Bus):
    call_event = asyncio.Event()

    async def accept_delivery(delivery: Delivery) -> AsyncIterator[bytes]:
        assert not delivery.reply
        call_event.set()
        yield b"to nobody"

    await bus.add_responder("ask", accept_delivery)
    bus.publish("ask", b"")

    await asyncio.wait_for(call_event.wait(), PATIENCE)
    await wait_until_delivered(bus)
    assert bus.connected


async def test_a_registered_service_answers_on_its_endpoints(bus: Bus):
    await bus.register_service(
        "omnibus-X", {"node": "n1"}, {"echo": ("task.echo", echo_parts), "twice": ("task.twice", echo_parts)}
    )

    assert [part async for part in bus.request_stream("task.echo", b"a b", PATIENCE)] == [b"a", b"b"]
    assert [part async for part in bus.request_stream("task.twice", b"c", PATIENCE)] == [b"c"]


async def test_one_of_several_equal_services_answers(bus: Bus):
    for _ in range(3):
        await bus.register_service("omnibus-X", {}, {"echo": ("task.echo", echo_parts)})

    assert [part async for part in bus.request_stream("task.echo", b"once", PATIENCE)] == [b"once"]
