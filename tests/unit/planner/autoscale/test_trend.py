"""Growing rates are planned for as of the executors' readiness; others are unchanged."""

import math
import random
from collections.abc import Iterable

import pytest

from omnibus_planner.autoscale.forecast import RateForecast, TrendForecast, forecast_rate, raise_to_forecasts
from omnibus_planner.optimize.load import ModelLoad

WINDOW = 10.0


class TrendClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def feed_rates(rates: Iterable[float], seconds: float = 20.0) -> dict[str, RateForecast]:
    """Return the forecasts after windows of these rates, each due once."""
    clock = TrendClock()
    trend, load = TrendForecast(WINDOW, seconds, clock), ModelLoad(0.0)
    for rate in rates:
        clock.now += WINDOW
        assert trend.is_due
        load = ModelLoad(rate)
        trend.add_loads({"m": load})
        assert not trend.is_due
    return trend.forecasts({"m": load}, {"m"})


def test_a_line_is_continued_as_far_as_executors_take_to_start():
    assert forecast_rate([1.0, 2.0, 3.0, 4.0], 2) == pytest.approx(6.0)

    forecast = feed_rates([4.0 + 0.5 * number for number in range(20)])["m"]

    assert forecast.rate == pytest.approx(13.5 + 2 * 0.5)
    assert forecast.error == pytest.approx(0.0, abs=1e-9)


def test_the_error_is_that_of_forecasts_that_were_made_before():
    noise = random.Random(1)
    rates = [4.0 + 0.5 * number + noise.gauss(0.0, 0.4) for number in range(30)]

    forecast = feed_rates(rates)["m"]

    forecasts = [(forecast_rate(rates[: at - 1], 2), rates[at]) for at in range(18, 30)]
    assert forecast.error == pytest.approx(sum(abs(prediction - rate) / rate for prediction, rate in forecasts) / 12)
    assert 0.0 < forecast.error < 0.1


def test_a_rate_without_a_trend_or_one_that_falls_is_not_raised():
    noise = random.Random(2)
    assert feed_rates([4.0] * 20) == {}
    assert feed_rates([4.0 + noise.gauss(0.0, 0.5) for _ in range(40)]) == {}
    assert feed_rates([20.0 - 0.5 * number for number in range(20)]) == {}


def test_too_few_windows_say_nothing_and_a_forecast_is_at_most_twice_what_comes():
    assert feed_rates([1.0, 2.0, 3.0]) == {}
    assert feed_rates([math.exp(number / 2) for number in range(12)], 50.0)["m"].rate == pytest.approx(
        2 * math.exp(5.5)
    )


def test_windows_that_were_missed_begin_a_trend_anew():
    clock = TrendClock()
    trend = TrendForecast(WINDOW, WINDOW, clock)
    for number in range(12):
        clock.now += WINDOW if number != 11 else 3 * WINDOW
        trend.add_loads({"m": ModelLoad(1.0 + number)})

    assert trend.forecasts({"m": ModelLoad(12.0)}, {"m"}) == {}


def test_loads_are_raised_to_what_is_expected_and_never_lowered():
    loads = {"m": ModelLoad(4.0, {"a": 1.0}), "n": ModelLoad(2.0)}

    raised_loads = raise_to_forecasts(loads, {"m": RateForecast(5.0, 0.1), "n": RateForecast(1.0, 0.1)})

    assert raised_loads == {"m": ModelLoad(5.0, {"a": 1.0}), "n": ModelLoad(2.0)}
