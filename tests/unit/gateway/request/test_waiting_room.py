"""Requests wait at the gateway while executors can be added: in order, within their deadline, and no longer."""

import asyncio
from collections.abc import Iterator

import pytest

from omnibus.bus.messages import ExecutorStatus, ModelGrowth, PlanEvent
from omnibus.errors import Overloaded
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from services.gateway.request import waiting_room
from services.gateway.request.waiting_room import WaitingRoom
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.executors import ExecutorTable
from services.gateway.routing.router import Router

PATH = Path("L", {"thinker": "L"}, 1.0)
GROWTH = ModelGrowth(4.0, 10.0)


@pytest.fixture
def router() -> Router:
    made = Router("g", ExecutorTable())
    options = {"L": DeploymentOption(("thinker",), "llm")}
    model = ModelPlan("tiny", "", ("thinker",), {}, options, {"thinker": (PATH,)}, tasks={"thinker": "think-m"})
    made.plan = Plan(1, 0, 0.0, {"m": model})
    start(made, "one")
    return made


@pytest.fixture
def room(router: Router) -> Iterator[WaitingRoom]:
    made = WaitingRoom(router)
    yield made
    made.close()


def start(router: Router, id: str) -> None:
    """An executor that batches one request, and so is given two."""
    router.members.handle_status(ExecutorStatus(id, "m", "L", (), (), "n", state="ready", credits=8, slots=1))


def give(router: Router, id: str, change: int) -> None:
    """Give it so many requests more."""
    member = router.members.get(id)
    assert member is not None
    member.own += change


def assigned(router: Router) -> Assignment:
    return router.assign([GraphNode("think-m", "thinker", {}, "")], "m")


async def test_nobody_waits_where_no_planner_says_that_more_can_be_added(router: Router, room: WaitingRoom):
    asked = assigned(router)
    assert room.growth(asked) is None

    room.handle_plan_event(PlanEvent(1, {"m": GROWTH}))
    assert room.growth(asked) == GROWTH

    room.handle_plan_event(PlanEvent(2))
    assert room.growth(asked) is None


async def test_what_a_silent_planner_has_said_is_forgotten(
    router: Router, room: WaitingRoom, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(waiting_room, "GROWTH_TTL_SECONDS", 0.01)
    room.handle_plan_event(PlanEvent(1, {"m": GROWTH}))

    async with asyncio.timeout(20):
        while router.growing:
            await asyncio.sleep(0.01)


async def test_requests_wait_in_order_and_go_to_an_executor_that_starts(router: Router, room: WaitingRoom):
    asked, entered = assigned(router), list[int]()

    async def enter(number: int) -> None:
        await room.enter(asked, GROWTH, 60.0)
        entered.append(number)
        give(router, "one" if number < 2 else "two", 1)
        room.leave_entrance(asked)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(enter(number))
            await asyncio.sleep(0)
        while room.waiting < 2:
            await asyncio.sleep(0.01)
        assert entered == [0, 1]
        start(router, "two")

    assert entered == [0, 1, 2, 3]
    assert room.waiting == 0
    assert not room.has_room(asked)


async def test_who_had_no_room_by_the_deadline_is_refused_and_leaves_the_queue(router: Router, room: WaitingRoom):
    give(router, "one", 2)

    with pytest.raises(Overloaded, match="no room"):
        await room.enter(assigned(router), GROWTH, 0.05)

    assert room.waiting == 0
    give(router, "one", -1)
    await room.enter(assigned(router), GROWTH, 0.05)


async def test_what_all_that_can_be_added_would_not_serve_in_time_is_refused_at_once(
    router: Router, room: WaitingRoom, monkeypatch: pytest.MonkeyPatch
):
    give(router, "one", 2)
    monkeypatch.setattr(room, "_drain_rate", lambda entries: 1 / 100)  # 100 s for one, and 32 s with what can be added

    with pytest.raises(Overloaded, match="32 s, and it has 30 s"):
        await room.enter(assigned(router), GROWTH, 30.0)
    with pytest.raises(Overloaded, match="too many"):
        await room.enter(assigned(router), ModelGrowth(1.0, 10.0), 60.0)
