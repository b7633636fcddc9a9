"""Candidates move from shadow to canary to promotion, or back."""

import asyncio

import msgspec

from omnibus.canary.candidate import Candidate, OptionChange
from omnibus.plan import Plan
from omnibus_planner.canary.controller import next_state
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

TRIED = Candidate("one", "m", (OptionChange("E", dtype="bfloat16"),), share=0.1, promote=True, since=1.0)
GREEN = {"pairs": 60}


def share_of(plan: Plan) -> float:
    paths = plan.models["m"].types["vision+thinker"]
    return sum(path.rate for path in paths if path.is_candidate) / sum(path.rate for path in paths)


async def state_of(town: PlannerSystem, state: str) -> Candidate:
    async def is_in_state() -> bool:
        return (await town.store.candidates())["m"].state == state

    await wait_until(is_in_state)
    return (await town.store.candidates())["m"]


async def start_candidate(town: PlannerSystem, **fields: object) -> Plan:
    """Return the plan in which the candidate runs in the shadow."""
    candidate = msgspec.structs.replace(TRIED, since=asyncio.get_running_loop().time() + 1e10, **fields)
    await town.store.put_candidate(candidate, None)
    return await town.until(lambda plan: "E@canary" in plan.models["m"].options)


async def test_a_candidate_whose_gate_is_green_goes_from_the_shadow_to_users_and_takes_over(system: PlannerSystem):
    async with system.planner():
        first = await system.current(1)
        shadow = await start_candidate(system)

        assert share_of(shadow) == 0
        assert "m-E_canary-0" in system.crowd.spawned

        await system.store.add_counts("one", GREEN)
        canary = await system.until(lambda plan: share_of(plan) > 0)
        assert abs(share_of(canary) - 0.1) < 1e-9
        assert canary.models["m"].options["E"] == first.models["m"].options["E"]

        await system.store.add_counts("one", {"served": 60})
        final_plan = await system.until(lambda plan: plan.models["m"].options["E"].dtype == "bfloat16")
        assert share_of(final_plan) == 0
        assert "E@canary" not in final_plan.models["m"].options
        await state_of(system, "promoted")


async def test_a_candidate_whose_gate_is_red_leaves_and_everything_is_as_before(system: PlannerSystem):
    async with system.planner():
        first = await system.current(1)
        await start_candidate(system)

        await system.store.add_counts("one", {"pairs": 10, "differed": 5})

        back = await system.until(lambda plan: "E@canary" not in plan.models["m"].options)
        assert back.models == first.models
        assert (await state_of(system, "failed")).reason == "outputs differed in 5 of 10"
        assert "outputs differed" in back.reason


async def test_what_was_promoted_is_served_by_the_next_planner_too_until_it_is_taken_back(system: PlannerSystem):
    async with system.planner():
        await system.current(1)
    promoted_candidate = TRIED.enter_state("promoted", "", 1.0)
    await system.store.put_candidate(promoted_candidate, None)
    async with system.planner():
        await system.until(lambda plan: plan.models["m"].options["E"].dtype == "bfloat16")

        await system.store.put_candidate(promoted_candidate.enter_state("aborted", "", 2.0), promoted_candidate)

        await system.until(lambda plan: plan.models["m"].options["E"].dtype == "")


def test_a_state_ends_without_a_verdict_when_its_time_is_over():
    now = TRIED.since + TRIED.within

    assert next_state(TRIED, {"pairs": 3}, now - 1) is None
    after = next_state(TRIED, {"pairs": 3}, now + 1)
    assert after is not None
    assert (after.state, after.reason[:26]) == ("expired", "no verdict within 3600 s: ")


def test_without_being_asked_to_a_green_candidate_waits_for_an_operator():
    waits = msgspec.structs.replace(TRIED, promote=False, share=0.0)

    after = next_state(waits, GREEN, TRIED.since + 1)

    assert after is not None
    assert (after.state, after.reason) == ("shadow", "the gate is green: `omnibus canary promote` takes it")
    assert next_state(after, GREEN, TRIED.since + 2) is None
