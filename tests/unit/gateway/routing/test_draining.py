"""Admission by time: requests end in time, executors stay full, and rejections report when there is room."""

import bisect
import math
import random
from collections.abc import Callable
from functools import partial

import pytest

from omnibus.errors import Overloaded
from omnibus_gateway.routing.draining import DrainRate, check_queue_time
from tests.unit.gateway.overloaded import OverloadExecutor, OverloadSimulation, compute_percentile


def make_constant(seconds: float) -> Callable[[int], float]:
    return lambda _: seconds


def make_slower(seconds: float, by: float) -> Callable[[int], float]:
    """Return a duration that grows by this fraction for each further request."""
    return lambda beside: seconds * (1 + by * (beside - 1))


EXECUTORS = {
    "slow, one at a time": lambda: OverloadExecutor(1, make_constant(2.0)),
    "slow, 4 side by side": lambda: OverloadExecutor(4, make_constant(4.0)),
    "slow, 8 in step": lambda: OverloadExecutor(8, make_constant(6.0), in_step=True),
    "slow, batches cost": lambda: OverloadExecutor(16, make_slower(1.0, 0.2)),
    "fast, one at a time": lambda: OverloadExecutor(1, make_constant(0.01)),
    "fast, 32 side by side": lambda: OverloadExecutor(32, make_constant(0.05)),
    "fast, 8 in step": lambda: OverloadExecutor(8, make_constant(0.03), in_step=True),
    "fast, batches cost": lambda: OverloadExecutor(16, make_slower(0.02, 0.1)),
}


#: Cases in which many requests end at once, and later ones have missed the batch.
BATCHES = ("slow, 8 in step", "fast, 8 in step", "fast, 32 side by side")


def overload_world(
    make: Callable[[], OverloadExecutor], gateways: int = 1, queue_seconds: float = 0.0
) -> tuple[OverloadSimulation, float]:
    """Return a world under five times its capacity, and the overload's start. A serial warm-up comes first."""
    executor = make()
    world = OverloadSimulation(executor, 6 * executor.seconds(executor.slots), gateways, queue_seconds)
    world.one_by_one(10 * gateways)
    begin, lasts = world.now, 75 * executor.seconds(executor.slots)
    world.load(5 * executor.capacity, begin, lasts)
    world.run(begin + lasts)
    return world, begin


def patiently_overloaded(make: Callable[[], OverloadExecutor]) -> tuple[OverloadSimulation, float]:
    """Return a world with a queue of up to 20 services. It is under five times its capacity for 120 of them.

    Also returns the time by which the queue from before the overload was detected has been served.
    """
    executor = make()
    full = executor.seconds(executor.slots)
    world = OverloadSimulation(executor, 120 * full, queue_seconds=20 * full)
    world.one_by_one(10)
    begin = world.now
    world.load(5 * executor.capacity, begin, 120 * full)
    world.run(begin + 120 * full)
    return world, begin + 40 * full


def learning_seconds(world: OverloadSimulation) -> float:
    """Return the seconds after which a gateway has learned an executor's behaviour. That is its batch size and its load
    from others.
    """
    return 20 * world.executor.seconds(world.executor.slots)


@pytest.mark.parametrize("gateways", [1, 2, 3])
@pytest.mark.parametrize("kind", EXECUTORS)
def test_what_is_admitted_ends_in_time_and_the_executor_stays_full(kind: str, gateways: int):
    world, begin = overload_world(EXECUTORS[kind], gateways)

    duration = world.now - begin
    goodput = sum(1 for at in world.outcome.ended if at > begin + duration / 3) / (duration * 2 / 3)
    assert world.late(begin if gateways == 1 else begin + learning_seconds(world)) == 0
    assert world.outcome.refused > len(world.outcome.served)
    assert goodput >= (0.9 if world.executor.in_step else 0.95) * world.executor.capacity


@pytest.mark.parametrize(("kind", "most"), [(kind, 3.0 if kind in BATCHES else 2.2) for kind in EXECUTORS])
def test_nobody_waits_much_longer_than_it_is_served(kind: str, most: float):
    world, begin = overload_world(EXECUTORS[kind])

    full = world.executor.seconds(world.executor.slots)
    assert compute_percentile(world.took(begin + learning_seconds(world)), 0.99) <= most * full


@pytest.mark.parametrize(("kind", "most"), [(kind, 3.0 if kind in BATCHES else 2.2) for kind in EXECUTORS])
def test_a_queue_that_grew_too_long_is_held_short_while_too_many_come(kind: str, most: float):
    world, since = patiently_overloaded(EXECUTORS[kind])

    full = world.executor.seconds(world.executor.slots)
    before = compute_percentile([took for came, took in world.outcome.served if came < since], 0.99)
    goodput = sum(1 for at in world.outcome.ended if at > since) / (world.now - since)
    assert before > 4 * full  # many may come at once
    assert compute_percentile(world.took(since), 0.99) <= most * full
    assert goodput >= (0.9 if world.executor.in_step else 0.95) * world.executor.capacity


@pytest.mark.parametrize("kind", EXECUTORS)
def test_an_overload_is_over_once_nobody_waits(kind: str):
    world, _ = patiently_overloaded(EXECUTORS[kind])
    executor = world.executor
    full = executor.seconds(executor.slots)
    world.run()  # the existing requests
    refusals = world.outcome.refused
    world.load(0.5 * executor.capacity, world.now, 20 * full)
    world.run()
    world.run(world.now + 5 * full)

    for _ in range(5 * executor.slots):  # as many at once as before
        world.come(0)
    world.run()

    assert world.outcome.refused == refusals


def test_clients_that_wait_for_their_answers_are_no_overload():
    world = OverloadSimulation(OverloadExecutor(1, make_constant(1.0)), 120.0, queue_seconds=30.0)
    world.one_by_one(10)
    for _ in range(20):
        world.come(0)
    for at in range(1, 300):  # each client sends its next request after its answer
        world.at(world.now + at + 0.01, partial(world.come, 0))
    world.run()

    assert world.outcome.refused == 0


@pytest.mark.parametrize(
    ("deadline", "queue_seconds", "reason"),
    [
        (600.0, 30.0, r"would queue for 30\.. s, longer than the 1\.0 s that engines take"),
        (20.0, 60.0, r"would take 1[67]\.. s, and it has 20\.0 s"),
    ],
    ids=["queue", "deadline"],
)
def test_refusals_say_which_time_is_too_short(deadline: float, queue_seconds: float, reason: str):
    world = OverloadSimulation(OverloadExecutor(1, make_constant(1.0)), deadline, queue_seconds=queue_seconds)
    world.one_by_one(10)

    with pytest.raises(Overloaded, match=reason):
        for _ in range(40):
            check_queue_time(world.drains, deadline, queue_seconds)
            world.come(0)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_refusals_say_when_there_is_room(kind: str):
    world, begin = overload_world(EXECUTORS[kind])
    full = world.executor.seconds(world.executor.slots)

    errors = []
    for at, promise in world.outcome.promises:
        place = bisect.bisect_right(world.outcome.open_at, at)
        if at > begin + learning_seconds(world) and place < len(world.outcome.open_at):
            errors.append(abs(promise - (world.outcome.open_at[place] - at)) / full)

    assert compute_percentile(errors, 0.9) <= 0.5


def test_nothing_is_refused_where_there_is_room():
    world = OverloadSimulation(OverloadExecutor(8, make_constant(1.0)), 30.0, queue_seconds=10.0)
    world.load(0.5 * world.executor.capacity, 0.0, 300.0)
    world.run()

    assert world.outcome.refused == 0


@pytest.mark.parametrize("slots", [4, 64, 512])
def test_a_gateway_that_has_just_begun_refuses_nothing_where_there_is_room(slots: int):
    chance = random.Random(slots)
    world = OverloadSimulation(OverloadExecutor(slots, lambda _: chance.uniform(5.0, 12.0)), 60.0, queue_seconds=10.0)
    for _ in range(slots // 2):  # the streams of a dead gateway, all at once
        world.come(0)
    world.load(0.4 * slots / 12.0, 0.0, 60.0)
    world.run()

    assert world.outcome.refused == 0


@pytest.mark.parametrize("seconds", [1.0, 20.0])
def test_many_at_once_after_a_few_are_not_refused_where_there_is_room(seconds: float):
    chance = random.Random(1)
    world = OverloadSimulation(
        OverloadExecutor(512, lambda _: seconds * chance.uniform(0.8, 1.2)), 120.0, queue_seconds=10.0
    )
    for _ in range(5):
        for _ in range(4):
            world.come(0)
        world.run()
    for _ in range(200):
        world.come(0)
    world.load(200 / seconds, world.now, 10 * seconds)
    world.run()

    assert world.outcome.refused == 0


@pytest.mark.parametrize("kind", EXECUTORS)
def test_a_gateway_that_has_just_begun_admits_nothing_that_ends_late(kind: str):
    executor = EXECUTORS[kind]()
    full = executor.seconds(executor.slots)
    world = OverloadSimulation(executor, 6 * full)
    world.load(5 * executor.capacity, 0.0, 75 * full)
    world.run(75 * full)

    assert world.late(since=6 * full) == 0


def test_a_burst_is_not_refused_by_what_was_measured_one_by_one_where_requests_share_batches():
    now = 0.0
    drain = DrainRate(lambda: now, slots=16)
    for number in range(20):
        drain.add_invocation(str(number))
        now += 10.0
        drain.finish_invocation(str(number), 10.0)

    for number in range(16):
        check_queue_time([drain], 30.0, 10.0)
        drain.add_invocation(f"burst {number}")

    with pytest.raises(Overloaded):
        for number in range(64):
            check_queue_time([drain], 30.0, 10.0)
            drain.add_invocation(f"beyond {number}")


def test_an_executor_that_was_slow_gets_the_next_request_once_it_has_none():
    now = 0.0
    drain = DrainRate(lambda: now)
    for number in range(8):
        drain.add_invocation(str(number))
    for number in range(8):
        now += 25.0  # a machine that had no time for it
        drain.finish_invocation(str(number), 1.0)

    check_queue_time([drain], 30.0, 10.0)
    drain.add_invocation("next")
    with pytest.raises(Overloaded) as caught:
        check_queue_time([drain], 30.0, 10.0)

    assert caught.value.retry_after > 0


def test_clients_that_leave_do_not_make_an_executor_seem_slow():
    now = 0.0
    drain = DrainRate(lambda: now)
    for number in range(20):
        drain.add_invocation(str(number))
        now += 0.1
        drain.finish_invocation(str(number), 0.1)

    for number in range(50):
        drain.add_invocation(f"left {number}")
        now += 3.0
        drain.drop_invocation(f"left {number}")

    for number in range(8):
        check_queue_time([drain], 3.0, 1.0)
        drain.add_invocation(f"new {number}")


def test_before_anything_is_measured_all_is_admitted():
    drain = DrainRate(lambda: 0.0)
    for number in range(1000):
        check_queue_time([drain], 0.001, 0.0)
        drain.add_invocation(str(number))


def test_an_executor_that_finishes_nothing_gets_no_more_than_it_could_end():
    now = 0.0
    drain = DrainRate(lambda: now)
    admission_count = 0
    for tick in range(600):
        now = tick * 0.1
        try:
            check_queue_time([drain], 30.0, 10.0)
        except Overloaded:
            continue
        drain.add_invocation(str(tick))
        admission_count += 1

    assert admission_count < 60


def test_an_executor_that_became_slow_gets_less_before_anything_is_late():
    executor = OverloadExecutor(1, make_constant(0.1))
    world = OverloadSimulation(executor, 3.0, queue_seconds=10.0)
    world.one_by_one(20)
    world.load(20.0, world.now, 10.0)
    world.run(world.now + 10.0)
    before = len(world.drains[0]._started)

    executor.seconds, change_time = make_constant(0.4), world.now
    world.load(20.0, world.now, 60.0, seed=1)
    world.run()

    assert before > 15
    assert world.late(since=change_time + 5.0) == 0
    assert len(world.outcome.ended) > 0.9 * 60.0 / 0.4


def test_the_slowest_stage_decides():
    now = 0.0
    fast, slow = DrainRate(lambda: now), DrainRate(lambda: now)
    for number in range(20):
        for drain, seconds in ((fast, 0.01), (slow, 1.0)):
            drain.add_invocation(str(number))
            now += seconds
            drain.finish_invocation(str(number), seconds)
    for number in range(12):
        fast.add_invocation(f"n-{number}")
        slow.add_invocation(f"n-{number}")

    check_queue_time([fast], 10.0, 100.0)
    with pytest.raises(Overloaded) as caught:
        check_queue_time([fast, slow], 10.0, 100.0)

    assert caught.value.retry_after == pytest.approx(1.0 + 13.0 - 8.0 - 1.0, abs=1.5)


def test_what_was_dropped_is_no_completion():
    now = 0.0
    drain = DrainRate(lambda: now)
    for number in range(10):
        drain.add_invocation(str(number))
        now += 1.0
        drain.drop_invocation(str(number))

    assert not drain.measured
    assert drain.rate == math.inf
    drain.finish_invocation("never sent", 1.0)
    assert not drain.measured


def test_what_is_at_most_is_at_least_what_is_predicted():
    """Otherwise a request that waits too long would be admitted unchecked."""
    rng = random.Random(3)
    check_count = 0
    for _ in range(200):
        now = [0.0]
        drain = DrainRate(lambda now=now: now[0], slots=rng.choice([0, 1, 8]))  # type: ignore[misc]
        present: list[str] = []
        for number in range(rng.randint(1, 60)):
            now[0] += rng.expovariate(1 / rng.choice([0.01, 1.0]))
            if present and rng.random() < 0.5:
                drain.finish_invocation(present.pop(rng.randrange(len(present))), rng.choice([0.0, 0.5]))
            else:
                present.append(str(number))
                drain.add_invocation(present[-1])
        now[0] += rng.choice([0.0, 10.0])
        check_count += drain.measured
        assert drain.most_total >= max(drain.total, drain.queued_seconds) * (1 - 1e-9)
    assert check_count > 50
