"""Restarts: growing pauses, a count in a window, and resets."""

import pytest

from omnibus.process.supervise import Backoff, RestartPolicy, restart_on_exit


def test_pauses_grow_up_to_the_longest_and_never_end():
    backoff = Backoff(RestartPolicy(first=1, factor=2, longest=5, jitter=0), clock=lambda: 0.0)

    assert [backoff.next_delay() for _ in range(5)] == [1, 2, 4, 5, 5]
    assert {backoff.next_delay() for _ in range(5000)} == {5}


def test_more_restarts_than_the_limit_exhaust_it():
    backoff = Backoff(RestartPolicy(limit=2), clock=lambda: 0.0)

    exhausted_flags = []
    for _ in range(3):
        backoff.next_delay()
        exhausted_flags.append(backoff.exhausted)

    assert exhausted_flags == [False, False, True]


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
    backoff = Backoff(RestartPolicy(first=1, longest=30, healthy=10, jitter=0), clock=lambda: now)
    assert [backoff.next_delay(lifetime=9.9) for _ in range(3)] == [1, 2, 4]

    now = 1000.0

    assert backoff.next_delay(lifetime=0.1) == 8
    assert [backoff.next_delay(lifetime=10.0), backoff.next_delay(lifetime=0.0)] == [1, 2]


def test_jitter_shortens_a_pause_by_its_share_at_most():
    delays = [Backoff(RestartPolicy(first=1, jitter=0.5)).next_delay() for _ in range(200)]

    assert 0.5 <= min(delays) < max(delays) <= 1.0


async def test_lives_follow_one_another_until_no_more_are_wanted():
    lives, pauses = iter([2, None, None, 3]), list[float]()

    async def wait_for_end(life: int) -> bool:
        return life < 3

    async def start_life() -> int | None:
        return next(lives)

    await restart_on_exit(1, wait_for_end, start_life, Backoff(RestartPolicy(first=0.001, jitter=0)), pauses.append)

    assert pauses == [0.001, 0.002, 0.004, 0.008]
    assert next(lives, "none left") == "none left"


async def test_a_permanent_error_ends_the_restarts():
    backoff = Backoff(RestartPolicy(first=0.001, limit=2))

    async def wait_for_end(life: int) -> bool:
        return True

    async def fail_start() -> int | None:
        return None

    def announce_pause(pause: float) -> None:
        if backoff.exhausted:
            raise RuntimeError("given up")

    with pytest.raises(RuntimeError, match="given up"):
        await restart_on_exit(1, wait_for_end, fail_start, backoff, announce_pause)
