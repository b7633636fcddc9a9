"""Prometheus metrics of a planner: its plan, staged changes, and ready executors."""

from omnibus.metrics import REGISTRY
from tests.unit.planner.town import Town
from tests.unit.sidecar.node import until


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"omnibus_planner_{name}", labels)


async def test_a_planner_tells_its_plan_and_who_is_ready(town: Town):
    town.declare()
    plans = value("plans_total") or 0
    async with town.planner():
        plan = await town.current(1)

        assert value("epoch") == 1
        assert value("plan_created_seconds") == plan.created
        assert value("plans_total") == plans + 1
        assert value("executors_wanted", model="m", option="E") == 1
        await until(lambda: value("executors_ready", model="m", option="E") == 1)
        assert (value("staged_age_seconds"), value("problems"), value("pinned")) == (0, 0, 0)


async def test_a_plan_that_waits_grows_old(town: Town):
    town.declare(["EL"])
    async with town.planner():
        await town.current(1)
        town.declare(["E", "L"])
        await town.staged()

        assert (value("staged_age_seconds") or 0) > 0
        assert value("executors_wanted", model="m", option="EL") == 1
        assert value("executors_wanted", model="m", option="E") is None
