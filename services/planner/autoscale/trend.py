"""Forecast of the rate of models by its trend, with the error that such forecasts had. Pure, and the clock is given.

Holt's linear method (Holt 1957; Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 8.2): a level and a
trend, both smoothed, whose weights are those that erred least over the windows that are kept. Each window is forecast
as many windows ahead as executors take to start. The error is the mean of |forecast - rate| / rate of forecasts that
were made before the window came. A trend is gone by only while it errs less than the last rate would have.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from services.planner.optimize.load import Loads, ModelLoad

#: Windows that weights are chosen by, forecasts that an error is the mean of, and how many there must be.
_KEPT_WINDOWS, _SCORED_FORECASTS, _MIN_SCORED = 40, 12, 5
#: Weights of the newest window in level and trend that are tried.
_LEVEL_WEIGHTS, _TREND_WEIGHTS = (0.3, 0.5, 0.8), (0.1, 0.3, 0.6)
#: A forecast is no more than this times the rate that is measured.
_MAX_GROWTH = 2.0


class RateForecast(NamedTuple):
    """Req/s that are expected, and the mean part by which such forecasts were off."""

    rate: float
    error: float


class _ModelTrend:
    """Rates of one model by window, and what was forecast for windows to come."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._rates: deque[float] = deque(maxlen=_KEPT_WINDOWS)
        self._pending: deque[tuple[float, float]] = deque()  # by trend and by the last rate, the next window first
        self._errors: deque[tuple[float, float]] = deque(maxlen=_SCORED_FORECASTS)
        self.expected = 0.0

    def add_rate(self, rate: float) -> None:
        """Take the rate of the next window, score what was forecast for it, and forecast the one after ``ahead``."""
        if len(self._pending) == self._ahead:
            trend, last = self._pending.popleft()
            if rate > 0:
                self._errors.append((abs(trend - rate) / rate, abs(last - rate) / rate))
        self._rates.append(rate)
        self.expected = forecast_rate(self._rates, self._ahead)
        self._pending.append((self.expected, rate))

    def find_forecast(self) -> RateForecast | None:
        """The forecast; None while too few were scored, or while the last rate errs no more."""
        if len(self._errors) < _MIN_SCORED:
            return None
        trend, last = (sum(errors) / len(self._errors) for errors in zip(*self._errors, strict=True))
        return RateForecast(self.expected, trend) if trend < last else None


class TrendForecast:
    """Forecasts ``seconds`` ahead for models by their rates in windows of ``window`` seconds."""

    def __init__(self, window: float, seconds: float, clock: Callable[[], float]) -> None:
        self._window = window
        self._ahead = max(1, round(seconds / window))
        self._clock = clock
        self._models: dict[str, _ModelTrend] = {}
        self._next = clock() + window

    @property
    def is_due(self) -> bool:
        """True once a window has passed since the last one that was taken."""
        return self._clock() >= self._next

    def add_loads(self, loads: Loads) -> None:
        """Take what was measured over the last window, once it ``is_due``."""
        now = self._clock()
        if now >= self._next + self._window:  # windows were missed: their rates are not known
            self._models.clear()
        self._next = now + self._window
        for name, load in loads.items():
            self._models.setdefault(name, _ModelTrend(self._ahead)).add_rate(load.rate)

    def clear(self) -> None:
        """Begin again: events were missed."""
        self._models.clear()
        self._next = self._clock() + self._window

    def forecasts(self, loads: Loads, models: Set[str]) -> dict[str, RateForecast]:
        """Return the forecasts of those ``models`` whose rate is expected to be higher than that of ``loads``."""
        found = {}
        for name in models & self._models.keys() & loads.keys():
            load, forecast = loads[name], self._models[name].find_forecast()
            if forecast is not None and load.rate < forecast.rate:
                found[name] = forecast._replace(rate=min(forecast.rate, _MAX_GROWTH * load.rate))
        return found


def raise_to_forecasts(loads: Loads, forecasts: Mapping[str, RateForecast]) -> dict[str, ModelLoad]:
    """Return ``loads`` with the rates that are expected."""
    return {
        name: msgspec.structs.replace(load, rate=max(load.rate, forecasts[name].rate)) if name in forecasts else load
        for name, load in loads.items()
    }


def forecast_rate(rates: Sequence[float], ahead: int) -> float:
    """Return the rate ``ahead`` windows after the last of ``rates``, 0 at least."""
    if len(rates) < 2:
        return rates[-1]
    tried = [_smooth(rates, level, trend) for level in _LEVEL_WEIGHTS for trend in _TREND_WEIGHTS]
    _, level, trend = min(tried)
    return max(0.0, level + ahead * trend)


def _smooth(rates: Sequence[float], level_weight: float, trend_weight: float) -> tuple[float, float, float]:
    """The sum of squared errors of forecasts of the next window, and the last level and trend."""
    level, trend, errors = rates[0], rates[1] - rates[0], 0.0
    for rate in list(rates)[1:]:
        expected = level + trend
        errors += (rate - expected) ** 2
        before, level = level, level_weight * rate + (1 - level_weight) * expected
        trend = trend_weight * (level - before) + (1 - trend_weight) * trend
    return errors, level, trend
