"""The store contract on a real server.

It covers one atomic, epoch-guarded swap, and readers that survive restarts.
"""

import asyncio
import socket
from contextlib import aclosing
from pathlib import Path

import pytest
import redis.asyncio as redis

from omnibus import plan as plans
from omnibus.errors import ProtocolError, Retryable, StoreUnavailable
from omnibus.plan import Plan
from omnibus.settings import StoreSettings
from omnibus.store import StaleEpoch, Store
from omnibus.store.connection import MAX_COMMANDS
from omnibus.up import infra
from omnibus.up.ports import free_ports
from tests.unit.bus.servers import run_owned_server

PATIENCE = 15.0  # seconds


def make_plan(epoch: int, seed: int = 0) -> Plan:
    return Plan(epoch, seed, 1000.0, {})


async def test_an_empty_store_has_no_plan(store: Store):
    assert await store.epoch() == 0
    assert await store.plan() is None
    assert await store.plan(7) is None


async def test_a_plan_that_was_swapped_in_is_current(store: Store):
    await store.swap_plan(make_plan(1))
    await store.swap_plan(make_plan(5, seed=9))

    assert await store.epoch() == 5
    assert await store.plan() == make_plan(5, seed=9)
    assert await store.plan(1) == make_plan(1)


@pytest.mark.parametrize("epoch", [1, 2, 3])
async def test_an_epoch_that_is_not_newer_is_refused_with_the_current_one(store: Store, epoch: int):
    await store.swap_plan(make_plan(3, seed=1))

    with pytest.raises(StaleEpoch, match="epoch 3 is already current") as caught:
        await store.swap_plan(make_plan(epoch, seed=2))

    assert caught.value.current == 3
    assert await store.plan() == make_plan(3, seed=1)


async def test_of_planners_that_cross_one_wins_each_epoch(store: Store, valkey_url: str):
    rivals = [Store(StoreSettings(url=valkey_url, prefix="test")) for _ in range(8)]

    outcomes = await asyncio.gather(
        *(rival.swap_plan(make_plan(1, seed=number)) for number, rival in enumerate(rivals)), return_exceptions=True
    )

    winners = [number for number, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert all(isinstance(outcome, StaleEpoch) for number, outcome in enumerate(outcomes) if number not in winners)
    assert await store.plan() == make_plan(1, seed=winners[0])
    for rival in rivals:
        await rival.close()


async def test_current_epoch_document_and_history_change_together(store: Store, raw: redis.Redis):
    await raw.set("test:plan:history", "not a sorted set")  # the swap cannot be finished

    with pytest.raises(StoreUnavailable):
        await store.swap_plan(make_plan(1))

    assert await store.epoch() == 0


async def test_connections_that_the_server_closed_meanwhile_are_replaced_before_anything_is_sent(
    store: Store, raw: redis.Redis
):
    await asyncio.gather(*(store.epoch() for _ in range(4)))  # connections that lie in the pool
    closed_count = await raw.client_kill_filter(_type="normal", skipme=True)
    await asyncio.sleep(0.05)  # until this process has read that they are closed

    await store.swap_plan(make_plan(1))  # a write that must not be repeated
    read = await asyncio.gather(*(store.epoch() for _ in range(4)))

    assert closed_count >= 4
    assert read == [1] * 4


async def test_keys_are_those_of_the_contract(store: Store, raw: redis.Redis):
    await store.swap_plan(make_plan(2))

    assert {key.decode() for key in await raw.keys()} == {"test:plan:epoch", "test:plan:2", "test:plan:history"}
    assert await raw.get("test:plan:epoch") == b"2"
    assert plans.decode_plan(await raw.get("test:plan:2")) == make_plan(2)
    assert await raw.zrange("test:plan:history", 0, -1) == [b"2"]


async def test_two_prefixes_do_not_meet(store: Store, valkey_url: str):
    other = Store(StoreSettings(url=valkey_url, prefix="other"))
    await store.swap_plan(make_plan(4))

    assert await other.epoch() == 0
    await other.close()


async def test_a_plan_that_this_build_cannot_read_is_said(store: Store, raw: redis.Redis):
    await store.swap_plan(make_plan(1))
    await raw.set("test:plan:1", b'{"epoch":1,"colour":"blue"}')

    with pytest.raises(ProtocolError, match="write it again"):
        await store.plan()


async def test_a_server_that_forgot_its_functions_gets_them_again(store: Store, raw: redis.Redis):
    await raw.function_flush()

    await store.swap_plan(make_plan(1))

    assert await store.epoch() == 1


# Swaps


async def test_the_current_epoch_comes_first(store: Store):
    await store.swap_plan(make_plan(3))

    async with aclosing(store.epoch_changes()) as swaps:  # type: ignore[type-var]
        assert await asyncio.wait_for(anext(swaps), PATIENCE) == 3


@pytest.mark.usefixtures("announced_only")
async def test_each_swap_is_announced_well_before_anybody_would_look(store: Store):
    async with aclosing(store.epoch_changes()) as swaps:  # type: ignore[type-var]
        assert await asyncio.wait_for(anext(swaps), PATIENCE) == 0
        for epoch in (1, 2, 5):
            coming = asyncio.ensure_future(anext(swaps))
            await asyncio.sleep(0.05)
            await store.swap_plan(make_plan(epoch))
            assert await asyncio.wait_for(coming, PATIENCE) == epoch


async def test_a_refused_swap_is_not_announced(store: Store):
    await store.swap_plan(make_plan(2))

    async with aclosing(store.epoch_changes()) as swaps:  # type: ignore[type-var]
        assert await asyncio.wait_for(anext(swaps), PATIENCE) == 2
        coming = asyncio.ensure_future(anext(swaps))
        with pytest.raises(StaleEpoch):
            await store.swap_plan(make_plan(1))
        await store.swap_plan(make_plan(3))
        assert await asyncio.wait_for(coming, PATIENCE) == 3


@pytest.mark.usefixtures("announced_only")
async def test_whoever_follows_swaps_can_be_stopped_at_any_moment(store: Store):
    async def follow_epochs() -> None:
        async for _ in store.epoch_changes():
            pass

    for moment in range(80):
        following = asyncio.ensure_future(follow_epochs())
        await asyncio.sleep(moment * 5e-5)
        following.cancel()
        finished_tasks, _ = await asyncio.wait({following}, timeout=PATIENCE)
        assert finished_tasks, f"still following, cancelled after {moment * 0.05:.2f} ms"


# Many at once


async def test_more_commands_than_connections_wait_for_one(valkey_url: str, raw: redis.Redis):
    store = Store(StoreSettings(url=valkey_url, prefix="test", timeout=PATIENCE))  # all connect at once
    await store.swap_plan(make_plan(3))
    before = len(await raw.client_list())

    read = await asyncio.gather(*(store.epoch() for _ in range(500)))

    assert read == [3] * 500
    assert len(await raw.client_list()) <= before + MAX_COMMANDS
    await store.close()


async def test_commands_that_wait_in_vain_are_refused_in_time():
    silent = socket.create_server(("127.0.0.1", 0), backlog=4 * MAX_COMMANDS)
    store = Store(StoreSettings(url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout=0.3))

    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(*(store.epoch() for _ in range(4 * MAX_COMMANDS)), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
    assert any("commands wait for the store" in str(outcome) for outcome in outcomes)
    with pytest.raises(StoreUnavailable, match="no store at"):  # it was sent, so connections are free again
        await store.epoch()
    await store.close()
    silent.close()


async def test_who_leaves_while_waiting_for_a_connection_keeps_none(store: Store):
    for _ in range(3):
        calls = [asyncio.ensure_future(store.epoch()) for _ in range(3 * MAX_COMMANDS)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.wait(calls)

    assert await asyncio.gather(*(store.epoch() for _ in range(2 * MAX_COMMANDS))) == [0] * (2 * MAX_COMMANDS)


# Restarts


async def test_a_killed_server_loses_the_plan_and_swaps_say_so(tmp_path: Path):
    async with run_owned_server(infra.prepare_valkey(tmp_path)) as process:
        store = Store(StoreSettings(url=process.server.url))
        await store.swap_plan(make_plan(4))
        async with aclosing(store.epoch_changes()) as swaps:  # type: ignore[type-var]
            assert await asyncio.wait_for(anext(swaps), PATIENCE) == 4
            coming = asyncio.ensure_future(anext(swaps))
            await asyncio.sleep(0.05)

            process.kill()
            await process.start()

            assert await asyncio.wait_for(coming, PATIENCE) == 0
            coming = asyncio.ensure_future(anext(swaps))
            await store.swap_plan(make_plan(5))
            assert await asyncio.wait_for(coming, PATIENCE) == 5
        assert await store.ping()
        await store.close()


async def test_a_store_that_is_not_there_is_said_at_once():
    [port] = free_ports(1)
    store = Store(StoreSettings(url=f"redis://127.0.0.1:{port}/0", timeout=10 * PATIENCE))

    for call in (store.open, store.epoch, store.plan, lambda: store.swap_plan(make_plan(1))):
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable, match=f"no store at redis://127.0.0.1:{port}") as caught:
                await call()
        assert isinstance(caught.value, Retryable)
    assert not await store.ping()
    await store.close()


async def test_a_store_that_says_nothing_is_given_up_in_time():
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    store = Store(StoreSettings(url=f"redis://127.0.0.1:{port}/0", timeout=0.2))

    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailable):
            await store.epoch()

    await store.close()
    silent.close()


async def test_what_the_server_does_not_allow_is_an_error_of_ours(valkey_url: str, raw: redis.Redis):
    may = {"keys": ["*"], "commands": ["+get", "+ping"], "categories": ["-@all"]}
    await raw.acl_setuser("reader", enabled=True, nopass=True, **may)
    store = Store(StoreSettings(url=valkey_url.replace("redis://", "redis://reader:x@")))

    with pytest.raises(StoreUnavailable):
        await store.open()

    assert await store.epoch() == 0
    await store.close()
