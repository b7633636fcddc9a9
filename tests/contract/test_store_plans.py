"""The store contract for next, previous and pinned plans, on a server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import redis.asyncio as redis

from omnibus import plan as plans
from omnibus import store as stores
from omnibus.errors import NotFound, ProtocolError
from omnibus.plan import Plan
from omnibus.settings import StoreSettings
from omnibus.store import PlanHistoryEntry, PlanLed, PlanProblem, StaleEpoch, Store

PATIENCE = 15.0  # seconds
LEASE = 30.0  # seconds
KEPT = 3  # epochs


def make_plan(epoch: int, seed: int = 0, reason: str = "") -> Plan:
    return Plan(epoch, seed, 1000.0, {}, reason=reason)


@pytest.fixture
async def store(valkey_url: str, raw: redis.Redis) -> AsyncIterator[Store]:
    new_store = Store(StoreSettings(url=valkey_url, prefix="test", history=KEPT))
    yield new_store
    await new_store.close()


# Staged


async def test_a_staged_plan_is_there_and_changes_nothing(store: Store, raw: redis.Redis):
    await store.swap_plan(make_plan(1))

    await store.stage_plan(make_plan(2, seed=5), "me", LEASE)

    assert await store.staged_plan() == make_plan(2, seed=5)
    assert await store.plan() == make_plan(1)
    assert (await store.plan_state())[:3] == (1, 2, 0)
    assert plans.decode_plan(await raw.get("test:plan:staged")) == make_plan(2, seed=5)


async def test_a_swap_takes_what_is_staged_away(store: Store, raw: redis.Redis):
    await store.swap_plan(make_plan(1))
    await store.stage_plan(make_plan(2), "me", LEASE)

    await store.swap_plan(make_plan(2))

    assert await store.staged_plan() is None
    assert (await store.plan_state())[:2] == (2, 0)
    assert not await raw.exists("test:plan:lead")


async def test_a_swap_may_stage_the_next_plan_in_the_same_step(store: Store):
    await store.stage_plan(make_plan(1), "me", LEASE)

    await store.swap_plan(make_plan(1), then=make_plan(2))

    assert (await store.plan_state())[:2] == (1, 2)
    with pytest.raises(PlanLed, match="planner me leads"):
        await store.stage_plan(make_plan(3), "other", LEASE)


@pytest.mark.parametrize(("epoch", "newest"), [(1, 3), (3, 3), (4, 4)])
async def test_only_what_is_newer_than_all_is_staged(store: Store, epoch: int, newest: int):
    await store.swap_plan(make_plan(3))
    if newest == 4:
        await store.stage_plan(make_plan(4), "me", LEASE)

    with pytest.raises(StaleEpoch) as caught:
        await store.stage_plan(make_plan(epoch), "me", LEASE)

    assert caught.value.current == newest


async def test_a_swap_of_what_another_plan_was_staged_after_is_refused(store: Store):
    await store.swap_plan(make_plan(1))
    await store.stage_plan(make_plan(2), "me", LEASE)
    await store.stage_plan(make_plan(3), "me", LEASE)

    with pytest.raises(StaleEpoch) as caught:
        await store.swap_plan(make_plan(2))

    assert caught.value.current == 2
    assert await store.staged_plan() == make_plan(3)
    await store.swap_plan(make_plan(3))


async def test_only_the_leader_may_stage_another_plan_or_none(store: Store):
    await store.stage_plan(make_plan(1), "me", LEASE)

    with pytest.raises(PlanLed):
        await store.stage_plan(make_plan(2), "other", LEASE)
    assert not await store.unstage_plan("other")
    assert await store.staged_plan() == make_plan(1)
    await store.stage_plan(make_plan(2), "me", LEASE)
    assert await store.unstage_plan("me")
    assert await store.staged_plan() is None
    assert not await store.unstage_plan("me")


async def test_whoever_is_silent_leads_no_more(store: Store):
    await store.stage_plan(make_plan(1), "me", 0.02)
    async with asyncio.timeout(PATIENCE):
        while not await store.lead_plan("other", LEASE):
            await asyncio.sleep(0.005)

    assert not await store.lead_plan("me", LEASE)
    assert await store.lead_plan("other", LEASE)
    await store.stage_plan(make_plan(2), "other", LEASE)


async def test_of_planners_that_stage_at_once_one_leads(store: Store, valkey_url: str):
    rivals = [Store(StoreSettings(url=valkey_url, prefix="test")) for _ in range(8)]

    outcomes = await asyncio.gather(
        *(rival.stage_plan(make_plan(n + 1, seed=n), f"p{n}", LEASE) for n, rival in enumerate(rivals)),
        return_exceptions=True,
    )

    winners = [number for number, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert all(isinstance(outcome, PlanLed) for number, outcome in enumerate(outcomes) if number not in winners)
    assert await store.staged_plan() == make_plan(winners[0] + 1, seed=winners[0])
    for rival in rivals:
        await rival.close()


@pytest.mark.parametrize("body", ["", "{", "[]", '{"epoch":"x"}', '{"epoch":[1]}'])
async def test_what_cannot_be_read_is_staged_over_and_swapped_away(store: Store, raw: redis.Redis, body: str):
    await raw.set("test:plan:staged", body)

    assert (await store.plan_state())[:2] == (0, 0)
    with pytest.raises(ProtocolError):
        await store.staged_plan()
    await store.stage_plan(make_plan(1), "me", LEASE)
    assert await store.staged_plan() == make_plan(1)
    await raw.set("test:plan:staged", body)
    await store.swap_plan(make_plan(1))
    assert await store.staged_plan() is None


async def test_every_change_of_the_stand_is_announced(store: Store):
    changes: list[Any] = [
        lambda: store.swap_plan(make_plan(1)),
        lambda: store.stage_plan(make_plan(2), "me", LEASE),
        lambda: store.stage_plan(make_plan(3), "me", LEASE),
        lambda: store.unstage_plan("me"),
        lambda: store.stage_plan(make_plan(2, seed=1), "me", LEASE),
        lambda: store.swap_plan(make_plan(2), then=make_plan(3)),
        lambda: store.pin_plan(1),
        store.unpin_plan,
    ]
    stands = []

    async with aclosing(store.plan_changes()) as stream:  # type: ignore[type-var]
        assert (await asyncio.wait_for(anext(stream), PATIENCE))[:3] == (0, 0, 0)
        for change in changes:
            coming = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.02)
            await change()
            stands.append((await asyncio.wait_for(coming, stores.REREAD_SECONDS / 2))[:3])

    assert stands == [(1, 0, 0), (1, 2, 0), (1, 3, 0), (1, 0, 0), (1, 2, 0), (2, 3, 0), (2, 3, 1), (2, 3, 0)]


async def test_staged_plans_of_one_epoch_are_told_apart(store: Store):
    await store.stage_plan(make_plan(1), "me", LEASE)
    first = await store.plan_state()
    await store.unstage_plan("me")
    await store.stage_plan(make_plan(1, seed=1), "me", LEASE)
    second = await store.plan_state()

    assert first[:3] == second[:3]
    assert (first.mark, second.mark) == (stores.plan_mark(make_plan(1)), stores.plan_mark(make_plan(1, seed=1)))
    assert first.mark != second.mark


# History


async def test_the_history_has_the_newest_first_and_an_end(store: Store):
    for epoch in range(1, 6):
        await store.swap_plan(make_plan(epoch, reason=f"reason {epoch}"))

    assert await store.plan_history() == [
        PlanHistoryEntry(epoch, make_plan(epoch, reason=f"reason {epoch}"), "") for epoch in (5, 4, 3)
    ]
    assert [each.epoch for each in await store.plan_history(1)] == [5]


async def test_plans_that_are_kept_no_more_leave_nothing_behind(store: Store, raw: redis.Redis):
    for epoch in range(1, 6):
        await store.swap_plan(make_plan(epoch))

    assert await store.plan(2) is None
    assert {key.decode() for key in await raw.keys()} == {
        "test:plan:epoch", "test:plan:history", *(f"test:plan:{epoch}" for epoch in (3, 4, 5)),
    }  # fmt: skip


async def test_the_current_plan_is_kept_whatever_the_setting(valkey_url: str, raw: redis.Redis):
    store = Store(StoreSettings(url=valkey_url, prefix="test", history=0))

    for epoch in (1, 2):
        await store.swap_plan(make_plan(epoch))

    assert await store.plan() == make_plan(2)
    assert [each.epoch for each in await store.plan_history()] == [2]
    await store.close()


async def test_a_pinned_plan_is_kept(store: Store):
    await store.swap_plan(make_plan(1))
    await store.pin_plan(1)
    for epoch in range(2, 8):
        await store.swap_plan(make_plan(epoch))

    assert await store.plan(1) == make_plan(1)
    assert [each.epoch for each in await store.plan_history()] == [7, 6, 5, 1]


async def test_what_of_the_past_cannot_be_read_is_said(store: Store, raw: redis.Redis):
    for epoch in (1, 2, 3):
        await store.swap_plan(make_plan(epoch))
    await raw.set("test:plan:1", "{")
    await raw.delete("test:plan:2")

    current, lost_entry, strange = await store.plan_history()

    assert current == PlanHistoryEntry(3, make_plan(3), "")
    assert (lost_entry.plan, strange.plan) == (None, None)
    assert lost_entry.fault
    assert "cannot be read" in strange.fault


# Cells


async def test_a_cell_gets_a_part_of_its_share_until_it_gets_all_again(store: Store, raw: redis.Redis):
    assert await store.cell_shares() == {}

    await store.put_cell_share("a/b", "c1", 0.0)
    await store.put_cell_share("a/b", "c2", 0.5)

    assert await store.cell_shares() == {"a/b/c1": 0.0, "a/b/c2": 0.5}
    await store.put_cell_share("a/b", "c1", 1.0)
    await raw.hset("test:plan:cells", "a/b/c3", "nonsense")
    assert await store.cell_shares() == {"a/b/c2": 0.5}


async def test_who_follows_the_shares_of_cells_has_each_change(store: Store):
    follow = store.cell_share_changes()
    first = await anext(follow)
    await store.put_cell_share("m", "c1", 0.0)

    assert (first, await asyncio.wait_for(anext(follow), 5)) == ({}, {"m/c1": 0.0})
    await follow.aclose()  # type: ignore[attr-defined]


# Pins


async def test_a_plan_is_pinned_and_pinned_no_more(store: Store, raw: redis.Redis):
    await store.swap_plan(make_plan(1))

    await store.pin_plan(1)
    pinned_state = await store.plan_state()
    await store.unpin_plan()

    assert pinned_state.pin == 1
    assert (await store.plan_state()).pin == 0
    assert not await raw.exists("test:plan:pin")


@pytest.mark.parametrize("epoch", [2, 0, -3])
async def test_what_is_not_kept_cannot_be_pinned(store: Store, epoch: int):
    await store.swap_plan(make_plan(1))

    with pytest.raises(NotFound, match="omnibus plan history"):
        await store.pin_plan(epoch)

    assert (await store.plan_state()).pin == 0


async def test_a_swap_may_pin_its_plan_in_the_same_step(store: Store):
    await store.swap_plan(make_plan(4), pin=True)

    assert (await store.plan_state())[:3] == (4, 0, 4)


# Problems


async def test_problems_are_said_by_name_and_withdrawn(store: Store, raw: redis.Redis):
    one, other = PlanProblem(1.0, "no executor", 5.0), PlanProblem(2.0, "no cluster")
    await store.put_problem("planner", one)
    await store.put_problem("reconcile", other)
    await raw.hset("test:plan:problems", "strange", "{")

    problems = await store.plan_problems()
    await store.put_problem("planner", None)

    assert problems == {"planner": one, "reconcile": other}
    assert await store.plan_problems() == {"reconcile": other}


async def test_a_call_can_be_cancelled_at_any_moment(store: Store):
    async def call_store() -> None:
        while True:
            await store.plan_state()

    for moment in range(60):
        working = asyncio.ensure_future(call_store())
        await asyncio.sleep(moment * 5e-5)
        working.cancel()
        finished_tasks, _ = await asyncio.wait({working}, timeout=PATIENCE)
        assert finished_tasks, f"still at work, cancelled after {moment * 0.05:.2f} ms"
