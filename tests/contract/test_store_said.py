"""The store contract for spoken answers, on a real server."""

import asyncio
import time

import pytest
import redis.asyncio as redis

from omnibus.errors import StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store import SpokenAnswer, Store


def make_answer(text: str) -> SpokenAnswer:
    return SpokenAnswer(text, time.time() + 60)


async def test_what_was_said_is_found_by_its_id(store: Store):
    first, second = make_answer("hello"), make_answer("grüß dich")
    await store.put_spoken_answers({"audio_1": first}, 60)
    await store.put_spoken_answers({"audio_2": second}, 60)

    assert await store.spoken_answers(["audio_2", "audio_1"]) == {"audio_1": first, "audio_2": second}


async def test_other_ids_are_left_out(store: Store):
    await store.put_spoken_answers({"audio_1": make_answer("hello")}, 60)

    assert list(await store.spoken_answers(["audio_1", "audio_9"])) == ["audio_1"]
    assert await store.spoken_answers([]) == {}


async def test_it_is_forgotten_in_time(store: Store, raw: redis.Redis):
    await store.put_spoken_answers({"audio_1": make_answer("hello")}, 60)

    assert 59_000 < await raw.pttl("test:audio:audio_1") <= 60_000


async def test_one_that_cannot_be_read_is_left_out(store: Store, raw: redis.Redis, caplog: pytest.LogCaptureFixture):
    await raw.set("test:audio:audio_1", b"{")

    assert await store.spoken_answers(["audio_1"]) == {}
    assert "audio_1 cannot be read" in caplog.text


async def test_without_a_server_it_is_said_so():
    store = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))

    with pytest.raises(StoreUnavailable):
        await store.spoken_answers(["audio_1"])
    await store.close()


async def test_many_answers_are_kept_by_one_command_which_a_server_may_have_forgotten(store: Store, raw: redis.Redis):
    await raw.function_flush()
    many = {f"audio_{number}": make_answer(f"answer {number}") for number in range(3)}
    for _ in range(2):
        await store.put_spoken_answers(many, 60)

    assert await store.spoken_answers(list(many)) == many
    assert 59_000 < await raw.pttl("test:audio:audio_2") <= 60_000


async def test_an_answer_is_kept_though_the_server_has_closed_the_connection(store: Store, raw: redis.Redis):
    await store.put_spoken_answers({"audio_1": make_answer("first")}, 60)
    for _ in range(2):
        await raw.client_kill_filter(_type="normal", skipme=True)
        again = make_answer("again")
        await store.put_spoken_answers({"audio_1": again}, 60)

        assert await store.spoken_answers(["audio_1"]) == {"audio_1": again}


async def test_answers_at_the_same_time_keep_one_connection_all_together(store: Store):
    ids = [f"audio_{number}" for number in range(20)]

    await asyncio.gather(*[store.put_spoken_answers({id: make_answer(id)}, 60) for id in ids])

    assert set(await store.spoken_answers(ids)) == set(ids)
    assert len(store._redis.connection_pool._in_use_connections) == 1


async def test_what_the_server_refuses_is_raised_and_others_are_kept(store: Store, raw: redis.Redis):
    await raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await store.put_spoken_answers({"audio_1": make_answer("first")}, 60)
    finally:
        await raw.config_set("maxmemory", 0)
    await store.put_spoken_answers({"audio_1": make_answer("first")}, 60)

    assert len(store._redis.connection_pool._in_use_connections) == 1
