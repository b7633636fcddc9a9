"""API keys in a real store.

They are written once, revoked permanently, and restored to a store that lost its data.
"""

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest
import redis.asyncio as redis

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.errors import BadRequest, Conflict, NotFound
from omnibus.store import Store

PATIENCE = 20.0


def make_key_record(secret: str = "one", tenant: str = "search", **limits) -> KeyRecord:
    return KeyRecord(api_key.hash_key(secret), tenant, **limits)


async def test_a_key_is_kept_as_its_hash(store: Store, raw: redis.Redis):
    key_record = make_key_record("omni-very-secret", rate=2.0, concurrent=3)

    await store.put_key(key_record)

    assert await store.keys() == {key_record.sha256: key_record}
    for key in await raw.keys("test:keys*"):
        body = await raw.dump(key)
        assert b"omni-very-secret" not in body


async def test_a_key_is_written_once(store: Store):
    await store.put_key(make_key_record())

    with pytest.raises(Conflict):
        await store.put_key(make_key_record(tenant="other"))

    assert [each.tenant for each in (await store.keys()).values()] == ["search"]


@pytest.mark.parametrize(
    "wrong", [make_key_record(tenant=""), make_key_record(tenant="a b"), KeyRecord("abc", "search")]
)
async def test_what_is_no_key_is_not_kept(store: Store, wrong: KeyRecord):
    with pytest.raises(BadRequest):
        await store.put_key(wrong)


async def test_a_key_is_revoked_by_the_beginning_of_its_hash(store: Store):
    one, other = make_key_record("one"), make_key_record("other")
    await store.put_key(one)
    await store.put_key(other)

    assert await store.drop_key(one.id) == one

    assert set(await store.keys()) == {other.sha256}
    for unknown in (one.id, "", "zz"):
        with pytest.raises(NotFound):
            await store.drop_key(unknown)


async def test_a_beginning_that_two_keys_have_revokes_neither(store: Store):
    for secret in range(17):  # two of them begin alike
        await store.put_key(make_key_record(str(secret)))
    hashes = sorted(await store.keys())
    twin = next(one[0] for one, other in pairwise(hashes) if one[0] == other[0])

    with pytest.raises(Conflict):
        await store.drop_key(twin)

    assert len(await store.keys()) == 17


async def test_one_that_cannot_be_read_is_good_for_nothing(store: Store, raw: redis.Redis):
    good, other = make_key_record("good"), make_key_record("other")
    await store.put_key(good)
    await raw.hset("test:keys", "0" * 64, b'{"sha256":"x"}')
    await raw.hset("test:keys", "1" * 64, api_key.encode_key_record(other))  # filed under a hash that is not its own

    assert set(await store.keys()) == {good.sha256}


async def test_who_follows_hears_of_keys_and_gives_them_back_to_a_store_that_lost_them(store: Store, raw: redis.Redis):
    one, other = make_key_record("one"), make_key_record("other")
    async with asyncio.timeout(PATIENCE), aclosing(store.key_changes()) as changes:
        assert await anext(changes) == {}
        await store.put_key(one)
        assert await anext(changes) == {one.sha256: one}
        await store.put_key(other)
        assert set(await anext(changes)) == {one.sha256, other.sha256}
        await store.drop_key(one.id)
        assert await anext(changes) == {other.sha256: other}

        await raw.flushall()
        await store.put_key(make_key_record("third"))  # after a loss, known keys are restored and revoked ones are not

        assert {other.sha256, make_key_record("third").sha256} == set(await anext(changes))
