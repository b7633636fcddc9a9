"""LoRA adapters in a real store.

They are written once unless replaced, removed permanently, and restored to a store that lost its data.
"""

import asyncio
from contextlib import aclosing

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.errors import Conflict, NotFound
from omnibus.settings import StoreSettings
from omnibus.store import AdapterRecord, Store

PATIENCE = 20.0


def make_adapter(name: str = "pirate", path: str = "team/pirate") -> AdapterRecord:
    return AdapterRecord(name, "qwen2-tiny", path, "ab" * 32, 1000.0)


async def test_an_adapter_is_written_once_unless_it_is_replaced(store: Store) -> None:
    await store.put_adapter(make_adapter())

    with pytest.raises(Conflict, match="'pirate' already exists"):
        await store.put_adapter(make_adapter(path="other"))
    assert await store.adapters() == {"pirate": make_adapter()}

    await store.put_adapter(make_adapter(path="other"), replace=True)
    assert await store.adapters() == {"pirate": make_adapter(path="other")}


async def test_a_forgotten_adapter_is_gone(store: Store) -> None:
    await store.put_adapter(make_adapter())
    await store.drop_adapter("pirate")

    assert await store.adapters() == {}
    with pytest.raises(NotFound):
        await store.drop_adapter("pirate")


async def test_followers_hear_of_changes_and_give_back_what_a_store_has_lost(store: Store, raw: redis.Redis) -> None:
    async with asyncio.timeout(PATIENCE), aclosing(store.adapter_changes()) as changes:
        assert await anext(changes) == {}
        await store.put_adapter(make_adapter())
        await store.put_adapter(make_adapter("poet"))
        while len(changed_adapters := await anext(changes)) < 2:
            pass
        await store.drop_adapter("poet")
        assert await anext(changes) == {"pirate": changed_adapters["pirate"]}

        await raw.flushall()
        await store.put_adapter(make_adapter("captain"))  # the store has another life
        while set(changed_adapters := await anext(changes)) != {"pirate", "captain"}:
            pass


async def test_what_is_not_signed_or_cannot_be_read_is_left_out(
    store: Store, raw: redis.Redis, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    signed_store = Store(StoreSettings(url=valkey_url, prefix="test", secret="a secret"))
    try:
        await store.put_adapter(make_adapter("forged"))
        await signed_store.put_adapter(make_adapter())
        await raw.hset("test:adapters", "strange", b'{"name": 1}')
        body = msgspec.json.encode(make_adapter("poet"))
        await raw.hset("test:adapters", "renamed", body)

        assert await signed_store.adapters() == {"pirate": make_adapter()}
        assert set(await store.adapters()) == {"forged", "pirate"}
        assert "adapter 'forged' is left out" in caplog.text
    finally:
        await signed_store.close()
