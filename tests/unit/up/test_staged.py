"""Executors of the staged plan run with those of the current one. Equal ones are reused."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import ExecutorStatus, GatewayStatus
from omnibus.cluster.presence import ReadyExecutors
from omnibus.plan import DeploymentOption, Plan
from omnibus.process.spec import ProcessSpec
from omnibus.settings import BusSettings
from omnibus.up.executors import Executors, process_specs, reconcile_specs
from tests.memory_bus import MemoryBus
from tests.unit.up.house import SupervisorHouse, make_model, make_plan
from tests.unit.up.programs import all_gone, log_to

OWNER = "planner"


async def store_staged_plan(house: SupervisorHouse, plan: Plan) -> None:
    await house.store.stage_plan(plan, OWNER, 60.0)


async def start_plan(house: SupervisorHouse, first: Plan) -> None:
    await house.store_plan(first)
    await house.executors.start(first, house.store)


async def test_what_is_staged_starts_and_nothing_leaves_until_it_is_current(house: SupervisorHouse):
    await start_plan(house, make_plan(1, E=1, L=2))
    first = await house.until("m/E", "m/L", "m/L/1")

    await store_staged_plan(house, make_plan(2, EL=1, L=1))
    pids = await house.until("m/E", "m/L", "m/L/1", "m/EL")
    await house.store_plan(make_plan(2, EL=1, L=1))
    last = await house.until("m/L", "m/EL")

    assert pids.items() > first.items()
    assert pids.items() > last.items()
    assert all_gone([first["m/E"], first["m/L/1"]])


async def test_what_is_staged_no_more_leaves_and_all_else_stays(house: SupervisorHouse):
    await start_plan(house, make_plan(1, L=1))
    first = await house.until("m/L")
    await store_staged_plan(house, make_plan(2, EL=1))
    await house.until("m/L", "m/EL")

    await house.store.unstage_plan(OWNER)

    assert await house.until("m/L") == first


async def test_another_plan_may_be_staged_instead(house: SupervisorHouse):
    await start_plan(house, make_plan(1, L=1))
    await store_staged_plan(house, make_plan(2, EL=1, X=1))
    first = await house.until("m/L", "m/EL", "m/X")

    await store_staged_plan(house, make_plan(3, X=1, Y=1))
    second = await house.until("m/L", "m/X", "m/Y")

    assert (second["m/L"], second["m/X"]) == (first["m/L"], first["m/X"])


async def test_a_staged_plan_of_another_build_does_not_stop_the_current_one_from_being_followed(house: SupervisorHouse):
    await start_plan(house, make_plan(1, L=1))
    await house.until("m/L")

    await house.store._redis.set("omnibus:plan:staged", '{"epoch": 2, "v": 9}')
    await house.store_plan(make_plan(2, E=1, L=1))

    await house.until("m/E", "m/L")


async def test_a_current_plan_of_another_build_does_not_stop_the_staged_one_from_starting(house: SupervisorHouse):
    await start_plan(house, make_plan(1, L=1))
    await house.until("m/L")

    await house.store._redis.set("omnibus:plan:1", '{"v": 9}')
    await store_staged_plan(house, make_plan(2, E=1))

    await house.until("m/E", "m/L")


async def test_one_that_is_wanted_again_before_it_leaves_stays(house: SupervisorHouse):
    bus = MemoryBus(BusSettings())
    await house.gateways.listen(bus)
    await start_plan(house, make_plan(1, E=1, L=1))
    first = await house.until("m/E", "m/L")
    status = GatewayStatus("g", 1, 1.0)  # a gateway that follows the first plan
    bus.publish(subjects.event_subject(subjects.GATEWAY), msgspec.json.encode(status))

    await house.store_plan(make_plan(2, L=1, X=1))
    during = await house.until("m/E", "m/L", "m/X")
    await store_staged_plan(house, make_plan(3, E=1, L=1, Y=1))
    await house.until("m/E", "m/L", "m/X", "m/Y")
    await house.store_plan(make_plan(3, E=1, L=1, Y=1))
    bus.publish(subjects.event_subject(subjects.GATEWAY), msgspec.json.encode(GatewayStatus("g", 3, 3.0)))
    last = await house.until("m/E", "m/L", "m/Y")

    assert during.items() > first.items()
    assert last.items() > first.items()
    await bus.drain()


async def test_a_staged_plan_that_is_no_good_ends_nothing(house: SupervisorHouse):
    await start_plan(house, make_plan(1, L=1))
    first = await house.until("m/L")
    house.programs["m/EL"] = "raise SystemExit('no such model')"

    await store_staged_plan(house, make_plan(2, EL=1))
    await house.lines.until("m/EL .*given up")
    await house.store_plan(make_plan(2, L=1))

    assert await house.until("m/L") == first


async def test_executors_with_other_orders_come_beside_and_later_ones_have_the_name_again(house: SupervisorHouse):
    def make_checkpoint_plan(epoch: int, checkpoint: str) -> Plan:
        changed_model = msgspec.structs.replace(make_plan(epoch, L=1).models["m"], checkpoint=checkpoint)
        return Plan(epoch, 0, float(epoch), {"m": changed_model})

    name = f"m/L@{make_checkpoint_plan(2, '/b').models['m'].option_origin('L')[:4]}"
    await start_plan(house, make_checkpoint_plan(1, "/a"))
    first = await house.until("m/L")
    await store_staged_plan(house, make_checkpoint_plan(2, "/b"))
    second = await house.until("m/L", name)
    await house.store_plan(make_checkpoint_plan(2, "/b"))
    third = await house.until(name)
    await store_staged_plan(house, make_checkpoint_plan(3, "/c"))
    fourth = await house.until(name, "m/L")

    assert second.items() > first.items()
    assert third[name] == fourth[name] == second[name]
    assert fourth["m/L"] != first["m/L"]


# Equal executors


def make_specs(**replicas: int) -> dict[str, ProcessSpec]:
    return process_specs(make_plan(1, **replicas), env={})


def make_other_specs(checkpoint: str = "/other", **replicas: int) -> dict[str, ProcessSpec]:
    changed_model = msgspec.structs.replace(make_plan(1, **replicas).models["m"], checkpoint=checkpoint)
    return process_specs(Plan(1, 0, 0.0, {"m": changed_model}), env={})


def list_names(fresh: list[ProcessSpec]) -> list[str]:
    return [spec.name.partition("@")[0] + "@" * ("@" in spec.name) for spec in fresh]


def test_what_runs_as_asked_stays_and_the_rest_starts():
    stay, fresh = reconcile_specs(make_specs(E=1, L=2), make_specs(L=1, X=1), ())

    assert stay == {"m/L"}
    assert list_names(fresh) == ["m/E", "m/L/1"]


def test_a_replica_stands_in_for_another_one():
    there = make_specs(L=3)
    del there["m/L"]

    assert reconcile_specs(make_specs(L=2), there, ()) == ({"m/L/1", "m/L/2"}, [])


def test_a_name_that_is_taken_by_one_that_does_otherwise_is_not_waited_for():
    stay, fresh = reconcile_specs(make_specs(L=2), make_other_specs(L=1), ())

    assert stay == set()
    assert list_names(fresh) == ["m/L@", "m/L/1"]
    assert fresh[0].env["OMNIBUS_EXECUTOR_ID"].startswith("m-L-0-")


def test_one_that_is_ending_has_its_name_until_it_is_gone():
    there = make_specs(L=1)

    assert reconcile_specs(make_specs(L=1), there, {"m/L"}) == (set(), [])
    stay, fresh = reconcile_specs(make_specs(L=1), make_other_specs(L=1), {"m/L"})
    assert (stay, list_names(fresh)) == (set(), ["m/L@"])


def test_two_that_do_otherwise_each_have_a_name_and_both_are_found_again():
    one, two = make_plan(1, L=1), Plan(2, 0, 0.0, {"m": make_model({"L": DeploymentOption(("vision",), "llm")})})
    specs = process_specs(one, two, env={})

    stay, fresh = reconcile_specs(specs, {}, ())

    assert stay == set()
    assert list_names(fresh) == ["m/L", "m/L@"]
    assert reconcile_specs(specs, {spec.name: spec for spec in fresh}, ()) == ({spec.name for spec in fresh}, [])
    assert reconcile_specs(process_specs(two, env={}), {spec.name: spec for spec in fresh}, ())[0] == {fresh[1].name}


@pytest.mark.parametrize("vital", [True, False])
def test_only_at_the_very_start_executors_are_vital(vital: bool):
    _, fresh = reconcile_specs(make_specs(L=1), {}, (), vital=vital)
    there = {"m/L": replace(fresh[0], vital=not vital)}

    assert [spec.vital for spec in fresh] == [vital]
    assert reconcile_specs(make_specs(L=1), there, ()) == ({"m/L"}, [])


async def test_following_ends_when_it_is_told_to(house: SupervisorHouse):
    await start_plan(house, make_plan(1, L=1))
    await house.until("m/L")

    async with asyncio.timeout(5):
        await house.executors.close()


async def test_an_executor_that_was_ready_once_is_never_given_up(house: SupervisorHouse):
    bus, ready = MemoryBus(BusSettings()), ReadyExecutors()
    executors = Executors(house.supervisor, log_to(house.lines), house.make_specs, ready)
    await ready.listen(bus, executors.confirm_ready)
    house.programs["m/L"] = house.programs["m/X"] = "import time; print('up', flush=True); time.sleep(0.05)"
    await executors.start(make_plan(1, E=1, L=1), house.store)

    bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(make_status("m-L-0")))
    await house.supervisor.unless_over(house.lines.until(r"(?s)(m/L +\| restarting in.*){6}"))
    await house.store_plan(make_plan(2, E=1, L=1, X=1))
    await house.supervisor.unless_over(house.lines.until(r"m/X +\| given up"))  # it was never ready

    assert "m/E" in house.pids()
    assert "m/L" in house.supervisor.specs
    await executors.close()


def make_status(id: str) -> ExecutorStatus:
    return ExecutorStatus(id, "m", "L", ("thinker",), ("t",), "n", "ready", 1)
