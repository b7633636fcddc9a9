"""Restarts wait longer each time, are counted in a window, and end."""

from omnibus.up.backoff import Backoff, RestartPolicy


def test_pauses_grow_up_to_the_longest():
    backoff = Backoff(RestartPolicy(first=1, factor=2, longest=5, limit=5), clock=lambda: 0.0)

    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 5, 5]


def test_the_limit_ends_it():
    backoff = Backoff(RestartPolicy(limit=2), clock=lambda: 0.0)

    assert [backoff.next() is None for _ in range(3)] == [False, False, True]


def test_old_restarts_are_forgotten():
    now = 0.0
    backoff = Backoff(RestartPolicy(first=1, limit=2, window=60), clock=lambda: now)
    backoff.next()
    backoff.next()

    now = 60.0

    assert backoff.next() == 1
