"""The store contract for responses and conversations, on a real server."""

import asyncio

import pytest
import redis.asyncio as redis

from omnibus.errors import ProtocolError, TooLarge
from omnibus.store import ConversationLimits, ConversationRecord, ResponseRecord, Store

RECORD = ResponseRecord(
    id="resp_1", model="m", created=1700.0, deadline=1760.0, seed=7, request=b'{"a": 1}', input=b"[]", tenant="ann"
)


async def store_response(store: Store, record: ResponseRecord = RECORD, holder: str = "one", most: int = 100) -> None:
    await store.put_response(record, holder, b"", 60, most)


def make_response(**changes: object) -> ResponseRecord:
    return ResponseRecord(**{field: getattr(RECORD, field) for field in RECORD.__struct_fields__} | changes)  # type: ignore[arg-type]


async def test_a_response_is_there_until_its_time_is_over(store: Store, raw: redis.Redis):
    await store_response(store)

    entry = await store.response("resp_1")

    assert entry == (RECORD, "one", b"", 0)
    assert 59_000 < await raw.pttl("test:response:resp_1") <= 60_000
    assert await store.response("resp_2") is None


async def test_of_many_who_claim_it_one_has_it(store: Store):
    await store_response(store)

    claims = await asyncio.gather(*(store.claim_response("resp_1", f"gateway-{n}", "one") for n in range(10)))

    assert sorted(claims) == [0] * 9 + [1]
    entry = await store.response("resp_1")
    assert entry is not None
    assert entry.holder == f"gateway-{claims.index(1)}"
    assert await store.claim_response("resp_1", "next", entry.holder) == 2


async def test_it_has_one_end_by_its_holder(store: Store):
    await store_response(store)

    assert not await store.end_response(RECORD, "other", b"{}", 60)
    assert await store.end_response(RECORD, "one", b'{"x":1}', 60)
    assert not await store.end_response(RECORD, "", b"{}", 60)

    entry = await store.response("resp_1")
    assert entry is not None
    assert (entry.holder, entry.final) == ("", b'{"x":1}')
    assert await store.claim_response("resp_1", "two", "") == 0


async def test_anybody_may_end_it_without_a_name_unless_it_is_gone(store: Store):
    await store_response(store)

    assert await store.end_response(RECORD, "", b"{}", 60)
    assert await store.drop_response(RECORD)
    assert not await store.drop_response(RECORD)
    assert not await store.end_response(RECORD, "", b"{}", 60)
    assert await store.claim_response("resp_1", "two", "") == 0
    assert await store.response("resp_1") is None


async def test_those_in_the_background_are_open_until_they_end(store: Store):
    await store_response(store)  # not in the background
    for number in range(3):
        await store_response(store, make_response(id=f"resp_b{number}", background=True, created=1700.0 + number))

    assert list(await store.open_responses(2)) == ["resp_b0", "resp_b1"]
    assert await store.count_open_responses() == 3
    await store.end_response(make_response(id="resp_b0"), "one", b"{}", 60)
    await store.drop_response(make_response(id="resp_b1"))
    assert list(await store.open_responses(9)) == ["resp_b2"]


async def test_of_one_tenant_the_newest_are_kept(store: Store):
    for number in range(5):
        await store_response(store, make_response(id=f"resp_{number}", created=1700.0 + number), most=3)
    await store_response(store, make_response(id="resp_bob", tenant="bob", created=1.0), most=3)

    there = [id for id in ("resp_0", "resp_1", "resp_2", "resp_3", "resp_4", "resp_bob") if await store.response(id)]

    assert there == ["resp_2", "resp_3", "resp_4", "resp_bob"]


async def test_one_that_cannot_be_read_is_an_error_and_left_out(store: Store, raw: redis.Redis):
    await raw.hset("test:response:resp_x", "record", b"{}")
    await raw.zadd("test:responses:open", {"resp_x": 1})

    with pytest.raises(ProtocolError):
        await store.response("resp_x")
    assert await store.open_responses(9) == {}


async def test_a_conversation_has_its_items_in_order(store: Store):
    record = ConversationRecord("conv_1", 1700.0, {"a": "b"}, "ann")
    await store.put_conversation(record, 60, 10)

    assert await store.conversation("conv_1") == record
    limits, other = ConversationLimits(4, 1000), ConversationRecord("conv_2", 1700.0)
    assert await store.extend_conversation(record, {"i1": b"1", "i2": b"2"}, 60, limits) == 2
    assert await store.extend_conversation(record, {"i3": b"3"}, 60, limits) == 3
    with pytest.raises(TooLarge, match="4 items"):
        await store.extend_conversation(record, {"i4": b"4", "i5": b"5"}, 60, limits)
    assert await store.extend_conversation(other, {"i1": b"1"}, 60, limits) == 0

    page = await store.conversation_items("conv_1", 2)
    assert page == ({"i1": b"1", "i2": b"2"}, True)
    assert await store.conversation_items("conv_1", 2, "i2") == ({"i3": b"3"}, False)
    assert await store.conversation_items("conv_1", 9, "i2", newest=True) == ({"i1": b"1"}, False)
    assert await store.conversation_items("conv_1", 9, "gone") is None
    assert await store.drop_conversation_items(record, ["i2"]) == 1
    assert await store.drop_conversation_items(record, ["i2"]) == 0
    assert await store.conversation_item("conv_1", "i3") == b"3"
    assert await store.conversation_item("conv_1", "i2") is None
    assert await store.drop_conversation(record)
    assert await store.conversation("conv_1") is None
    assert await store.conversation_items("conv_1", 9) == ({}, False)
