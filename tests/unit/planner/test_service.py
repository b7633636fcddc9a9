"""The planner service on a real store and bus: one plan per declaration, rewritten after it is lost."""

import asyncio

import pytest

from omnibus.errors import BadRequest, BusUnavailable
from omnibus.plan import Plan
from tests.unit.planner.apps import make_app, make_task
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

SPELL, COUNT = make_task("spell"), make_task("count")


async def test_declarations_become_the_first_epoch_and_are_announced(system: PlannerSystem):
    async with system.planner():
        plan = await system.current(1)

        assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [70, 30]
        await wait_until(lambda: system.announced == [1])


async def test_a_planner_that_restarts_with_the_same_models_makes_no_new_epoch(system: PlannerSystem):
    async with system.planner():
        first = await system.current(1)
    async with system.planner():
        await wait_until(lambda: len(system.announced) == 2)

    assert await system.store.plan() == first


async def test_other_declarations_make_the_next_epoch(system: PlannerSystem):
    async with system.planner():
        await system.current(1)
    system.declare(share=50)
    async with system.planner():
        plan = await system.current(2)

    assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [50, 50]


async def test_planners_that_start_together_agree_on_one_epoch(system: PlannerSystem):
    async with system.planner(), system.planner(), system.planner():
        await system.current(1)
        await asyncio.sleep(0.1)

        assert await system.store.epoch() == 1


async def test_a_store_that_lost_everything_gets_the_plan_again_with_a_newer_epoch(system: PlannerSystem):
    async with system.planner():
        await system.wait_until_known(1)

        await system.raw.flushall()
        await system.raw.publish("omnibus:plan", "0")  # the notification that it would otherwise get within seconds

        plan = await system.current(2)
        assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [70, 30]


async def test_a_plan_is_written_as_soon_as_the_store_can_be_written_again(system: PlannerSystem):
    async with system.planner():
        await system.wait_until_known(1)

        await system.raw.config_set("maxmemory", "1")  # reads go on, writes are refused
        await system.raw.delete("omnibus:plan:epoch")
        await system.raw.publish("omnibus:plan", "0")
        await asyncio.sleep(0.3)
        assert await system.store.epoch() == 0
        await system.raw.config_set("maxmemory", "0")

        await system.current(2)


async def test_a_file_that_is_not_there_stops_the_start(system: PlannerSystem, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_PLANNER_MODELS", "/nowhere/models.json")

    with pytest.raises(BadRequest, match="OMNIBUS_PLANNER_MODELS"):
        async with system.planner():
            pass

    assert await system.store.epoch() == 0


async def test_without_a_bus_it_does_not_start(system: PlannerSystem, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_BUS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OMNIBUS_BUS_CONNECT_TIMEOUT", "0.3")

    with pytest.raises(BusUnavailable):
        async with system.planner():
            pass

    assert await system.store.epoch() == 0


# Apps


async def test_without_declarations_there_is_what_apps_bring(system: PlannerSystem, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_PLANNER_MODELS", "")

    async with system.planner():
        assert (await system.current(1)).models == {}
        await system.store.put_app(make_app("poem", SPELL), 0)

        plan = await system.current(2)

    assert list(plan.models) == ["spell"]


async def test_the_first_epoch_knows_the_apps_that_are_registered(system: PlannerSystem):
    await system.store.put_app(make_app("poem", SPELL), 0)

    async with system.planner():
        plan = await system.current(1)

    assert list(plan.models) == ["m", "spell"]


async def test_a_model_comes_and_leaves_with_the_apps_that_bring_it(system: PlannerSystem):
    async with system.planner():
        await system.current(1)

        await system.store.put_app(make_app("poem", SPELL), 0)
        first = await system.until(lambda plan: list_users(plan) == {"m": (), "spell": ("poem",)})
        await system.store.put_app(make_app("story", SPELL, COUNT, timestamp=2000.0), 0)
        second = await system.until(
            lambda plan: list_users(plan) == {"m": (), "spell": ("poem", "story"), "count": ("story",)}
        )
        await system.store.drop_app("poem", None)
        await system.until(lambda plan: list_users(plan) == {"m": (), "spell": ("story",), "count": ("story",)})
        await system.store.drop_app("story", None)
        none = await system.until(lambda plan: list_users(plan) == {"m": ()})

        await wait_until(lambda: system.announced == list(range(1, none.epoch + 1)))

    assert first.models["m"] == second.models["m"] == none.models["m"]


async def test_an_app_without_own_tasks_makes_no_new_epoch(system: PlannerSystem):
    async with system.planner():
        await system.current(1)

        await system.store.put_app(make_app("chat", make_task("think", "m", "thinker", own=False)), 0)
        await system.store.put_app(make_app("poem", SPELL), 0)
        plan = await system.current(2)

    assert list_users(plan) == {"m": (), "spell": ("poem",)}
    assert system.announced == [1, 2]


async def test_an_update_of_an_app_replaces_its_tasks(system: PlannerSystem):
    async with system.planner():
        await system.store.put_app(make_app("poem", SPELL), 0)
        await system.until(lambda plan: "spell" in plan.models)

        await system.store.put_app(make_app("poem", COUNT, version=2), 1)

        await system.until(lambda plan: list(plan.models) == ["m", "count"])


async def test_planners_side_by_side_agree_on_what_apps_bring(system: PlannerSystem):
    async with system.planner(), system.planner():
        await system.current(1)

        await system.store.put_app(make_app("poem", SPELL), 0)

        plan = await system.current(2)
        await asyncio.sleep(0.1)
        assert await system.store.plan() == plan
    assert list_users(plan) == {"m": (), "spell": ("poem",)}


async def test_a_store_that_lost_everything_gets_the_models_of_apps_again(system: PlannerSystem):
    async with system.planner():
        await system.current(1)
        await system.store.put_app(make_app("poem", SPELL), 0)
        await system.wait_until_known(2)  # the follower of apps has read them

        await system.raw.flushall()
        await system.raw.publish("omnibus:plan", "0")
        await system.raw.publish("omnibus:apps", "0")

        plan = await system.current(3)
        assert list_users(plan) == {"m": (), "spell": ("poem",)}


async def test_a_task_that_cannot_be_served_does_not_stop_the_planner(
    system: PlannerSystem, caplog: pytest.LogCaptureFixture
):
    async with system.planner():
        await system.current(1)

        await system.store.put_app(make_app("bad", make_task("rhyme", service="gpu")), 0)
        await system.store.put_app(make_app("poem", SPELL), 0)

        assert list_users(await system.current(2)) == {"m": (), "spell": ("poem",)}
    assert "unit task 'rhyme' of app 'bad' is not served: there is no service 'gpu'" in caplog.text


# Plans of other builds


@pytest.mark.parametrize("body", ["", "{", '{"v": 2}', '{"epoch":7,"seed":0,"created":0,"models":{},"v":9}'])
async def test_a_plan_that_cannot_be_read_is_followed_by_one_that_can(system: PlannerSystem, body: str):
    await system.raw.set("omnibus:plan:epoch", "7")
    await system.raw.set("omnibus:plan:7", body)

    async with system.planner():
        plan = await system.current(8)

        assert list(plan.models) == ["m"]
        await wait_until(lambda: system.announced == [8])


async def test_a_plan_that_becomes_unreadable_is_written_again_when_apps_change(system: PlannerSystem):
    async with system.planner():
        await system.current(1)
        await system.raw.set("omnibus:plan:1", "of another build")

        await system.store.put_app(make_app("poem", SPELL), 0)

        assert list_users(await system.current(2)) == {"m": (), "spell": ("poem",)}


async def test_a_change_of_apps_is_written_as_soon_as_the_store_can_be_written_again(system: PlannerSystem):
    async with system.planner():
        await system.wait_until_known(1)

        await system.store.put_app(make_app("poem", SPELL), 0)
        await system.wait_until_known(2)
        await system.raw.config_set("maxmemory", "1")  # reads go on, writes are refused
        await system.raw.hdel("omnibus:apps", "poem")
        await system.raw.publish("omnibus:apps", "poem")
        await asyncio.sleep(0.3)
        assert await system.store.epoch() == 2
        await system.raw.config_set("maxmemory", "0")

        assert list_users(await system.current(3)) == {"m": ()}


def list_users(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {name: model.apps for name, model in plan.models.items()}
