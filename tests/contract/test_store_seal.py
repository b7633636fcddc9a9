"""Signed plans and app records: services reject unsigned entries in the store."""

import json
from collections.abc import AsyncIterator

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.errors import ProtocolError
from omnibus.plan import Plan
from omnibus.settings import StoreSettings
from omnibus.store import Store, plan_mark
from omnibus.store.seal import Seal
from tests.contract.test_store_apps import make_app

SECRET = "a-secret-of-gateways-and-planners"


@pytest.fixture
async def raw(valkey_url: str) -> AsyncIterator["redis.Redis[bytes]"]:
    """A stranger's own connection to an empty store."""
    client = redis.from_url(valkey_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def store(valkey_url: str, raw: "redis.Redis[bytes]") -> AsyncIterator[Store]:
    new_store = Store(StoreSettings(url=valkey_url, secret=SECRET))
    yield new_store
    await new_store.close()


@pytest.fixture
async def unsigned_store(valkey_url: str) -> AsyncIterator[Store]:
    """A store of a client without the secret, or without signatures."""
    new_store = Store(StoreSettings(url=valkey_url))
    yield new_store
    await new_store.close()


def make_plan(epoch: int) -> Plan:
    return Plan(epoch, 0, 1000.0, {})


async def test_what_is_signed_is_read_by_who_has_the_secret(store: Store):
    await store.put_app(make_app(), 0)
    await store.swap_plan(make_plan(1), make_plan(2))

    assert await store.app("poem") == make_app()
    assert await store.apps() == {"poem": make_app()}
    assert (await store.plan(), await store.staged_plan()) == (make_plan(1), make_plan(2))
    assert (await store.plan_history())[0].plan == make_plan(1)
    assert (await store.plan_state()).mark == plan_mark(make_plan(2))


async def test_the_functions_of_the_store_read_signed_documents(store: Store):
    await store.put_app(make_app(), 0)
    await store.put_app(make_app(version=2), 1)
    await store.stage_plan(make_plan(4), "one", 60.0)

    assert (await store.apps())["poem"].version == 2
    assert (await store.plan_state()).staged == 4


async def test_an_app_that_a_stranger_wrote_is_left_out_and_it_is_logged(
    store: Store, unsigned_store: Store, caplog: pytest.LogCaptureFixture
):
    await store.put_app(make_app(), 0)
    await unsigned_store.put_app(make_app("evil"), 0)

    assert set(await store.apps()) == {"poem"}
    with pytest.raises(ProtocolError, match="the app 'evil' in the store is not signed"):
        await store.app("evil")
    assert [text for text in caplog.messages if "'evil' is left out" in text and "not signed" in text]


async def test_a_plan_that_a_stranger_wrote_is_refused(store: Store, unsigned_store: Store):
    await unsigned_store.swap_plan(make_plan(1), make_plan(2))

    with pytest.raises(ProtocolError, match="OMNIBUS_STORE_SECRET"):
        await store.plan()
    with pytest.raises(ProtocolError, match="OMNIBUS_STORE_SECRET"):
        await store.staged_plan()
    assert [(past.plan, "not signed" in past.fault) for past in await store.plan_history()] == [(None, True)]


async def test_a_planner_replaces_a_plan_that_is_not_signed(store: Store, unsigned_store: Store):
    await unsigned_store.swap_plan(make_plan(1))

    await store.swap_plan(make_plan(2))

    assert await store.plan() == make_plan(2)


def _other_field(text: bytes) -> bytes:
    return text.replace(b'"state":"active"', b'"state":"forged"')


def _other_signature(text: bytes) -> bytes:
    return text.replace(json.loads(text)["signature"].encode(), b"0" * 64)


def _other_secret(text: bytes) -> bytes:
    return Seal("guessed").sign("the app 'poem'", Seal("").verify("", text)).encode()


def _second_signature(text: bytes) -> bytes:
    return text[:-1] + b',"signature":"' + b"0" * 64 + b'"}'


@pytest.mark.parametrize("forge", [_other_field, _other_signature, _other_secret, _second_signature])
async def test_a_record_that_was_changed_is_refused(store: Store, raw: "redis.Redis[bytes]", forge):
    await store.put_app(make_app(), 0)
    text = await raw.hget("omnibus:apps", "poem")
    await raw.hset("omnibus:apps", "poem", forge(text))

    assert forge(text) != text
    assert await store.apps() == {}


async def test_a_genuine_record_is_refused_under_another_name(store: Store, raw: "redis.Redis[bytes]"):
    await store.put_app(make_app(), 0)
    await raw.hset("omnibus:apps", "other", await raw.hget("omnibus:apps", "poem"))

    assert set(await store.apps()) == {"poem"}


async def test_an_app_record_is_no_plan(store: Store, raw: "redis.Redis[bytes]"):
    text = Seal(SECRET).sign("the app 'poem'", msgspec.json.encode(make_plan(1)))
    await raw.mset({"omnibus:plan:epoch": 1, "omnibus:plan:1": text})

    with pytest.raises(ProtocolError, match="not signed"):
        await store.plan()


async def test_without_a_secret_everything_is_read(store: Store, unsigned_store: Store):
    await store.put_app(make_app(), 0)
    await store.swap_plan(make_plan(1), make_plan(2))

    assert await unsigned_store.apps() == {"poem": make_app()}
    assert (await unsigned_store.plan(), await unsigned_store.staged_plan()) == (make_plan(1), make_plan(2))
    assert (await unsigned_store.plan_state()).mark == plan_mark(make_plan(2))
