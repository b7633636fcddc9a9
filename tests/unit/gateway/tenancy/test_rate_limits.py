"""Buckets and allowances of keys, shared by several gateways."""

import asyncio

import msgspec
import pytest

from omnibus.api_key import KeyRecord, hash_key
from omnibus.bus.heartbeats import GATEWAY_ABSENT_SECONDS
from omnibus.bus.messages import GatewayStatus
from omnibus.errors import Overloaded
from omnibus_gateway.tenancy.rate_limits import BURST_SECONDS, GatewayPeers, RateLimits, TokenBucket
from omnibus_gateway.tenancy.tenant import DeferredWork, Tenant


class RateClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_key(**limits) -> KeyRecord:
    return KeyRecord(hash_key("omni-secret"), "search", **limits)


def make_status(id: str, state: str = "ready") -> GatewayStatus:
    return GatewayStatus(id, 1, 1.0, state)


# Buckets


def test_a_bucket_gives_what_is_in_it_and_fills_up_again():
    bucket = TokenBucket(2.0, 3.0, 0.0)

    for _ in range(3):
        assert bucket.wait_seconds(1.0, 0.0) == 0
        bucket.take_tokens(1.0, 0.0)

    assert bucket.wait_seconds(1.0, 0.0) == pytest.approx(0.5)
    assert bucket.wait_seconds(1.0, 0.5) == 0
    assert bucket.wait_seconds(3.0, 100.0) == 0


def test_a_clock_that_goes_back_gives_nothing():
    bucket = TokenBucket(1.0, 1.0, 10.0)
    bucket.take_tokens(1.0, 10.0)

    assert bucket.wait_seconds(1.0, 5.0) == pytest.approx(1.0)
    assert bucket.wait_seconds(1.0, 10.0) == pytest.approx(1.0)  # nor when it is where it was


# Keys


def test_a_rate_is_kept_and_says_when_to_come_again():
    clock = RateClock()
    allowance = RateLimits(lambda: 1, clock).key_allowance(make_key(rate=2.0, burst=2.0))
    allowance.start_request(clock.now)
    allowance.start_request(clock.now)

    with pytest.raises(Overloaded, match="2 requests per second") as caught:
        allowance.start_request(clock.now)

    assert caught.value.retry_after == pytest.approx(0.5)
    clock.now += 0.5
    allowance.start_request(clock.now)


def test_a_request_that_is_over_makes_room_for_another():
    limits = RateLimits(lambda: 1, RateClock())
    record = make_key(concurrent=1)

    with limits.limit_request(record), pytest.raises(Overloaded, match="1 requests at a time"):
        limits.key_allowance(record).start_request(100.0)

    with limits.limit_request(record):
        pass


def test_gpu_seconds_that_were_used_have_to_be_earned_again():
    clock = RateClock()
    allowance = RateLimits(lambda: 1, clock).key_allowance(make_key(gpu_seconds=0.5))
    allowance.check_gpu_seconds(clock.now)
    allowance.use_gpu_seconds(0.5 * BURST_SECONDS + 1.0, clock.now)

    with pytest.raises(Overloaded, match="0.5 GPU-seconds per second") as caught:
        allowance.check_gpu_seconds(clock.now)

    assert caught.value.retry_after == pytest.approx(2.0)
    clock.now += 2.0
    allowance.check_gpu_seconds(clock.now)


def test_no_limit_is_none():
    clock = RateClock()
    allowance = RateLimits(lambda: 1, clock).key_allowance(make_key())

    for _ in range(1000):
        allowance.start_request(clock.now)
        allowance.use_gpu_seconds(1e6, clock.now)
        allowance.check_gpu_seconds(clock.now)


@pytest.mark.parametrize("gateways", [1, 2, 3, 5])
def test_all_gateways_together_give_the_limit(gateways: int):
    clock = RateClock()
    shares = [RateLimits(lambda: gateways, clock) for _ in range(gateways)]
    record = make_key(rate=30.0, burst=30.0)
    grant_count = 0

    for _ in range(200):  # ten seconds, each gateway asked for all that there is
        clock.now += 0.05
        for limits in shares:
            for _ in range(5):
                try:
                    limits.key_allowance(record).start_request(clock.now)
                except Overloaded:
                    break
                grant_count += 1

    assert grant_count == pytest.approx(10 * 30 + 30, abs=gateways + 1)


def test_requests_at_a_time_are_divided_and_rounded_up():
    clock = RateClock()
    record = make_key(concurrent=4)
    entry_count = 0

    for limits in [RateLimits(lambda: 3, clock) for _ in range(3)]:
        with pytest.raises(Overloaded):
            for _ in range(10):
                limits.key_allowance(record).start_request(clock.now)
                entry_count += 1

    assert 4 <= entry_count < 4 + 3


def test_a_key_that_was_changed_has_its_new_limit_at_once():
    clock = RateClock()
    limits = RateLimits(lambda: 1, clock)
    limits.key_allowance(make_key(concurrent=1)).start_request(clock.now)

    limits.key_allowance(make_key(concurrent=2)).start_request(clock.now)


def test_keys_that_are_gone_are_forgotten_and_what_goes_on_under_them_is_stopped():
    limits, stop_calls = RateLimits(lambda: 1, RateClock()), list[str]()
    record = make_key(concurrent=1)
    limits.update_keys({record.sha256: record})

    with limits.limit_request(record), limits.key_allowance(record).stopped_by(lambda: stop_calls.append("now")):
        limits.update_keys({record.sha256: record})
        assert (limits.key_allowance(record).inflight, stop_calls) == (1, [])
        limits.update_keys({})
        assert (limits.key_allowance(record).inflight, stop_calls) == (0, ["now"])

    assert limits.key_allowance(record).inflight == 0


def test_work_in_the_background_counts_among_the_requests_of_its_key_and_looks_at_it_do_not_wait_for_it():
    limits, record = RateLimits(lambda: 1, RateClock()), make_key(concurrent=2)
    work, tenant = DeferredWork(limits=limits), Tenant("search", 1.0, record)

    with work.counted(tenant):
        with limits.limit_request(record):
            with pytest.raises(Overloaded, match="background included"):
                limits.key_allowance(record).start_request(0.0)
            limits.key_allowance(record).check_room(starts_work=False)
        with work.counted(tenant), pytest.raises(Overloaded):
            work.check_room(tenant)
    work.check_room(tenant)


async def test_work_that_waits_for_room_goes_on_when_a_request_ends_or_the_limit_is_raised():
    limits, record = RateLimits(lambda: 1, RateClock()), make_key(concurrent=1)
    limits.update_keys({record.sha256: record})
    work, tenant = DeferredWork(limits=limits), Tenant("search", 1.0, record)

    with limits.limit_request(record):
        waiting = asyncio.create_task(work.wait_turn(tenant))
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 5)

    with limits.limit_request(record):
        waiting = asyncio.create_task(work.wait_turn(tenant))
        await asyncio.sleep(0)
        limits.update_keys({record.sha256: msgspec.structs.replace(record, concurrent=2)})
        await asyncio.wait_for(waiting, 5)


def test_a_limit_that_was_changed_holds_for_work_that_began_before():
    limits, record = RateLimits(lambda: 1, RateClock()), make_key(concurrent=3)
    limits.update_keys({record.sha256: msgspec.structs.replace(record, concurrent=1)})

    with limits.limit_request(record), pytest.raises(Overloaded):
        limits.key_allowance(record).start_request(0.0)


# Gateways


def test_gateways_count_while_they_are_heard():
    clock = RateClock()
    peers = GatewayPeers("me", clock)
    assert peers.count == 1

    peers.handle_status(make_status("other"))
    peers.handle_status(make_status("me"))
    assert peers.count == 2

    clock.now += GATEWAY_ABSENT_SECONDS - 1
    peers.handle_status(make_status("third"))
    assert peers.count == 3

    clock.now += 2
    assert peers.count == 2
    peers.handle_status(make_status("third", "gone"))
    assert peers.count == 1
