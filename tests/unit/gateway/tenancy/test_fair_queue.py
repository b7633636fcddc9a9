"""Turns among tenants, in simulated time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.errors import Overloaded
from omnibus_gateway.tenancy.fair_queue import MAX_RETRY_AFTER_SECONDS, MIN_RETRY_AFTER_SECONDS, WORKING, FairQueue
from tests.unit.gateway.tenancy.crowd import SLOTS, Ask, CountedQueue, find_p99, is_waiting, make_even_asks, play_crowd

SECONDS = 60.0


def test_at_ten_to_one_above_capacity_both_get_their_share_and_the_light_ones_p99_stays_within_twice():
    # One GPU serves ten requests a second, and twenty-two arrive.
    light, heavy = make_even_asks("light", 2.0, SECONDS), make_even_asks("heavy", 20.0, SECONDS)

    alone = play_crowd(light)
    results = play_crowd([*light, *heavy], until=SECONDS)

    assert not results.refused["light"]
    assert results.given["light"] == pytest.approx(2.0 * SECONDS * 0.1, rel=0.02)
    assert results.given["heavy"] == pytest.approx(8.0 * SECONDS * 0.1, rel=0.02)
    assert find_p99(results.took["light"]) <= 2 * find_p99(alone.took["light"])
    assert results.refused["heavy"] > 0


def test_without_turns_the_light_one_waits_behind_the_heavy_one():
    light, heavy = make_even_asks("light", 2.0, SECONDS), make_even_asks("heavy", 20.0, SECONDS)
    as_one = [ask._replace(tenant="all") for ask in (*light, *heavy)]

    alone, together = play_crowd(light), play_crowd(as_one)

    assert find_p99(together.took["all"]) > 5 * find_p99(alone.took["light"])


def test_when_both_ask_for_more_than_there_is_each_gets_half():
    results = play_crowd(
        [*make_even_asks("light", 20.0, SECONDS), *make_even_asks("heavy", 200.0, SECONDS)], until=SECONDS
    )

    assert results.given["light"] == pytest.approx(results.given["heavy"], rel=0.05)
    assert results.given["light"] + results.given["heavy"] == pytest.approx(SECONDS, rel=0.05)


def test_weights_divide_what_there_is():
    results = play_crowd(
        [*make_even_asks("gold", 100.0, SECONDS), *make_even_asks("plain", 100.0, SECONDS)],
        {"gold": 3.0, "plain": 1.0},
        until=SECONDS,
    )

    assert results.given["gold"] / results.given["plain"] == pytest.approx(3.0, rel=0.05)


def test_it_is_gpu_seconds_that_are_shared_and_not_requests():
    large = make_even_asks("large", 20.0, SECONDS, costs=1.0)
    small = make_even_asks("small", 200.0, SECONDS, costs=0.02)

    results = play_crowd([*large, *small], until=SECONDS)

    assert results.given["large"] == pytest.approx(results.given["small"], rel=0.15)
    assert len(results.took["small"]) > 10 * len(results.took["large"])


def test_who_does_not_wait_for_a_moment_has_still_used_what_it_used():
    queue = CountedQueue(10)
    heavy = queue.add("heavy", 1.0, 10.0, 1)
    queue.start_next(0.0)
    queue.add("light", 1.0, 1.0, 1)
    queue.finish_turn(heavy, 10.0)  # and heavy has no more requests here

    queue.add("heavy", 1.0, 10.0, 1)

    assert queue.tenant_mark("heavy") == 10.0
    turn = queue.start_next(10.0)
    assert turn is not None
    assert turn.line.tenant == "light"


def test_who_says_less_than_it_costs_gains_nothing_by_it():
    honest = make_even_asks("honest", 20.0, SECONDS)
    liar = make_even_asks("liar", 20.0, SECONDS, expected_cost=0.001)

    results = play_crowd([*honest, *liar], until=SECONDS)

    assert results.given["liar"] == pytest.approx(results.given["honest"], rel=0.1)


def test_whose_requests_cost_less_than_expected_does_not_hold_up_the_others():
    light = make_even_asks("light", 2.0, SECONDS)
    heavy = make_even_asks("heavy", 20.0, SECONDS, expected_cost=1.0)  # ten times what they cost

    alone, results = play_crowd(light), play_crowd([*light, *heavy])

    assert find_p99(results.took["light"]) <= 2 * find_p99(alone.took["light"])


def test_a_pause_earns_nothing():
    fair = CountedQueue(1000)
    steady = make_even_asks("steady", 20.0, 40.0)
    back = [ask._replace(at=ask.at + 20.0) for ask in make_even_asks("back", 20.0, 20.0)]

    play_crowd([*steady, *[ask for ask in back if ask.at < 20.0]], fair=fair, until=20.0, queue=1000)
    before = fair.tenant_mark("steady")
    entry = fair.add("back", 1.0, 0.1, SLOTS)

    assert entry.line.mark >= before - 0.1 * SLOTS


def test_nobody_who_waits_is_further_behind_than_what_is_at_work():
    behind: list[float] = []
    ever = set()

    def record_marks(fair: FairQueue) -> None:
        marks = [fair.tenant_mark(tenant) for tenant in ("a", "b") if fair._waiting.get(tenant)]
        ever.add(len(marks))
        if len(marks) == 2:
            behind.append(abs(marks[0] - marks[1]))

    play_crowd(
        [*make_even_asks("a", 30.0, 20.0, costs=0.3), *make_even_asks("b", 90.0, 20.0, costs=0.05)], each=record_marks
    )

    assert 2 in ever
    assert max(behind) <= 0.3 * SLOTS + 0.3


def test_room_that_nobody_else_wants_is_given_away():
    only = play_crowd(make_even_asks("only", 100.0, SECONDS), until=SECONDS)

    assert only.given["only"] == pytest.approx(SECONDS, rel=0.05)


def test_a_full_queue_is_refused_and_says_when_to_come_again():
    fair = CountedQueue(2)
    turns = [fair.add("a", 1.0, 1.0, 1) for _ in range(2)]
    began = fair.start_next(10.0)
    fair.add("a", 1.0, 1.0, 1)

    with pytest.raises(Overloaded) as caught:
        fair.add("a", 1.0, 1.0, 1)

    assert (began is turns[0], began.state) == (True, WORKING)
    assert MIN_RETRY_AFTER_SECONDS <= caught.value.retry_after <= MAX_RETRY_AFTER_SECONDS
    assert is_waiting(fair.add("b", 1.0, 1.0, 1))  # other tenants have separate queues


def test_who_is_patient_waits_however_many_do():
    fair = CountedQueue(0)

    assert is_waiting(fair.add("a", 1.0, 1.0, 1, patient=True))


def test_who_leaves_takes_no_turn():
    fair = CountedQueue(10)
    first, second = fair.add("a", 1.0, 1.0, 1), fair.add("a", 1.0, 1.0, 1)

    fair.remove_waiting(first)

    assert fair.start_next(0.0) is second
    assert (fair.waiting, fair.working) == (0, 1)


def test_what_is_over_twice_is_counted_once():
    fair = CountedQueue(10)
    turn = fair.add("a", 1.0, 1.0, 1)
    fair.start_next(0.0)

    fair.finish_turn(turn, 3.0)
    fair.finish_turn(turn, 3.0)
    fair.remove_waiting(turn)

    assert (fair.working, fair.tenant_mark("a")) == (0, 3.0)


def test_tenants_that_are_gone_are_forgotten():
    fair = CountedQueue(10)
    for number in range(3000):
        turn = fair.add(f"t{number}", 1.0, 1.0, 1)
        fair.start_next(0.0)
        fair.finish_turn(turn, 0.0)

    assert len(fair._lines) < 2000


asks = st.lists(
    st.builds(
        Ask,
        st.floats(0, 5),
        st.sampled_from("abc"),
        st.floats(0.01, 1),
        st.floats(0.01, 1),
    ),
    max_size=60,
)


@given(asks, st.integers(1, 6), st.integers(1, 20))
@settings(deadline=None, max_examples=100)
def test_every_request_is_answered_or_refused_and_nothing_is_left(crowd, slots, queue):
    fair = CountedQueue(queue)
    most: list[int] = []

    results = play_crowd(crowd, slots=slots, fair=fair, each=lambda each: most.append(each.working))

    assert sum(map(len, results.took.values())) + sum(results.refused.values()) == len(crowd)
    assert (fair.waiting, fair.working) == (0, 0)
    assert max(most, default=0) <= slots
