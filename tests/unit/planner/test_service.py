"""The planner service on a real store and bus: one plan per declaration, rewritten after it is lost."""

import asyncio

import pytest

from omnibus.errors import BadRequest, BusUnavailable
from omnibus.plan import Plan
from tests.unit.planner.apps import app, task
from tests.unit.planner.town import Town
from tests.unit.sidecar.node import until

SPELL, COUNT = task("spell"), task("count")


async def test_declarations_become_the_first_epoch_and_are_announced(town: Town):
    async with town.planner():
        plan = await town.current(1)

        assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [70, 30]
        await until(lambda: town.announced == [1])


async def test_a_planner_that_restarts_with_the_same_models_makes_no_new_epoch(town: Town):
    async with town.planner():
        first = await town.current(1)
    async with town.planner():
        await until(lambda: len(town.announced) == 2)

    assert await town.store.plan() == first


async def test_other_declarations_make_the_next_epoch(town: Town):
    async with town.planner():
        await town.current(1)
    town.declare(share=50)
    async with town.planner():
        plan = await town.current(2)

    assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [50, 50]


async def test_planners_that_start_together_agree_on_one_epoch(town: Town):
    async with town.planner(), town.planner(), town.planner():
        await town.current(1)
        await asyncio.sleep(0.1)

        assert await town.store.epoch() == 1


async def test_a_store_that_lost_everything_gets_the_plan_again_with_a_newer_epoch(town: Town):
    async with town.planner():
        await town.known(1)

        await town.raw.flushall()
        await town.raw.publish("omnibus:plan", "0")  # the notification that it would otherwise get within seconds

        plan = await town.current(2)
        assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [70, 30]


async def test_a_plan_is_written_as_soon_as_the_store_can_be_written_again(town: Town):
    async with town.planner():
        await town.known(1)

        await town.raw.config_set("maxmemory", "1")  # reads go on, writes are refused
        await town.raw.delete("omnibus:plan:epoch")
        await town.raw.publish("omnibus:plan", "0")
        await asyncio.sleep(0.3)
        assert await town.store.epoch() == 0
        await town.raw.config_set("maxmemory", "0")

        await town.current(2)


async def test_a_file_that_is_not_there_stops_the_start(town: Town, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_PLANNER_MODELS", "/nowhere/models.json")

    with pytest.raises(BadRequest, match="OMNIBUS_PLANNER_MODELS"):
        async with town.planner():
            pass

    assert await town.store.epoch() == 0


async def test_without_a_bus_it_does_not_start(town: Town, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_BUS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OMNIBUS_BUS_CONNECT_TIMEOUT", "0.3")

    with pytest.raises(BusUnavailable):
        async with town.planner():
            pass

    assert await town.store.epoch() == 0


# Apps


async def test_without_declarations_there_is_what_apps_bring(town: Town, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_PLANNER_MODELS", "")

    async with town.planner():
        assert (await town.current(1)).models == {}
        await town.store.put_app(app("poem", SPELL), 0)

        plan = await town.current(2)

    assert list(plan.models) == ["spell"]


async def test_the_first_epoch_knows_the_apps_that_are_registered(town: Town):
    await town.store.put_app(app("poem", SPELL), 0)

    async with town.planner():
        plan = await town.current(1)

    assert list(plan.models) == ["m", "spell"]


async def test_a_model_comes_and_leaves_with_the_apps_that_bring_it(town: Town):
    async with town.planner():
        await town.current(1)

        await town.store.put_app(app("poem", SPELL), 0)
        first = await town.until(lambda plan: users(plan) == {"m": (), "spell": ("poem",)})
        await town.store.put_app(app("story", SPELL, COUNT, created=2000.0), 0)
        both = await town.until(lambda plan: users(plan) == {"m": (), "spell": ("poem", "story"), "count": ("story",)})
        await town.store.drop_app("poem", None)
        await town.until(lambda plan: users(plan) == {"m": (), "spell": ("story",), "count": ("story",)})
        await town.store.drop_app("story", None)
        none = await town.until(lambda plan: users(plan) == {"m": ()})

        await until(lambda: town.announced == list(range(1, none.epoch + 1)))

    assert first.models["m"] == both.models["m"] == none.models["m"]


async def test_an_app_without_own_tasks_makes_no_new_epoch(town: Town):
    async with town.planner():
        await town.current(1)

        await town.store.put_app(app("chat", task("think", "m", "thinker", own=False)), 0)
        await town.store.put_app(app("poem", SPELL), 0)
        plan = await town.current(2)

    assert users(plan) == {"m": (), "spell": ("poem",)}
    assert town.announced == [1, 2]


async def test_an_update_of_an_app_replaces_its_tasks(town: Town):
    async with town.planner():
        await town.store.put_app(app("poem", SPELL), 0)
        await town.until(lambda plan: "spell" in plan.models)

        await town.store.put_app(app("poem", COUNT, version=2), 1)

        await town.until(lambda plan: list(plan.models) == ["m", "count"])


async def test_planners_side_by_side_agree_on_what_apps_bring(town: Town):
    async with town.planner(), town.planner():
        await town.current(1)

        await town.store.put_app(app("poem", SPELL), 0)

        plan = await town.current(2)
        await asyncio.sleep(0.1)
        assert await town.store.plan() == plan
    assert users(plan) == {"m": (), "spell": ("poem",)}


async def test_a_store_that_lost_everything_gets_the_models_of_apps_again(town: Town):
    async with town.planner():
        await town.current(1)
        await town.store.put_app(app("poem", SPELL), 0)
        await town.known(2)  # the follower of apps has read them

        await town.raw.flushall()
        await town.raw.publish("omnibus:plan", "0")
        await town.raw.publish("omnibus:apps", "0")

        plan = await town.current(3)
        assert users(plan) == {"m": (), "spell": ("poem",)}


async def test_a_task_that_cannot_be_served_does_not_stop_the_planner(town: Town, caplog: pytest.LogCaptureFixture):
    async with town.planner():
        await town.current(1)

        await town.store.put_app(app("bad", task("rhyme", service="gpu")), 0)
        await town.store.put_app(app("poem", SPELL), 0)

        assert users(await town.current(2)) == {"m": (), "spell": ("poem",)}
    assert "unit task 'rhyme' of app 'bad' is not served: there is no service 'gpu'" in caplog.text


# Plans of other builds


@pytest.mark.parametrize("body", ["", "{", '{"v": 2}', '{"epoch":7,"seed":0,"created":0,"models":{},"v":9}'])
async def test_a_plan_that_cannot_be_read_is_followed_by_one_that_can(town: Town, body: str):
    await town.raw.set("omnibus:plan:epoch", "7")
    await town.raw.set("omnibus:plan:7", body)

    async with town.planner():
        plan = await town.current(8)

        assert list(plan.models) == ["m"]
        await until(lambda: town.announced == [8])


async def test_a_plan_that_becomes_unreadable_is_written_again_when_apps_change(town: Town):
    async with town.planner():
        await town.current(1)
        await town.raw.set("omnibus:plan:1", "of another build")

        await town.store.put_app(app("poem", SPELL), 0)

        assert users(await town.current(2)) == {"m": (), "spell": ("poem",)}


async def test_a_change_of_apps_is_written_as_soon_as_the_store_can_be_written_again(town: Town):
    async with town.planner():
        await town.known(1)

        await town.store.put_app(app("poem", SPELL), 0)
        await town.known(2)
        await town.raw.config_set("maxmemory", "1")  # reads go on, writes are refused
        await town.raw.hdel("omnibus:apps", "poem")
        await town.raw.publish("omnibus:apps", "poem")
        await asyncio.sleep(0.3)
        assert await town.store.epoch() == 2
        await town.raw.config_set("maxmemory", "0")

        assert users(await town.current(3)) == {"m": ()}


def users(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {name: model.apps for name, model in plan.models.items()}
