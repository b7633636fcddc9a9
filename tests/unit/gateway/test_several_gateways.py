"""Several gateways: each counts its own requests, and heartbeats report the others'."""

import random
from collections import Counter, deque

import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute, Router

PATHS = (Path("L", {"thinker": "L"}, 70), Path("M", {"thinker": "M"}, 30))
THINK = [GraphNode("think", "thinker", {}, "")]


class RouterCluster:
    """Executors of option L, and gateways that receive their heartbeats."""

    def __init__(self, replicas: int, *gateways: str) -> None:
        self.inflight = {f"l{number}": 0 for number in range(replicas)}
        options = {"L": DeploymentOption(("thinker",), "llm"), "M": DeploymentOption(("thinker",), "llm")}
        tasks = {"thinker": "think"}
        model = ModelPlan("f", "", ("thinker",), {}, options, {"thinker": PATHS}, tasks=tasks)
        self.routers = [Router(gateway, ExecutorTable()) for gateway in gateways]
        self.sent: Counter[str] = Counter()
        for router in self.routers:
            router.plan = Plan(1, 0, 1000.0, {"m": model})
        self.beat()

    def beat(self, count: int = 1) -> None:
        for _ in range(count):
            for id, inflight in self.inflight.items():
                status = ExecutorStatus(id, "m", "L", ("thinker",), ("think",), "n", "ready", 99, inflight=inflight)
                for router in self.routers:
                    router.members.handle_status(status)

    def route(self, router: Router, pinned: str = "L") -> ExecutorRoute:
        assignment = router.assign(THINK)
        return router.route(assignment, router.issue_ticket(assignment.model, assignment.kind), pinned=pinned)

    def send(self, router: Router, work: int = 100) -> ExecutorEntry:
        """Send one invocation and return its executor."""
        member = router.members.get(self.route(router).executors[0])
        assert member is not None
        member.charge_work(work)
        self.inflight[member.status.id] += 1
        self.sent[member.status.id] += 1
        return member

    def done(self, member: ExecutorEntry, work: int = 100) -> None:
        member.discharge_work(work)
        self.inflight[member.status.id] -= 1


def test_equals_take_turns():
    there = RouterCluster(3, "g")

    for _ in range(300):
        there.done(there.send(there.routers[0]))

    assert there.sent == {"l0": 100, "l1": 100, "l2": 100}


def test_idle_gateways_do_not_all_begin_with_the_same_replica():
    there = RouterCluster(4, *(f"gateway-{number}" for number in range(40)))

    for router in there.routers:
        there.send(router)

    assert len(there.sent) == 4
    assert max(there.sent.values()) < 20


@pytest.mark.parametrize("running", [1, 7, 40], ids=["idle", "some", "busy"])
def test_two_gateways_load_their_replicas_evenly(running: int):
    there = RouterCluster(3, "one", "two")
    dice = random.Random(running)
    out: deque[tuple[ExecutorEntry, int]] = deque()

    for number in range(3000):
        work = dice.choice([10, 100, 400])
        out.append((there.send(dice.choice(there.routers), work), work))
        while len(out) > running:
            there.done(*out.popleft())
        if number % 25 == 0:
            there.beat()

    assert sum(there.sent.values()) == 3000
    assert all(abs(count - 1000) <= 100 for count in there.sent.values()), there.sent


def test_a_replica_that_another_gateway_loads_is_avoided():
    there = RouterCluster(2, "mine", "theirs")
    own_router, other_router = there.routers
    busy = other_router.members.get("l0")
    assert busy is not None
    for _ in range(20):
        busy.charge_work(100)
        there.inflight["l0"] += 1
    there.done(there.send(own_router))  # so that it has the size of an invocation
    there.sent.clear()

    there.beat(20)
    for _ in range(10):
        there.send(own_router)

    assert there.sent == {"l1": 10}


def test_what_others_have_finished_counts_no_more():
    there = RouterCluster(2, "mine")
    there.inflight["l0"] = 20
    there.beat(20)
    there.inflight["l0"] = 0

    there.beat(60)
    for _ in range(10):
        there.send(there.routers[0])

    assert there.sent == {"l0": 5, "l1": 5}


def test_ones_own_work_is_not_taken_for_others():
    there = RouterCluster(1, "mine")
    for _ in range(5):
        member = there.send(there.routers[0])

    there.beat(10)

    assert (member.own, member.foreign) == (5, 0.0)


def test_a_gateway_that_begins_believes_the_first_heartbeat():
    there = RouterCluster(0, "late")
    there.inflight = {"l0": 0, "l1": 6}
    there.beat()

    for _ in range(6):
        there.send(there.routers[0])

    assert there.sent == {"l0": 6}


def test_one_heartbeat_does_not_make_all_gateways_leave_a_replica():
    there = RouterCluster(2, "mine")
    for _ in range(4):
        there.send(there.routers[0])
    there.sent.clear()

    there.inflight["l0"] += 4  # as long as a fast stage takes
    there.beat()
    for _ in range(10):
        there.send(there.routers[0])

    assert there.sent["l0"] >= 4


def test_the_paths_of_all_gateways_together_have_their_shares():
    there = RouterCluster(1, "one", "two", "three")
    for router in there.routers:
        router.members.handle_status(ExecutorStatus("m0", "m", "M", ("thinker",), ("think",), "n", "ready", 99))

    path_counts = Counter(there.route(router, pinned="").path for _ in range(1000) for router in there.routers)

    assert abs(path_counts["L"] - 2100) <= 5
    assert path_counts["L"] + path_counts["M"] == 3000
