"""Forecast of a burst: the load of the last seconds, and its error.

Pure, and the clock is passed in. Five seconds measure a rate well, but just after the start of a burst they mostly
cover the time before it. The last event of each gateway covers only the burst, with few requests. From n of them, a
rate or a mean size has a relative error of 1 / sqrt(n): one standard deviation, for random arrivals. So this event
counts if it differs by more than twice that.

Forecast of models' rates by trend, with the error of past forecasts.

Pure, and the clock is passed in. It uses Holt's linear method, with a smoothed level and a smoothed trend (Holt 1957,
and 8.2 in Hyndman and Athanasopoulos, Forecasting). The weights are those with the least error over the kept windows.
Each window has a forecast, made as many windows before as executors take to start. The error is the mean of
``abs(forecast - rate) / rate``. The planner follows a trend only while its error is smaller than that of the last rate.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from omnibus.bus.heartbeats import LOAD_REPORT_SECONDS
from omnibus.bus.messages import LoadEvent
from omnibus_planner.autoscale.load_window import LoadWindows
from omnibus_planner.autoscale.policy import BURST_SECONDS
from omnibus_planner.optimize.load import Loads, ModelLoad

#: Standard deviations by which the latest load must differ.
_DEVIATIONS = 2.0


class BurstForecast:
    """The load of the last seconds over all gateways."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._recent = LoadWindows(BURST_SECONDS, clock)

    def add_event(self, event: LoadEvent) -> None:
        """Add an event of one gateway."""
        self._recent.add_event(event)

    def clear(self) -> None:
        """Start again after missed events."""
        self._recent.clear()

    def refused_rates(self) -> dict[str, float]:
        """Return rejected requests per second, by model."""
        return self._recent.refused_rates()

    def waiting_counts(self) -> dict[str, int]:
        """Return the requests that currently wait at gateways, by model."""
        return self._recent.waiting_counts()

    def expected_loads(self, capacity: Callable[[Loads], Mapping[str, float]]) -> dict[str, ModelLoad]:
        """Return the expected load by model.

        ``capacity`` returns the req/s by model that the running plan serves of a load.
        """
        recent, latest = self._recent.current_loads(), self._recent.latest_loads()
        if not latest:
            return recent
        before, now = capacity(recent), capacity({**recent, **latest})
        loads = {}
        for name, load in recent.items():
            new = latest.get(name, load)
            spread = _DEVIATIONS * relative_error(new.rate, LOAD_REPORT_SECONDS)
            dearer = now.get(name, 0.0) * (1 + spread) < before.get(name, 0.0)
            rate = max(load.rate, new.rate * (1 - spread))
            loads[name] = msgspec.structs.replace(new if dearer else load, rate=rate)
        return loads


def relative_error(rate: float, seconds: float = BURST_SECONDS) -> float:
    """Return the error of a ``rate`` counted over ``seconds``, as a fraction; at most 1."""
    return min(1.0, 1 / math.sqrt(rate * seconds)) if rate > 0 else 1.0


#: Windows that determine the weights, most forecasts in an error, and fewest.
_KEPT_WINDOWS, _SCORED_FORECASTS, _MIN_SCORED = 40, 12, 5
#: Candidate weights of the newest window in level and trend.
_LEVEL_WEIGHTS, _TREND_WEIGHTS = (0.3, 0.5, 0.8), (0.1, 0.3, 0.6)
#: Largest ratio of a forecast to the measured rate.
_MAX_GROWTH = 2.0


class RateForecast(NamedTuple):
    """Expected req/s, and the mean relative error of such forecasts."""

    rate: float
    error: float


class _ModelTrend:
    """Rates of one model by window, and forecasts for future windows."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._rates: deque[float] = deque(maxlen=_KEPT_WINDOWS)
        self._pending: deque[tuple[float, float]] = deque()  # by trend and by the last rate, the next window first
        self._errors: deque[tuple[float, float]] = deque(maxlen=_SCORED_FORECASTS)
        self.expected = 0.0

    def add_rate(self, rate: float) -> None:
        """Add the rate of the next window, and make a forecast.

        The forecast is for the window ``ahead`` windows later; the one for this window is scored.
        """
        if len(self._pending) == self._ahead:
            trend, last = self._pending.popleft()
            if rate > 0:
                self._errors.append((abs(trend - rate) / rate, abs(last - rate) / rate))
        self._rates.append(rate)
        self.expected = forecast_rate(self._rates, self._ahead)
        self._pending.append((self.expected, rate))

    def find_forecast(self) -> RateForecast | None:
        """Return the forecast; None if too few were scored, or the last rate is as good."""
        if len(self._errors) < _MIN_SCORED:
            return None
        trend, last = (sum(errors) / len(self._errors) for errors in zip(*self._errors, strict=True))
        return RateForecast(self.expected, trend) if trend < last else None


class TrendForecast:
    """Forecasts of models' rates ``seconds`` ahead, from windows of ``window`` seconds."""

    def __init__(self, window: float, seconds: float, clock: Callable[[], float]) -> None:
        self._window = window
        self._ahead = max(1, round(seconds / window))
        self._clock = clock
        self._models: dict[str, _ModelTrend] = {}
        self._next = clock() + window

    @property
    def is_due(self) -> bool:
        """True once a window has passed since the last added one."""
        return self._clock() >= self._next

    def add_loads(self, loads: Loads) -> None:
        """Add the measured loads of the last window, if ``is_due``."""
        now = self._clock()
        if now >= self._next + self._window:  # windows were missed: their rates are not known
            self._models.clear()
        self._next = now + self._window
        for name, load in loads.items():
            self._models.setdefault(name, _ModelTrend(self._ahead)).add_rate(load.rate)

    def clear(self) -> None:
        """Start again after missed events."""
        self._models.clear()
        self._next = self._clock() + self._window

    def forecasts(self, loads: Loads, models: Set[str]) -> dict[str, RateForecast]:
        """Return the forecasts of ``models`` that exceed the rates of ``loads``."""
        rate_forecasts = {}
        for name in models & self._models.keys() & loads.keys():
            load, forecast = loads[name], self._models[name].find_forecast()
            if forecast is not None and load.rate < forecast.rate:
                rate_forecasts[name] = forecast._replace(rate=min(forecast.rate, _MAX_GROWTH * load.rate))
        return rate_forecasts


def raise_to_forecasts(loads: Loads, forecasts: Mapping[str, RateForecast]) -> dict[str, ModelLoad]:
    """Return ``loads`` with the expected rates."""
    return {
        name: msgspec.structs.replace(load, rate=max(load.rate, forecasts[name].rate)) if name in forecasts else load
        for name, load in loads.items()
    }


def forecast_rate(rates: Sequence[float], ahead: int) -> float:
    """Return the rate ``ahead`` windows after the last of ``rates``, at least 0."""
    if len(rates) < 2:
        return rates[-1]
    attempts = [_smooth(rates, level, trend) for level in _LEVEL_WEIGHTS for trend in _TREND_WEIGHTS]
    _, level, trend = min(attempts)
    return max(0.0, level + ahead * trend)


def _smooth(rates: Sequence[float], level_weight: float, trend_weight: float) -> tuple[float, float, float]:
    """Return the sum of squared one-step errors, last level and trend."""
    level, trend, errors = rates[0], rates[1] - rates[0], 0.0
    for rate in list(rates)[1:]:
        expected_rate = level + trend
        errors += (rate - expected_rate) ** 2
        before, level = level, level_weight * rate + (1 - level_weight) * expected_rate
        trend = trend_weight * (level - before) + (1 - trend_weight) * trend
    return errors, level, trend
