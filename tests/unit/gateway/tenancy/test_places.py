"""Places at executors, counted by option: paths with room, planned shares over time, and reserved places."""

from collections import Counter

import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus.settings import GatewaySettings
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tenancy.admission import ExecutorPlaces, RequestClaim, find_choices
from omnibus_gateway.tenancy.fair_queue import FairQueue, QueueEntry
from tests.unit.gateway.tenancy.test_rate_limits import RateClock

TALK = ("think", "speak")
OPTIONS = {"T": ("thinker",), "S": ("vocoder",), "M": ("thinker", "vocoder")}


def make_router(slots: int = 8, **others: int) -> Router:
    """Return a router with options T (thinker alone) and M (with vocoder). M is planned for a quarter of requests."""
    options = {name: DeploymentOption(components=parts, service="llm") for name, parts in OPTIONS.items()}
    types = {
        "thinker": (Path("T", {"thinker": "T"}, 3.0), Path("M", {"thinker": "M"}, 1.0)),
        "thinker+vocoder": (
            Path("T>S", {"thinker": "T", "vocoder": "S"}, 3.0),
            Path("M", {"thinker": "M", "vocoder": "M"}, 1.0),
        ),
    }
    tasks = {"thinker": "think", "vocoder": "speak"}
    model = ModelPlan(
        family="f",
        checkpoint="",
        encoders={},
        components=("thinker", "vocoder"),
        tasks=tasks,
        options=options,
        types=types,
    )
    router = Router("g", ExecutorTable())
    router.plan = Plan(epoch=1, created=0.0, seed=1, models={"m": model})
    for name, parts in OPTIONS.items():
        status = ExecutorStatus(
            name,
            "m",
            name,
            parts,
            tuple(tasks[part] for part in parts),
            "n",
            "ready",
            64,
            slots=others.get(name, slots),
        )
        router.members.handle_status(status)
    return router


class Entrance:
    """A queue for the executors of ``make_router``."""

    def __init__(self, gateways: int = 1, **slots: int) -> None:
        self.places = ExecutorPlaces(GatewaySettings(), make_router(**slots), lambda: gateways, RateClock())
        self.queue = FairQueue(1000)

    def enter_request(self, tenant: str, *tasks: str, cost: float = 1.0) -> tuple[QueueEntry, RequestClaim]:
        nodes = [
            GraphNode(task, "", {}, "", tuple((source, "out") for source in range(at)))
            for at, task in enumerate(tasks or ("think",))
        ]
        claim = RequestClaim(self.places, tenant, find_choices(self.places, self.places.router.assign(nodes, "m")))
        return self.queue.enqueue(tenant, 1.0, cost, claim), claim

    def start_all(self) -> list[str]:
        """Return the tenants whose requests begin now."""
        return [turn.line.tenant for turn in iter(lambda: self.queue.start_next(0.0), None)]

    def end_turn(self, turn: QueueEntry) -> None:
        self.queue.finish_entry(turn)
        self.queue.settle_entry(turn, turn.cost)


def test_a_tenant_alone_has_all_places_of_all_paths():
    entrance = Entrance()
    for _ in range(40):
        entrance.enter_request("heavy")

    assert len(entrance.start_all()) == 16


def test_no_path_has_more_than_its_own_places():
    entrance = Entrance(M=2)
    claims = [entrance.enter_request("heavy")[1] for _ in range(40)]

    entrance.start_all()

    assert Counter(path for claim in claims for path in claim.paths.values()) == {"T": 8, "M": 2}


def test_a_tenant_with_nothing_at_work_begins_at_once_however_many_of_another_one_work():
    entrance = Entrance()
    for _ in range(40):
        entrance.enter_request("heavy")
    entrance.start_all()

    entrance.enter_request("light")

    assert entrance.start_all() == ["light"]


def test_a_spare_place_is_for_one_request_of_a_tenant():
    entrance = Entrance(M=1)
    for _ in range(40):
        entrance.enter_request("heavy", *TALK)
    entrance.start_all()
    for _ in range(4):
        entrance.enter_request("light", *TALK)

    assert entrance.start_all() == ["light"] * 2  # one on each path


def test_planned_shares_are_kept_while_there_is_room():
    entrance, path_counts = Entrance(), Counter[str]()
    for _ in range(400):
        turn, claim = entrance.enter_request("only")
        entrance.start_all()
        path_counts.update(claim.paths.values())
        entrance.end_turn(turn)

    assert path_counts["T"] == pytest.approx(300, abs=4)
    assert path_counts["M"] == pytest.approx(100, abs=4)


def test_what_a_full_path_missed_is_not_made_up_for_by_a_burst():
    entrance = Entrance()
    entries = [entrance.enter_request("heavy") for _ in range(16)]
    entrance.start_all()
    for turn, claim in entries:  # those of one path end, and those of the other do not
        if claim.paths["m"] == "M":
            entrance.end_turn(turn)
            entrance.enter_request("heavy")
            entrance.start_all()
    for turn, claim in entries:
        if claim.paths["m"] == "T":
            entrance.end_turn(turn)

    claims = [entrance.enter_request("heavy")[1] for _ in range(4)]
    entrance.start_all()

    assert Counter(claim.paths["m"] for claim in claims)["T"] <= 4


def test_paths_that_share_an_option_share_its_places():
    entrance = Entrance(M=1)
    for _ in range(4):
        entrance.enter_request("a", *TALK)
        entrance.enter_request("a")
    entrance.start_all()

    assert entrance.places._used["m", "T"] <= 8
    assert entrance.places._used["m", "M"] <= 1


def test_nobody_passes_one_that_waits_for_the_same_executor_and_others_pass_it_elsewhere():
    entrance = Entrance(S=1, M=1)
    speaking = [entrance.enter_request("a", *TALK) for _ in range(4)]  # T>S has one place, M one
    assert len(entrance.start_all()) == 2
    entrance.queue.settle_entry(speaking[0][0], 100.0)  # a has received much, so b and c come first

    entrance.enter_request("b", *TALK)
    entrance.enter_request("c")

    assert entrance.start_all() == ["b", "c"]  # b has the spare places; c has no running work at T


@pytest.mark.parametrize(("gateways", "places"), [(2, 4), (3, 3), (100, 1)])
def test_gateways_divide_places(gateways, places):
    entrance = Entrance(gateways=gateways, M=8)
    for _ in range(40):
        entrance.enter_request("heavy")

    assert len(entrance.start_all()) == 2 * places


def start_until(entrance: Entrance, now: float) -> dict[QueueEntry, float]:
    """Start requests at ``now`` and return their end times: a step of all takes one unit, and costs are in steps."""
    return {turn: now + turn.cost for turn in iter(lambda: entrance.queue.start_next(now), None)}


def test_no_answer_of_the_heavy_tenant_has_to_end_before_one_of_the_light_tenant():
    entrance, now = Entrance(), 0.0
    for _ in range(24):
        entrance.enter_request("heavy", cost=1000.0)
    ends = start_until(entrance, now)

    took = []
    for _ in range(30):
        turn, _ = entrance.enter_request("light", cost=4.0)
        ends |= start_until(entrance, now)
        took.append(ends.pop(turn) - now)
        now += 10.0
        entrance.end_turn(turn)

    assert took == [4.0] * 30
    assert min(ends.values()) > now  # none of them has ended
