"""Restarts wait longer each time, are counted in a window, and begin anew after a healthy life."""

from omnibus.process.backoff import Backoff, RestartPolicy


def test_pauses_grow_up_to_the_longest_and_never_end():
    backoff = Backoff(RestartPolicy(first=1, factor=2, longest=5), clock=lambda: 0.0)

    assert [backoff.next_delay() for _ in range(5)] == [1, 2, 4, 5, 5]
    assert {backoff.next_delay() for _ in range(5000)} == {5}


def test_more_restarts_than_the_limit_exhaust_it():
    backoff = Backoff(RestartPolicy(limit=2), clock=lambda: 0.0)

    found = []
    for _ in range(3):
        backoff.next_delay()
        found.append(backoff.exhausted)

    assert found == [False, False, True]


def test_old_restarts_do_not_count_for_the_limit():
    now = 0.0
    backoff = Backoff(RestartPolicy(limit=2, window=60), clock=lambda: now)
    for _ in range(3):
        backoff.next_delay()

    now = 60.0
    backoff.next_delay()

    assert not backoff.exhausted


def test_pauses_begin_anew_after_a_healthy_life_and_not_after_a_long_pause():
    now = 0.0
    backoff = Backoff(RestartPolicy(first=1, longest=30, healthy=10), clock=lambda: now)
    assert [backoff.next_delay(lived=9.9) for _ in range(3)] == [1, 2, 4]

    now = 1000.0

    assert backoff.next_delay(lived=0.1) == 8
    assert [backoff.next_delay(lived=10.0), backoff.next_delay(lived=0.0)] == [1, 2]
