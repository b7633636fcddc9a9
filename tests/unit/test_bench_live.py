"""Live plans are measured under full load. Heartbeats contain the executors' work."""

import pytest

from omnibus.bus.messages import BatchCounts, ExecutorStatus
from omnibus.executor.sim import TypeDemand, predict_performance
from tests.bench.live_load import ComponentWork, HeardStatus, option_work
from tests.bench.live_plans import AT_ONCE_PER_EXECUTOR, compute_figures
from tests.unit.planner.simulate.omni import TYPES, true_devices


def rate_at(inflight: int) -> float:
    """Return requests per second of a full executor with ``inflight`` requests."""
    devices = true_devices()
    mix = {
        kind: TypeDemand(about.share, devices.role_loads(frozenset(about.components), about.quantities))
        for kind, about in TYPES.items()
    }
    return predict_performance(devices.times, "M", mix, inflight=inflight, requests=400).throughput


def test_a_live_plan_is_measured_with_enough_requests_to_serve_all_that_it_can():
    assert rate_at(AT_ONCE_PER_EXECUTOR) == pytest.approx(rate_at(4 * AT_ONCE_PER_EXECUTOR), rel=0.05)
    assert rate_at(AT_ONCE_PER_EXECUTOR // 3) < 0.8 * rate_at(AT_ONCE_PER_EXECUTOR)


def make_status(at: float, number: int, busy: float, counts: BatchCounts) -> HeardStatus:
    status = ExecutorStatus(
        id=f"omni-V-{number}",
        model="omni",
        option="V",
        components=("vocoder",),
        tasks=(),
        node="n",
        state="ready",
        credits=64,
        busy=(busy,),
        batches=(counts,),
    )
    return HeardStatus(at, status)


def test_work_of_an_option_is_the_mean_of_its_executors_between_two_heartbeats():
    before = {
        "a": make_status(10.0, 0, 5.0, BatchCounts(10, 320, 4, 8)),
        "b": make_status(10.5, 1, 5.0, BatchCounts(10, 320, 4, 8)),
        "silent": make_status(10.0, 2, 5.0, BatchCounts()),
    }
    after = {
        "a": make_status(20.0, 0, 15.0, BatchCounts(20, 960, 14, 168)),
        "b": make_status(20.5, 1, 10.0, BatchCounts(20, 640, 14, 88)),
        "silent": before["silent"],
        "new": make_status(20.0, 3, 9.0, BatchCounts()),
    }

    assert option_work(before, after) == {"V": {"vocoder": ComponentWork(busy=0.75, rows=12.0, tokens=48.0)}}


def test_rates_of_systems_whose_engines_are_not_equally_slow_are_compared_as_if_they_were():
    rows = [
        {
            "what": "rate",
            "gpus": 2,
            "plan": "declared",
            "mix": "declared",
            "stretch": 4.0,
            "measured": 1.0,
            "part": 1.0,
        },
        {
            "what": "rate",
            "gpus": 2,
            "plan": "declared",
            "mix": "text_only",
            "stretch": 4.0,
            "measured": 3.0,
            "part": 3.0,
        },
        {
            "what": "rate",
            "gpus": 2,
            "plan": "text_only",
            "mix": "text_only",
            "stretch": 8.0,
            "measured": 2.0,
            "part": 0.9,
        },
    ]

    assert compute_figures(rows) == {
        "plan.live_over_promised.least": 0.9,
        "plan.live_over_promised.most": 1.0,
        "plan.live_adapted_over_static": pytest.approx(4 / 3),
    }
