"""Surplus processes of the next plan switch to missing roles. Their executors must agree."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from omnibus.bus import Delivery, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.bus.role_messages import TAKEN, RoleAssignment, decode_role
from omnibus.cluster.presence import ID, ReadyExecutors
from omnibus.errors import BadRequest
from omnibus.plan import DeploymentOption, Plan
from omnibus.process.spec import ProcessSpec
from omnibus.settings import BusSettings
from omnibus.up.executors import Executors, RoleSwitcher, can_become, in_role, process_specs
from tests.memory_bus import MemoryBus
from tests.unit.up.house import SupervisorHouse, make_model
from tests.unit.up.programs import log_to

PARTS = {"P": ("prefill",), "D": ("decode",)}


def make_plan(epoch: int, **replicas: int) -> Plan:
    options = {name: DeploymentOption(PARTS[name], "llm", count) for name, count in replicas.items()}
    return Plan(epoch, 0, float(epoch), {"m": make_model(options)})


class RoleCrowd:
    """The executors of a house on the bus; each serves its process's role, or its last one."""

    def __init__(self, house: SupervisorHouse, bus: MemoryBus) -> None:
        self.house = house
        self.bus = bus
        self.roles: dict[str, RoleAssignment] = {}
        self.refuses = False
        self.silent = False

    async def report_ready(self) -> None:
        """Report all processes as ready."""
        for spec in [spec for spec in self.house.supervisor.specs.values() if ID in spec.env]:
            id = spec.env[ID]
            if id not in self.roles:
                self.roles[id] = _read_role(spec)
                await self.bus.add_responder(subjects.role_subject(id), self._make_responder(id))
            self._report_status(id)

    def _report_status(self, id: str) -> None:
        role = self.roles[id]
        status = ExecutorStatus(id, "m", role.option, role.components, ("t",), "n", "ready", 1, origin=role.origin)
        self.bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))

    def _make_responder(self, id: str) -> Any:
        async def take_role(delivery: Delivery) -> AsyncIterator[bytes]:
            if self.refuses:
                yield msgspec.json.encode(BadRequest("not this one").to_problem())
                return
            self.roles[id] = decode_role(delivery.data)
            if not self.silent:
                self._report_status(id)
            yield TAKEN

        return take_role

    def options(self) -> dict[str, str]:
        return {id: role.option for id, role in self.roles.items()}


def _read_role(spec: ProcessSpec) -> RoleAssignment:
    env = {name.removeprefix("OMNIBUS_EXECUTOR_"): value for name, value in spec.env.items()}
    return RoleAssignment(env["OPTION"], env["ORIGIN"], tuple(env["COMPONENTS"].split(",")))


@pytest.fixture
async def crowd(house: SupervisorHouse) -> AsyncIterator[RoleCrowd]:
    """Two executors of P and one of D, all ready."""
    bus, ready = MemoryBus(BusSettings()), ReadyExecutors()
    roles = RoleSwitcher(bus, ready, log_to(house.lines))
    make, house.make_specs = house.make_specs, lambda *plans: _make_switching(make, house, *plans)  # type: ignore[method-assign]
    house.executors = Executors(house.supervisor, log_to(house.lines), house.make_specs, ready, house.gateways, roles)
    await ready.listen(bus)
    role_crowd = RoleCrowd(house, bus)
    await house.store_plan(make_plan(1, P=2, D=1))
    await house.executors.start(make_plan(1, P=2, D=1), house.store)
    await house.until("m/P", "m/P/1", "m/D")
    await role_crowd.report_ready()
    yield role_crowd
    await bus.drain()


def _make_switching(make: Any, house: SupervisorHouse, *plans: Plan) -> dict[str, ProcessSpec]:
    specs = process_specs(*plans, env=house.env, switches=True)
    return {name: spec for name, spec in make(*plans).items() if name in specs}


async def store_staged_plan(house: SupervisorHouse, plan: Plan) -> None:
    await house.store.stage_plan(plan, "planner", 60.0)


async def has_options(crowd: RoleCrowd, **options: str) -> None:
    async with asyncio.timeout(20):
        while crowd.options() != {id.replace("_", "-"): option for id, option in options.items()}:
            await asyncio.sleep(0.01)


async def test_what_leaves_becomes_what_comes_and_its_process_goes_on(house: SupervisorHouse, crowd: RoleCrowd):
    first = house.pids()

    await store_staged_plan(house, make_plan(2, P=1, D=2))
    await has_options(crowd, m_P_0="P", m_P_1="D", m_D_0="D")
    await house.store_plan(make_plan(2, P=1, D=2))
    await store_staged_plan(house, make_plan(3, P=2, D=1))
    await has_options(crowd, m_P_0="P", m_P_1="P", m_D_0="D")
    await house.store_plan(make_plan(3, P=2, D=1))

    assert await house.until("m/P", "m/P/1", "m/D") == first


async def test_a_process_that_ends_comes_back_in_the_role_that_it_had(house: SupervisorHouse, crowd: RoleCrowd):
    await store_staged_plan(house, make_plan(2, P=1, D=2))
    async with asyncio.timeout(20):
        while house.supervisor.specs["m/P/1"].env["OMNIBUS_EXECUTOR_COMPONENTS"] != "decode":
            await asyncio.sleep(0.01)

    before = house.pids()["m/P/1"]
    house.supervisor.kill("m/P/1")

    assert house.supervisor.specs["m/P/1"].env[ID] == "m-P-1"
    assert crowd.options()["m-P-1"] == "D"
    await house.until("m/P", "m/P/1", "m/D", but=(before,))


async def test_one_that_refuses_is_replaced(house: SupervisorHouse, crowd: RoleCrowd):
    crowd.refuses, first = True, house.pids()

    await store_staged_plan(house, make_plan(2, P=1, D=2))
    await house.until("m/P", "m/P/1", "m/D", "m/D/1")
    await crowd.report_ready()
    await house.store_plan(make_plan(2, P=1, D=2))
    last = await house.until("m/P", "m/D", "m/D/1")

    assert {"m/P": first["m/P"], "m/D": first["m/D"]}.items() <= last.items()
    assert set(crowd.options().values()) == {"P", "D"}
    await house.lines.until("m/P/1 .*keeps its role: not this one")


async def test_of_two_that_could_leave_at_once_one_stays(house: SupervisorHouse, crowd: RoleCrowd):
    await house.store_plan(make_plan(2, P=3, D=1))
    await house.until("m/P", "m/P/1", "m/P/2", "m/D")
    await crowd.report_ready()
    crowd.bus.publish(subjects.event_subject(subjects.GONE), b"m-P-0")  # it is restarted, and is not ready yet
    crowd.silent = True  # the state of the others is unknown for a while

    await store_staged_plan(house, make_plan(3, P=1, D=3))
    await house.until("m/P", "m/P/1", "m/P/2", "m/D", "m/D/2")

    assert sorted(role.option for role in crowd.roles.values()) == ["D", "D", "P", "P"]


async def test_the_last_one_that_serves_its_role_keeps_it(house: SupervisorHouse, crowd: RoleCrowd):
    crowd.bus.publish(subjects.event_subject(subjects.GONE), b"m-P-0")

    await store_staged_plan(house, make_plan(2, P=1, D=2))
    await house.until("m/P", "m/P/1", "m/D", "m/D/1")

    assert crowd.options()["m-P-1"] == "P"


def test_a_process_that_differs_in_more_than_its_role_becomes_nothing_else():
    one, other = (process_specs(make_plan(1, P=1, D=1), env=env) for env in ({}, {"OMNIBUS_EXECUTOR_NODE": "n"}))

    assert can_become(one["m/P"], one["m/D"])
    assert not can_become(one["m/P"], one["m/P"])
    assert not can_become(one["m/P"], other["m/D"])
    assert in_role(one["m/P"], one["m/D"]).name == "m/P"
