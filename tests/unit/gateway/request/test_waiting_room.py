"""Requests wait at the gateway while executors can be added: in order, and within their deadline."""

import asyncio
from collections.abc import Iterator

import pytest

from omnibus.bus.messages import ExecutorStatus, ModelGrowth, PlanEvent
from omnibus.errors import Overloaded
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.request import admission as waiting_room
from omnibus_gateway.request.admission import WaitingRoom
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router

PATH = Path("L", {"thinker": "L"}, 1.0)
GROWTH = ModelGrowth(4.0, 10.0)


@pytest.fixture
def router() -> Router:
    tiny_router = Router("g", ExecutorTable())
    options = {"L": DeploymentOption(("thinker",), "llm")}
    model = ModelPlan("tiny", "", ("thinker",), {}, options, {"thinker": (PATH,)}, tasks={"thinker": "think-m"})
    tiny_router.plan = Plan(1, 0, 0.0, {"m": model})
    add_executor(tiny_router, "one")
    return tiny_router


@pytest.fixture
def room(router: Router) -> Iterator[WaitingRoom]:
    waiting_room = WaitingRoom(router)
    yield waiting_room
    waiting_room.close()


def add_executor(router: Router, id: str) -> None:
    """Add an executor that batches one request, and so receives two."""
    router.members.handle_status(ExecutorStatus(id, "m", "L", (), (), "n", state="ready", credits=8, slots=1))


def change_load(router: Router, id: str, change: int) -> None:
    """Change the number of requests at an executor."""
    member = router.members.get(id)
    assert member is not None
    member.own += change


def assign_request(router: Router) -> Assignment:
    return router.assign([GraphNode("think-m", "thinker", {}, "")], "m")


async def test_nobody_waits_where_no_planner_says_that_more_can_be_added(router: Router, room: WaitingRoom):
    assignment = assign_request(router)
    assert room.growth(assignment) is None

    room.handle_plan_event(PlanEvent(1, {"m": GROWTH}))
    assert room.growth(assignment) == GROWTH

    room.handle_plan_event(PlanEvent(2))
    assert room.growth(assignment) is None


async def test_what_a_silent_planner_has_said_is_forgotten(
    router: Router, room: WaitingRoom, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(waiting_room, "GROWTH_TTL_SECONDS", 0.01)
    room.handle_plan_event(PlanEvent(1, {"m": GROWTH}))

    async with asyncio.timeout(20):
        while router.growing:
            await asyncio.sleep(0.01)


async def test_requests_wait_in_order_and_go_to_an_executor_that_starts(router: Router, room: WaitingRoom):
    assignment, order = assign_request(router), list[int]()

    async def enter_room(number: int) -> None:
        await room.enter(assignment, GROWTH, 60.0)
        order.append(number)
        change_load(router, "one" if number < 2 else "two", 1)
        room.leave_entrance(assignment)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(enter_room(number))
            await asyncio.sleep(0)
        while room.waiting < 2:
            await asyncio.sleep(0.01)
        assert order == [0, 1]
        add_executor(router, "two")

    assert order == [0, 1, 2, 3]
    assert room.waiting == 0
    assert not room.has_room(assignment)


async def test_each_image_takes_a_row_of_what_encoders_batch():
    """An executor with all images keeps them. Executors that start later stay idle."""
    encoder_router = Router("g", ExecutorTable())
    options = {"E": DeploymentOption(("vision",), "encoder"), "L": DeploymentOption(("thinker",), "llm")}
    path = Path("E>L", {"vision": "E", "thinker": "L"}, 1.0)
    model = ModelPlan(
        "tiny", "", ("vision", "thinker"), {"image": "vision"}, options, {"vision+thinker": (path,)},
        tasks={"vision": "encode-m", "thinker": "think-m"},
    )  # fmt: skip
    encoder_router.plan = Plan(1, 0, 0.0, {"m": model})
    for id, option in (("e", "E"), ("l", "L")):
        component = ("vision",) if option == "E" else ("thinker",)
        encoder_router.members.handle_status(ExecutorStatus(id, "m", option, component, (), "n", "ready", 64, slots=4))
    room = WaitingRoom(encoder_router)
    images = [GraphNode("encode-m", "vision", {}, "") for _ in range(4)]
    assignment = encoder_router.assign(
        [*images, GraphNode("think-m", "thinker", {}, "", uses=tuple((number, "embedding") for number in range(4)))],
        "m",
    )
    encoder, thinker = encoder_router.members.get("e"), encoder_router.members.get("l")
    assert encoder is not None
    assert thinker is not None

    entry_count = 0
    while room.has_room(assignment):
        entry_count += 1
        for number in range(4):
            encoder.charge_work(300.0, first=number == 0)
        thinker.charge_work(32.0)

    assert entry_count == 2  # eight images: two batches of four
    assert thinker.own == 2  # and not eight requests, which would all wait for their images there
    for number in range(4):
        encoder.discharge_work(300.0, last=number == 3)
    assert room.has_room(assignment)


def test_rows_of_others_are_counted_as_ones_own_are():
    table = ExecutorTable()
    table.handle_status(ExecutorStatus("e", "m", "E", ("vision",), (), "n", "ready", 64, inflight=3, slots=4))
    entry = table.get("e")
    assert entry is not None
    assert entry.rows == 3.0

    for number in range(4):
        entry.charge_work(300.0, first=number == 0)

    assert entry.rows == 4.0 + 3 * 4.0


async def test_who_had_no_room_by_the_deadline_is_refused_and_leaves_the_queue(router: Router, room: WaitingRoom):
    change_load(router, "one", 2)

    with pytest.raises(Overloaded, match="no room"):
        await room.enter(assign_request(router), GROWTH, 0.05)

    assert room.waiting == 0
    change_load(router, "one", -1)
    await room.enter(assign_request(router), GROWTH, 0.05)


async def test_what_all_that_can_be_added_would_not_serve_in_time_is_refused_at_once(
    router: Router, room: WaitingRoom, monkeypatch: pytest.MonkeyPatch
):
    change_load(router, "one", 2)
    monkeypatch.setattr(room, "_drain_rate", lambda entries: 1 / 100)  # 100 s for one, and 32 s with what can be added

    with pytest.raises(Overloaded, match="32 s, and it has 30 s"):
        await room.enter(assign_request(router), GROWTH, 30.0)
    with pytest.raises(Overloaded, match="too many"):
        await room.enter(assign_request(router), ModelGrowth(1.0, 10.0), 60.0)
