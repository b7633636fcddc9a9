"""LoRA adapters in a real store: written once unless replaced, forgotten for good, given back to one that lost all."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.errors import Conflict, NotFound
from omnibus.settings import StoreSettings
from omnibus.store import AdapterRecord, Store

PATIENCE = 20.0


def adapter(name: str = "pirate", path: str = "team/pirate") -> AdapterRecord:
    return AdapterRecord(name, "qwen2-tiny", path, "ab" * 32, 1000.0)


async def test_an_adapter_is_written_once_unless_it_is_replaced(store: Store) -> None:
    await store.put_adapter(adapter())

    with pytest.raises(Conflict, match="'pirate' already exists"):
        await store.put_adapter(adapter(path="other"))
    assert await store.adapters() == {"pirate": adapter()}

    await store.put_adapter(adapter(path="other"), replace=True)
    assert await store.adapters() == {"pirate": adapter(path="other")}


async def test_a_forgotten_adapter_is_gone(store: Store) -> None:
    await store.put_adapter(adapter())
    await store.drop_adapter("pirate")

    assert await store.adapters() == {}
    with pytest.raises(NotFound):
        await store.drop_adapter("pirate")


async def test_followers_hear_of_changes_and_give_back_what_a_store_has_lost(store: Store, raw: redis.Redis) -> None:
    async with asyncio.timeout(PATIENCE), aclosing(store.adapter_changes()) as changes:
        assert await anext(changes) == {}
        await store.put_adapter(adapter())
        await store.put_adapter(adapter("poet"))
        while len(found := await anext(changes)) < 2:
            pass
        await store.drop_adapter("poet")
        assert await anext(changes) == {"pirate": found["pirate"]}

        await raw.flushall()
        await store.put_adapter(adapter("captain"))  # the store has another life
        while set(found := await anext(changes)) != {"pirate", "captain"}:
            pass


async def test_what_is_not_signed_or_cannot_be_read_is_left_out(
    store: Store, raw: redis.Redis, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    signed = Store(StoreSettings(url=valkey_url, prefix="test", secret="a secret"))
    try:
        await store.put_adapter(adapter("forged"))
        await signed.put_adapter(adapter())
        await raw.hset("test:adapters", "strange", b'{"name": 1}')
        body = msgspec.json.encode(adapter("poet"))
        await raw.hset("test:adapters", "renamed", body)

        assert await signed.adapters() == {"pirate": adapter()}
        assert set(await store.adapters()) == {"forged", "pirate"}
        assert "adapter 'forged' is left out" in caplog.text
    finally:
        await signed.close()
