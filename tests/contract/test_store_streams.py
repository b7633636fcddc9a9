"""The store contract for streamed answers that another gateway can continue.

It runs on a real server.
"""

import asyncio
import time

import pytest
import redis.asyncio as redis
from msgspec.structs import replace

from omnibus.errors import ProtocolError, StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store import Store, StreamRecord

RECORD = StreamRecord("chatcmpl-1", "audio_1", 1700, time.time() + 60, 7, b'{"model": "\xc3\xa4"}', "L", "ann")


async def test_a_request_is_there_for_every_gateway_until_its_time_is_over(store: Store, raw: redis.Redis):
    await store.put_stream("t", RECORD, "first", 60)

    assert await store.stream("t") == RECORD
    assert await store.stream("other") is None
    assert 59_000 < await raw.pttl("test:stream:t") <= 60_000
    assert 59_000 < await raw.pttl("test:stream:t:owner") <= 60_000


async def test_each_sender_learns_who_was_before(store: Store):
    await store.put_stream("t", RECORD, "first", 60)

    assert await store.claim_stream("t", "second", 60) == "first"
    assert await store.claim_stream("t", "third", 60) == "second"
    assert await store.claim_stream("new", "only", 60) == ""


async def test_of_many_at_once_each_follows_another_one(store: Store):
    await store.put_stream("t", RECORD, "first", 60)
    senders = [f"sender-{number}" for number in range(20)]

    before = await asyncio.gather(*(store.claim_stream("t", sender, 60) for sender in senders))

    last = await store.claim_stream("t", "end", 60)
    assert sorted([*before, last]) == sorted(["first", *senders])


async def test_it_is_forgotten_sooner_and_never_later(store: Store, raw: redis.Redis):
    await store.put_stream("t", RECORD, "first", 60)

    await store.forget_stream("t", 5)
    await store.forget_stream("t", 50)

    assert 0 < await raw.pttl("test:stream:t") <= 5_000
    assert 0 < await raw.pttl("test:stream:t:owner") <= 5_000


async def test_tokens_of_many_answers_are_kept_whole_and_forgotten_with_them(store: Store, raw: redis.Redis):
    await store.put_stream("t", RECORD, "first", 60)

    await store.put_stream_tokens({"t": ([1, 2], 60), "u": ([7], 60)})
    await store.put_stream_tokens({"t": ([1, 2, 2**32 - 1], 60)})

    assert await store.stream_tokens("t") == (1, 2, 2**32 - 1)
    assert await store.stream_tokens("u") == (7,)
    assert await store.stream_tokens("other") == ()
    assert 59_000 < await raw.pttl("test:stream:t:tokens") <= 60_000
    await store.forget_stream("t", 5)
    assert 0 < await raw.pttl("test:stream:t:tokens") <= 5_000


async def test_tokens_that_cannot_be_read_are_none(store: Store, raw: redis.Redis):
    await raw.set("test:stream:t:tokens", b"12345")

    assert await store.stream_tokens("t") == ()


async def test_one_that_cannot_be_read_is_an_error(store: Store, raw: redis.Redis):
    await raw.set("test:stream:t", b"{")

    with pytest.raises(ProtocolError):
        await store.stream("t")


async def test_a_store_that_is_gone_is_a_typed_error():
    missing_store = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))

    with pytest.raises(StoreUnavailable):
        await missing_store.put_stream("t", RECORD, "first", 60)
    with pytest.raises(StoreUnavailable):
        await missing_store.stream("t")
    await missing_store.close()


async def test_hundreds_at_once_are_kept_and_found_and_share_a_connection(store: Store, raw: redis.Redis):
    before = len(await raw.client_list())
    tokens = [f"t{number}" for number in range(300)]

    await asyncio.gather(*(store.put_stream(each, replace(RECORD, id=each), "first", 60) for each in tokens))
    owners = await asyncio.gather(*(store.claim_stream(each, "second", 60) for each in tokens))
    records = await asyncio.gather(*(store.stream(each) for each in tokens))

    assert [record.id for record in records if record is not None] == tokens
    assert set(owners) == {"first"}
    assert len(await raw.client_list()) <= before + 2


async def test_one_that_fails_or_leaves_does_no_harm_to_those_beside_it(store: Store, raw: redis.Redis):
    await store.put_stream("t", RECORD, "first", 60)
    await raw.lpush("test:stream:list", "no record")

    leaving = asyncio.ensure_future(store.stream("t"))
    other_reads = asyncio.gather(store.stream("list"), store.stream("t"), return_exceptions=True)
    await asyncio.sleep(0)
    leaving.cancel()
    error, record = await other_reads

    assert leaving.cancelled()
    assert isinstance(error, StoreUnavailable)
    assert "WRONGTYPE" in str(error)
    assert record == RECORD
