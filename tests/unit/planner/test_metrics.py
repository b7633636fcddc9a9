"""Prometheus metrics of a planner: its plan, staged changes, and ready executors."""

from omnibus.metrics import REGISTRY
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until


def read_value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"omnibus_planner_{name}", labels)


async def test_a_planner_tells_its_plan_and_who_is_ready(system: PlannerSystem):
    system.declare()
    plans = read_value("plans_total") or 0
    async with system.planner():
        plan = await system.current(1)

        assert read_value("epoch") == 1
        assert read_value("plan_created_seconds") == plan.created
        assert read_value("plans_total") == plans + 1
        assert read_value("executors_wanted", model="m", option="E") == 1
        await wait_until(lambda: read_value("executors_ready", model="m", option="E") == 1)
        assert (read_value("staged_age_seconds"), read_value("problems"), read_value("pinned")) == (0, 0, 0)


async def test_a_plan_that_waits_grows_old(system: PlannerSystem):
    system.declare(["EL"])
    async with system.planner():
        await system.current(1)
        system.declare(["E", "L"])
        await system.staged()

        assert (read_value("staged_age_seconds") or 0) > 0
        assert read_value("executors_wanted", model="m", option="EL") == 1
        assert read_value("executors_wanted", model="m", option="E") is None
