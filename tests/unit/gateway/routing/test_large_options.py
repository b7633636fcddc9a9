"""Options with so many executors that a request compares a sample of them."""

import random
from collections import Counter

import msgspec
import pytest
from msgspec import UNSET

from omnibus.bus.messages import ExecutorStatus, NodeStatus
from omnibus.cluster.nodes import NodeDirectory
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.pools import KEY_EXECUTORS, MAX_COMPARED, SAMPLE_SIZE
from omnibus_gateway.routing.replicas import Nearness
from omnibus_gateway.routing.router import Router

MANY = 400
PER_NODE = 8
THINK = GraphNode("think", "thinker", {}, "")


def make_status(number: int, option: str = "L", **changes) -> ExecutorStatus:
    usual = ExecutorStatus(
        f"{option}{number}", "m", option, ("thinker",), ("think",), f"n{number // PER_NODE}", "ready", 64, keeps=True
    )
    return msgspec.structs.replace(usual, **changes)


def make_router(gateway: str = "g", option: str = "L", nodes: NodeDirectory | None = None, credits: int = 0) -> Router:
    """Return a router that knows ``MANY`` executors of ``option``: L for prompts, E for images."""
    members = ExecutorTable()
    router = Router(gateway, members, Nearness("n3", members, nodes, 0.5) if nodes is not None else None)
    encoders = {"image": "vision"} if option == "E" else {}
    used = "vision" if option == "E" else "thinker"
    model = ModelPlan(
        "f", "", (used,), encoders, {option: DeploymentOption((used,), "llm", credits=credits or UNSET)}, {used: (Path(option, {used: option}, 1),)},
        tasks={used: "think"},
    )  # fmt: skip
    router.plan = Plan(1, 0, 1000.0, {"m": model})
    for number in range(MANY):
        members.handle_status(make_status(number, option))
    return router


def find_executor(
    router: Router, key: str = "", digest: str = "", exclude: frozenset[str] = frozenset()
) -> ExecutorEntry:
    """Return the executor of a request with the conversation ``key``, or with the image ``digest``."""
    node = GraphNode("think", "vision", {}, digest) if digest else THINK
    assignment = router.assign([node])
    ticket = router.issue_ticket(assignment.model, assignment.kind, cache_key=key)
    member = router.members.get(router.route(assignment, ticket, exclude).executors[0])
    assert member is not None
    return member


def test_requests_of_equal_work_are_spread_nearly_evenly():
    router = make_router()

    for _ in range(8 * MANY):
        find_executor(router).charge_work(100)

    counts = Counter(
        member.own for member in map(router.members.get, (f"L{number}" for number in range(MANY))) if member
    )
    assert max(counts) <= 10
    assert min(counts) >= 6


def test_slow_executors_get_less_than_fast_ones():
    router, dice = make_router(), random.Random(7)
    sent: Counter[bool] = Counter()
    running: list[tuple[int, ExecutorEntry]] = []
    for now in range(6000):
        for _, member in [each for each in running if each[0] <= now]:
            member.discharge_work(100)
        running = [each for each in running if each[0] > now]
        member = find_executor(router)
        is_slow = int(member.status.id[1:]) % 2 == 0
        sent[is_slow] += 1
        member.charge_work(100)
        running.append((now + dice.randint(400, 600) * (4 if is_slow else 1), member))

    assert sent[False] > 1.5 * sent[True]


def test_silent_draining_and_excluded_executors_get_nothing():
    router = make_router()
    left = [f"L{number}" for number in range(0, MANY, 40)]
    for number in range(MANY):
        if f"L{number}" not in left:
            router.members.handle_status(make_status(number, state="draining"))
    silent = router.members.get(left[0])
    assert silent is not None
    silent.seen -= 5.0

    chosen = {find_executor(router, exclude=frozenset(left[1:3])).status.id for _ in range(200)}

    assert chosen == set(left[3:])


def test_executors_of_the_planned_origin_get_all_requests_if_there_are_some():
    router = make_router()
    assert router.plan is not None
    origin = router.plan.models["m"].option_origin("L")
    for number in range(MANY):
        router.members.handle_status(make_status(number, origin=origin if number < 3 else "other"))

    assert {find_executor(router).status.id for _ in range(100)} == {"L0", "L1", "L2"}


def test_the_last_executors_with_credit_are_found():
    router = make_router(credits=2)
    for number in range(MANY):
        member = router.members.get(f"L{number}")
        assert member is not None
        for _ in range(2 if number else 1):
            member.charge_work(1)

    assert {find_executor(router).status.id for _ in range(20)} == {"L0"}
    find_executor(router).charge_work(1)
    full = find_executor(router)  # its rejection is that of ``check_credits``
    assert full.available_credit == 0


def test_a_conversation_stays_and_gateways_agree_on_its_executor():
    first, second = make_router("g1"), make_router("g2")
    executors = {f"talk {number}": find_executor(first, f"talk {number}").status.id for number in range(100)}

    assert {key: find_executor(first, key).status.id for key in executors} == executors
    assert {key: find_executor(second, key).status.id for key in executors} == executors
    assert len(set(executors.values())) > 70


def test_an_image_stays_and_gateways_agree_on_its_encoder():
    first, second = make_router("g1", "E"), make_router("g2", "E")
    executors = {f"{number:x}": find_executor(first, digest=f"{number:x}").status.id for number in range(1, 100)}

    assert {key: find_executor(first, digest=key).status.id for key in executors} == executors
    assert {key: find_executor(second, digest=key).status.id for key in executors} == executors


def test_executors_on_the_gateways_node_are_preferred_among_equals():
    router = make_router(nodes=NodeDirectory())

    nodes = {find_executor(router).status.node for _ in range(50)}

    assert nodes == {"n3"}


def test_a_draining_node_gets_nothing_even_if_it_is_near():
    directory = NodeDirectory()
    router = make_router(nodes=directory)
    directory.handle_status(NodeStatus("n3", "127.0.0.1", 1, 1, state="draining"))

    assert "n3" not in {find_executor(router).status.node for _ in range(50)}


def test_sums_over_an_option_are_those_of_its_executors():
    router, dice = make_router(), random.Random(3)
    held: list[ExecutorEntry] = []
    for _ in range(3000):
        number = dice.randrange(MANY)
        router.members.handle_status(make_status(number, inflight=dice.choice((0, 0, 3, 9))))
        member = find_executor(router)
        member.charge_work(7)
        held.append(member)
        if dice.random() < 0.5:
            held.pop(dice.randrange(len(held))).discharge_work(7)
        if dice.random() < 0.01:
            router.members.remove(f"L{number}")
    entries = [entry for status in router.members.statuses() if (entry := router.members.get(status.id))]

    pool = entries[0].pool

    assert pool.outstanding == sum(entry.outstanding for entry in entries)
    assert pool.foreign == sum(entry.foreign for entry in entries)
    assert router.members.option_work("m", "L") == pool.outstanding + pool.foreign * pool.mean_work


@pytest.mark.parametrize("count", [MAX_COMPARED, MAX_COMPARED + 1, 1000])
def test_a_sample_has_each_executor_equally_often(count: int):
    members = ExecutorTable()
    for number in range(count):
        members.handle_status(make_status(number))
    drawn: Counter[str] = Counter()
    for _ in range(200):
        sample = members.comparable_executors("m", "L")
        assert (
            len(sample) == len({each.status.id for each in sample}) == (SAMPLE_SIZE if count > MAX_COMPARED else count)
        )
        drawn.update(each.status.id for each in sample)

    if count > MAX_COMPARED:
        expected = 200 * SAMPLE_SIZE / count
        assert max(drawn.values()) < 4 * expected + 4
        assert len(drawn) > 0.9 * count


def test_a_key_names_few_executors():
    pool = make_router().members.comparable_executors("m", "L")[0].pool

    assert len(pool.key_members("key")) == KEY_EXECUTORS
    assert pool.key_members("key") == pool.key_members("key") != pool.key_members("other")
