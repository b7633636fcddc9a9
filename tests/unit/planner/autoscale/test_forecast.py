"""Forecasting the load of a burst from its first requests."""

import pytest

from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus_planner.autoscale.forecast import BurstForecast, relative_error
from omnibus_planner.optimize.load import Loads


class ForecastClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def find_capacity(loads: Loads) -> dict[str, float]:
    """Return the capacity of one executor that takes a second for 1,000 tokens."""
    return {name: 1000 / (sizes.get("seen", {}).get("image_tokens") or 1.0)
            for name, load in loads.items() for sizes in [load.quantities]}  # fmt: skip


def feed_events(
    forecast: BurstForecast, clock: ForecastClock, seconds: int, came: int, tokens: float, waiting: int = 0
) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        load = LoadCounts(came=came, estimated={"image_tokens": came * tokens}, waiting=waiting)
        forecast.add_event(LoadEvent("g", 1, 1.0, 0, {"m": {"seen": load}}))


def test_what_came_last_counts_where_it_is_clearly_dearer_and_else_the_longer_window():
    clock = ForecastClock()
    forecast = BurstForecast(clock)
    feed_events(forecast, clock, 10, 4, 100.0)
    assert forecast.expected_loads(find_capacity)["m"].quantities["seen"]["image_tokens"] == pytest.approx(100.0)

    feed_events(forecast, clock, 1, 4, 1000.0)
    load = forecast.expected_loads(find_capacity)["m"]
    assert load.rate == pytest.approx(4.0, rel=0.2)
    assert load.quantities["seen"]["image_tokens"] == pytest.approx(1000.0)  # the longer window: 229
    feed_events(forecast, clock, 1, 4, 1000.0)

    feed_events(forecast, clock, 10, 4, 1000.0)
    feed_events(forecast, clock, 2, 4, 1100.0)
    assert forecast.expected_loads(find_capacity)["m"].quantities["seen"]["image_tokens"] < 1060


def test_few_requests_say_a_rate_less_well_than_many():
    assert relative_error(4.0, 5.0) == pytest.approx(0.224, abs=0.001)
    assert relative_error(100.0, 5.0) < relative_error(100.0, 2.0) < relative_error(1.0, 2.0) < 1.0
    assert relative_error(0.0) == 1.0


def test_requests_that_wait_are_those_of_the_last_word_of_each_gateway():
    clock = ForecastClock()
    forecast = BurstForecast(clock)
    feed_events(forecast, clock, 2, 4, 100.0, waiting=7)
    assert forecast.waiting_counts() == {"m": 7}

    feed_events(forecast, clock, 1, 4, 100.0)
    assert forecast.waiting_counts() == {}
    feed_events(forecast, clock, 1, 4, 100.0, waiting=5)
    clock.now += 4.0
    assert forecast.waiting_counts() == {}
