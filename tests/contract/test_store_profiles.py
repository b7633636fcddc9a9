"""The store contract for profiles of models, on a real server."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.errors import BadRequest, StoreUnavailable
from omnibus.profile import ModelProfile, OptionProfile, RoleCost, TypeProfile, decode_profile, encode_profile
from omnibus.settings import StoreSettings
from omnibus.store import Store

PATIENCE = 15.0  # seconds


def make_profile(model: str, seconds: float = 0.5) -> ModelProfile:
    return ModelProfile(
        model=model,
        family="qwen2_5_vl",
        components=("thinker",),
        types={"thinker": TypeProfile(("thinker",), 1.0)},
        options={"L": OptionProfile(("thinker",), work=(RoleCost(("thinker",), seconds),))},
    )


async def test_a_profile_is_kept_by_its_model(store: Store, raw: redis.Redis):
    await store.put_profile(make_profile("a"))
    await store.put_profile(make_profile("google/b"))

    assert await store.profile("a") == make_profile("a")
    assert await store.profiles() == {"a": make_profile("a"), "google/b": make_profile("google/b")}
    assert decode_profile(await raw.hget("test:profiles", "a")) == make_profile("a")


async def test_there_is_none_before_one_was_put(store: Store):
    assert await store.profile("a") is None
    assert await store.profiles() == {}


async def test_the_last_one_counts(store: Store):
    await store.put_profile(make_profile("a", 0.5))
    await store.put_profile(make_profile("a", 0.7))

    assert await store.profile("a") == make_profile("a", 0.7)


async def test_a_profile_without_a_model_is_refused(store: Store):
    with pytest.raises(BadRequest, match="the profile names no model"):
        await store.put_profile(make_profile(""))


@pytest.mark.parametrize("body", ["", "{", '{"v": 2}'])
async def test_one_that_cannot_be_read_is_named_and_left_out_of_all(
    store: Store, raw: redis.Redis, body: str, caplog: pytest.LogCaptureFixture
):
    await store.put_profile(make_profile("a"))
    await raw.hset("test:profiles", "b", body)

    with pytest.raises(BadRequest, match="the store's profile of b is not a profile"):
        await store.profile("b")
    assert list(await store.profiles()) == list(await store.profiles()) == ["a"]
    assert caplog.text.count("the store's profile of b is not a profile") == 1


async def test_one_of_a_build_that_wrote_learned_factors_into_it_is_read(store: Store, raw: redis.Redis):
    document = {**msgspec.to_builtins(make_profile("a")), "learned": {"L": {"factor": 1.2, "jobs": 900}}}
    await raw.hset("test:profiles", "a", msgspec.json.encode(document))

    assert await store.profile("a") == make_profile("a")
    assert "learned" not in msgspec.to_builtins(await store.profile("a"))


@pytest.mark.parametrize("field", ["overhead_s", "first_token"])
def test_seconds_below_nothing_are_refused(field: str):
    work = RoleCost(("thinker",), 0.5, first_token=-1.0 if field == "first_token" else 0.0)
    bad_profile = msgspec.structs.replace(
        make_profile("a"),
        options={"L": OptionProfile(("thinker",), work=(work,))},
        overhead_s=-1.0 if field == "overhead_s" else 0.0,
    )

    with pytest.raises(BadRequest, match=f"{field}.* is -1.0: it must be a finite number, 0 or more"):
        decode_profile(encode_profile(bad_profile))


async def test_changes_are_told_as_they_happen(store: Store, valkey_url: str):
    other = Store(StoreSettings(url=valkey_url, prefix="test"))
    async with asyncio.timeout(PATIENCE), aclosing(store.profile_changes()) as changes:
        assert await anext(changes) == {}

        await other.put_profile(make_profile("a"))

        assert await anext(changes) == {"a": make_profile("a")}
    await other.close()


async def test_a_store_that_lost_them_gets_back_what_was_known(store: Store, raw: redis.Redis):
    await store.put_profile(make_profile("a"))
    await store.put_profile(make_profile("b"))
    async with asyncio.timeout(PATIENCE), aclosing(store.profile_changes()) as changes:
        assert set(await anext(changes)) == {"a", "b"}

        await raw.flushall()
        newer = make_profile("b", 0.9)
        await store.put_profile(newer)

        assert await anext(changes) == {"a": make_profile("a"), "b": newer}
    assert await store.profiles() == {"a": make_profile("a"), "b": newer}


async def test_a_store_that_is_not_there_is_said(raw: redis.Redis):
    missing_store = Store(StoreSettings(url="redis://127.0.0.1:1/0", timeout=0.2))

    with pytest.raises(StoreUnavailable):
        await missing_store.put_profile(make_profile("a"))
    with pytest.raises(StoreUnavailable):
        await missing_store.profile("a")
    await missing_store.close()


async def test_other_fields_of_another_build_are_said(store: Store, raw: redis.Redis):
    await raw.hset("test:profiles", "a", msgspec.json.encode({**msgspec.to_builtins(make_profile("a")), "v": 2}))

    with pytest.raises(BadRequest, match="the store's profile of a has version 2, this build reads 1: measure again"):
        await store.profile("a")
