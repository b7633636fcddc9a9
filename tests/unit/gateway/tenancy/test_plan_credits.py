"""A plan's credits: gateways admit no more requests to an executor, and none waits past its goal."""

import asyncio
from collections.abc import Mapping
from math import inf
from pathlib import Path as File

import msgspec
import pytest

from omnibus.errors import Overloaded
from omnibus.plan import Plan
from omnibus_gateway.routing.router import Router
from tests.unit.gateway.auth.test_middleware import PATIENCE, add_held_executor, count_of, start_gated_gateway
from tests.unit.gateway.house import TEXT, read_error_body, start_toy_gateway
from tests.unit.gateway.routing.test_router import STAGES, add_work, make_calls, make_router, make_status, route_request
from tests.unit.gateway.tenancy.test_places import Entrance


def limit_plan(
    router: Router, model: str, credits: Mapping[str, int], goals: Mapping[str, float] | None = None
) -> None:
    """Replace the plan of ``router`` by one with ``credits`` by option, and ``goals``."""
    assert router.plan is not None
    new = msgspec.structs.replace(router.plan.models[model].with_credits(credits), goals=dict(goals or {}))
    router.plan = Plan(router.plan.epoch + 1, router.plan.seed, 0.0, {**router.plan.models, model: new})


@pytest.mark.parametrize(("gateways", "begun", "most"), [(1, 8 + 3, 4), (2, 4 + 2, 3)])
def test_places_follow_the_plans_credits_and_gateways_share_them(gateways: int, begun: int, most: int):
    """Of four credits one is reserved for other tenants; gateways round their parts up."""
    entrance = Entrance(gateways)
    limit_plan(entrance.places.router, "m", {"T": 4})
    for _ in range(40):
        entrance.enter_request("heavy")

    assert len(entrance.start_all()) == begun
    for _ in range(4):
        entrance.enter_request("light")
    entrance.start_all()
    assert entrance.places._used["m", "T"] == most


def test_requests_take_executors_and_paths_with_credit_and_are_rejected_without():
    router = make_router("g1", ("e", "E"), ("l1", "L"), ("l2", "L"), ("el", "EL"))
    limit_plan(router, "m", {"L": 1, "EL": 1})
    add_work(router, "l1", 1)
    add_work(router, "e", 1000)

    routes = [route_request(router, "vision", "thinker") for _ in range(10)]
    assert {route.executors for route in routes} == {("e", "l2"), ("el", "el")}
    add_work(router, "l2", 1)
    assert {route_request(router).executors for _ in range(10)} == {("el", "el")}
    add_work(router, "el", 1)
    full = route_request(router)
    with pytest.raises(Overloaded, match="1 requests in flight, as many as keep the plan's goals"):
        router.members.check_credits(full.executors)

    limit_plan(router, "m", {})
    router.members.check_credits(full.executors)


def test_an_executor_that_starts_later_has_the_plans_credits_and_never_more_than_its_own():
    router = make_router()
    limit_plan(router, "m", {"E": 3, "L": 100})

    for id, option in (("e", "E"), ("l", "L")):
        router.members.handle_status(make_status(id, option, inflight=2))

    credits = {id: member.available_credit for id in ("e", "l") if (member := router.members.get(id))}
    assert credits == {"e": 1, "l": 6}


@pytest.mark.parametrize(
    ("goals", "seconds"),
    [
        ({}, inf),
        ({"done": 5.0}, 5.0),
        ({"done": 5.0, "first_token": 2.0}, 2.0),
        ({"first_audio": 1.0}, inf),
        ({"token": 0.1}, inf),
    ],
)
def test_a_request_waits_no_longer_than_its_tightest_goal(goals: dict[str, float], seconds: float):
    router = make_router()
    limit_plan(router, "m", {}, goals)

    assert router.longest_wait(router.assign(make_calls(*STAGES), "m")) == seconds


async def test_a_turn_that_does_not_come_before_the_goal_is_429(tmp_path: File):
    async with start_gated_gateway(tmp_path, admit=1) as gate, asyncio.timeout(PATIENCE):
        held_thinker = await add_held_executor(gate)
        limit_plan(gate.home.router, TEXT, {}, {"done": 0.2})
        async with asyncio.TaskGroup() as group:
            first = group.create_task(gate.ask("a"))
            await count_of(lambda: len(held_thinker.begun), 1)

            rejection = await gate.ask("a")
            held_thinker.go.release()

    assert (rejection.status_code, first.result().status_code) == (429, 200)
    assert "within 0.2 s" in read_error_body(rejection)["message"]


async def test_a_request_beyond_the_plans_credits_is_429_at_once(tmp_path: File):
    async with start_toy_gateway(tmp_path) as home, asyncio.timeout(PATIENCE):
        await home.all_of(TEXT)
        limit_plan(home.router, TEXT, {"L": 1})
        [member] = home.router.members.fit_executors(TEXT, "L")
        member.charge_work(1.0)
        rejection = await home.ask(TEXT)
        member.discharge_work(1.0)
        answer = await home.ask(TEXT)

    assert (rejection.status_code, answer.status_code) == (429, 200)
    assert read_error_body(rejection)["code"] == "overloaded"
    assert int(rejection.headers["retry-after"]) >= 1
