"""Policy that decides when a measured load requires another plan. Pure: no I/O, clock passed in.

    expected = adapt.expected_load(loads)  # what to plan for; None: too little is known
    verdict = adapt.decide(scene)          # keep, other path rates alone, or the best plan

Goal "throughput": the best plan must serve over ``margin`` more of the load than the same replicas with new path rates.
It must have done so for ``hold`` seconds, twice as long while the mix still changes.

Goal "gpus": scale up at once if less than half of the headroom is left. Scale down if fewer GPUs have been enough for
long, counted in starts of an executor, for the highest rate of that time. Longer requests count as more, because costs
follow from tokens. A burst is over before a window has filled (``find_shortage``). So the policy acts at once on the
last seconds if they exceed the capacity, or if requests were rejected.

Starting executors serve no requests, so a change must be worth its starts. Its gain in GPUs, times the duration of the
load, must exceed the GPU-seconds of the starts. A load is assumed to last as long as the previous plan, and at least
one ``cooldown``. Two changes are always one ``cooldown`` apart.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from omnibus_planner.optimize.load import Loads, ModelLoad

#: Two deployments that differ by less than this fraction count as equal, given the errors of models and measurements.
EQUAL_CAPACITY_FRACTION = 0.02
#: Largest fraction of requests that changed their type within half a window for a mix to count as steady.
STEADY_MIX_FRACTION = 0.05
#: Number of executor starts for which fewer GPUs must have been enough.
SCALE_DOWN_START_COUNT = 5.0
#: Seconds of load that detect a burst, and seconds between two steps of a burst.
BURST_SECONDS = 5.0
#: A burst exceeds the capacity by this fraction. If requests are rejected, this factor on the load, or on the assumed
#: capacity, is planned for.
_BURST_MARGIN, _REFUSED_FACTOR = 0.05, 1.25
#: Seconds for which a burst must last, unless requests were rejected.
CONFIRM_SECONDS = 0.9
#: Seconds until a new executor serves, in addition to loading: staging, its process, and the switch.
ROLLOUT_SECONDS = 3.0
#: Seconds in which waiting requests must be served in addition to new ones.
DRAIN_SECONDS = 15.0
#: Limit of a gain: from a capacity of 0 it would be infinite.
_MAX_GAIN = 100.0


class ScalingRules(NamedTuple):
    """Rules of the policy, in seconds.

    ``margin`` is a fraction of the capacity; fewer than ``least`` requests in a ``window`` are ignored.
    """

    window: float = 15.0
    margin: float = 0.1
    hold: float = 30.0
    cooldown: float = 60.0
    least: int = 30


class ScalingGoal(NamedTuple):
    """Planning goal of a model: the fewest ``gpus`` for its rate and ``headroom``, or most requests.

    ``rate`` in req/s is the planned rate before the first measurement.
    """

    gpus: bool = False
    headroom: float = 0.0
    rate: float = 0.0


class DeploymentCapacity(NamedTuple):
    """Capacity of a deployment for the current requests.

    ``capacity`` is in req/s by model. ``gpus`` are those of its executors. ``starts`` are the GPU-seconds until new
    executors are ready.
    """

    capacity: Mapping[str, float]
    gpus: float = 0.0
    starts: float = 0.0


class ScalingSnapshot(NamedTuple):
    """The measured load, and the candidates for it.

    They are the running plan, its replicas with the best path rates, and the best plan.
    """

    load: Loads
    now: DeploymentCapacity
    rerouted: DeploymentCapacity
    best: DeploymentCapacity


class Verdict(Enum):
    """Decision: keep the plan, change its path rates alone, or plan again."""

    KEEP = "keep"
    REROUTE = "reroute"
    REPLAN = "replan"


class ScalingPolicy:
    """Judges the load of models that are planned together.

    ``goals`` are the planning goals by model. ``start`` is the time in seconds until an executor is ready. ``clock``
    returns seconds.
    """

    def __init__(
        self,
        goals: Mapping[str, ScalingGoal],
        rules: ScalingRules = ScalingRules(),  # noqa: B008 a constant
        start: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._goals = dict(goals)
        self._rules = rules
        self._start = start
        self._patience = max(rules.hold, SCALE_DOWN_START_COUNT * start)
        self._clock = clock
        self._began = clock()
        self._changed = -math.inf
        self._true: dict[str, float] = {}  # start times of the conditions that hold
        self._short_since: float | None = None
        self._mixes: deque[tuple[float, dict[str, dict[str, float]]]] = deque()
        self._highest = {name: _SlidingMaximum(self._patience, self._began, goal.rate) for name, goal in goals.items()}

    def note_plan_change(self) -> None:
        """Note that another plan is in force, or on its way.

        Measurements against the old plan are discarded.
        """
        self._changed = self._clock()
        self._short_since = None
        self._true.clear()

    def reset_measurements(self) -> None:
        """Start again after the loss of measurements; the policy waits for one window.

        The highest rates are kept.
        """
        self._began = self._clock()
        self._highest = {
            name: _SlidingMaximum(self._patience, self._began, highest.value) for name, highest in self._highest.items()
        }
        self._true.clear()

    def expected_load(self, loads: Loads) -> dict[str, ModelLoad] | None:
        """Return the load to plan for; None if the measurements do not suffice.

        With goal "gpus" the rate is the highest of a long time.
        """
        now = self._clock()
        model_loads = {name: loads.get(name, ModelLoad(0.0)) for name in self._goals}
        highest = {name: self._highest[name].add(now, load.rate) for name, load in model_loads.items()}
        if now - self._began < self._rules.window:
            return None
        if not any(self._goals[name].gpus or self._has_enough_requests(load) for name, load in model_loads.items()):
            self._true.clear()
            return None
        return {
            name: msgspec.structs.replace(load, rate=highest[name]) if self._goals[name].gpus else load
            for name, load in model_loads.items()
        }

    def find_shortage(
        self,
        recent: Loads,
        capacity: Mapping[str, float],
        refused_rates: Mapping[str, float],
        waiting: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, ModelLoad]:
        """Return the load of models that are short of capacity.

        It is empty if none is; only models with goal "gpus" count. The last ``BURST_SECONDS`` decide. ``capacity`` is
        that of the running plan for ``recent``, and ``refused_rates`` are the rejected requests, in req/s by model.
        ``waiting`` counts requests that wait for capacity. The load includes these, and arrivals while executors start.
        """
        now = self._clock()
        shortages, sudden = dict[str, ModelLoad](), False
        for name, load in recent.items():
            has_goal = name in self._goals and self._goals[name].gpus
            if not has_goal or load.rate * self._rules.window < self._rules.least:
                continue
            until = self._start + ROLLOUT_SECONDS
            queued_requests = waiting.get(name, 0) + max(0.0, load.rate - capacity.get(name, 0.0)) * until
            needed_rate = load.rate + queued_requests / DRAIN_SECONDS
            if refused_rates.get(name, 0.0) > 0 and now - self._changed >= BURST_SECONDS:
                sudden = True
                most = max(needed_rate, capacity.get(name, 0.0))
                shortages[name] = msgspec.structs.replace(load, rate=most * _REFUSED_FACTOR)
            elif needed_rate > capacity.get(name, 0.0) * (1 + _BURST_MARGIN):
                shortages[name] = msgspec.structs.replace(load, rate=max(needed_rate, self._highest[name].value))
        if not self._is_confirmed(bool(shortages), now) and not sudden:
            return {}
        for name, load in shortages.items():
            self._highest[name].add(now, load.rate)
        return shortages

    def _is_confirmed(self, short: bool, now: float) -> bool:
        """Return True if ``short`` held for a second: the start of a burst predicts little."""
        self._short_since = (self._short_since if self._short_since is not None else now) if short else None
        return self._short_since is not None and now - self._short_since >= CONFIRM_SECONDS

    def decide(self, scene: ScalingSnapshot) -> Verdict:
        """Decide what to do now; call ``note_plan_change`` once a change is in progress."""
        margin, hold = self._rules.margin, self._rules.hold
        gain = self._relative_gain(scene, scene.best, scene.rerouted)
        # A mix that still changes may have a target, unless it keeps changing.
        has_waited = self._is_sustained("better", gain, margin, hold if self._is_mix_steady(scene.load) else 2 * hold)
        better = has_waited and self._pays_for_starts(min(gain, _MAX_GAIN) * scene.now.gpus, scene)
        routes = self._is_sustained("routes", self._relative_gain(scene, scene.rerouted, scene.now), margin, hold)
        spared_gpus = scene.now.gpus - scene.best.gpus if any(goal.gpus for goal in self._goals.values()) else 0.0
        fewer = self._is_sustained("fewer", spared_gpus, 0.0, self._patience) and self._pays_for_starts(
            spared_gpus, scene
        )
        if self._clock() - self._changed < self._rules.cooldown:
            return Verdict.KEEP
        if any(self._lacks_capacity(name, scene) for name in self._models_with_load(scene.load, gpus=True)):
            return self._decide_scale_up(scene)
        if better or fewer:
            return Verdict.REPLAN
        return Verdict.REROUTE if routes and "better" not in self._true else Verdict.KEEP

    # Measurements

    def _has_enough_requests(self, load: ModelLoad) -> bool:
        return load.rate * self._rules.window >= self._rules.least

    def _models_with_load(self, loads: Loads, gpus: bool) -> list[str]:
        """Return the models with this kind of goal and enough requests."""
        return [
            name
            for name, goal in self._goals.items()
            if goal.gpus == gpus and name in loads and self._has_enough_requests(loads[name])
        ]

    def _is_sustained(self, condition: str, value: float, above: float, seconds: float) -> bool:
        """Return True if ``value`` was ``above`` for ``seconds``; below half of it, time restarts."""
        now = self._clock()
        if value > above:
            self._true.setdefault(condition, now)
            return now - self._true[condition] >= seconds
        if value <= above / 2:
            self._true.pop(condition, None)
        return False

    def _is_mix_steady(self, load: Loads) -> bool:
        """Return True if the mix equals that of half a window ago."""
        now, before = self._clock(), {name: each.shares for name, each in load.items()}
        while len(self._mixes) > 1 and self._mixes[1][0] <= now - self._rules.window / 2:
            self._mixes.popleft()
        self._mixes.append((now, before))
        then, shares = self._mixes[0]
        return then <= now - self._rules.window / 2 and all(
            mix_shift(shares.get(name, {}), mix) <= STEADY_MIX_FRACTION for name, mix in before.items()
        )

    def _pays_for_starts(self, gpus: float, scene: ScalingSnapshot) -> bool:
        """Return True if the saved ``gpus`` outweigh the starts while load lasts."""
        lasts = max(self._rules.cooldown, self._clock() - max(self._changed, self._began))
        return gpus * lasts > scene.best.starts

    # Most requests within the GPUs

    def _relative_gain(self, scene: ScalingSnapshot, one: DeploymentCapacity, other: DeploymentCapacity) -> float:
        """Return the relative gain of ``one`` over ``other`` for the current load."""
        names = self._models_with_load(scene.load, gpus=False)
        new_factor, before = _load_factor(names, scene, one), _load_factor(names, scene, other)
        if before <= 0:
            return math.inf if new_factor > 0 else 0.0
        return new_factor / before - 1

    # Fewest GPUs for the rate

    def _lacks_capacity(self, name: str, scene: ScalingSnapshot) -> bool:
        return scene.load[name].rate * (1 + self._goals[name].headroom / 2) > scene.now.capacity.get(name, 0.0)

    def _decide_scale_up(self, scene: ScalingSnapshot) -> Verdict:
        """Choose other path rates if they suffice, else more executors."""
        short = [name for name in self._models_with_load(scene.load, gpus=True) if self._lacks_capacity(name, scene)]
        again = scene._replace(now=scene.rerouted)
        if not any(self._lacks_capacity(name, again) for name in short):
            return Verdict.REROUTE
        if any(_has_more_capacity(name, scene.best, scene.rerouted) for name in short):
            return Verdict.REPLAN
        return (
            Verdict.REROUTE
            if any(_has_more_capacity(name, scene.rerouted, scene.now) for name in short)
            else Verdict.KEEP
        )


class _SlidingMaximum:
    """The highest value of the last ``seconds``."""

    def __init__(self, seconds: float, at: float, value: float) -> None:
        self._seconds = seconds
        self._falling: deque[tuple[float, float]] = deque([(at, value)])

    @property
    def value(self) -> float:
        return self._falling[0][1]

    def add(self, at: float, value: float) -> float:
        """Add a value, and return the highest."""
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((at, value))
        while falling[0][0] < at - self._seconds:
            falling.popleft()
        return self.value


def _load_factor(names: Iterable[str], scene: ScalingSnapshot, deployment: DeploymentCapacity) -> float:
    """Return the factor by which rates of ``names`` can grow together.

    The limit is the capacity of ``deployment``.
    """
    return min((deployment.capacity.get(name, 0.0) / scene.load[name].rate for name in names), default=0.0)


def mix_shift(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the fraction of requests that changed their type."""
    return sum(max(0.0, share - before.get(kind, 0.0)) for kind, share in after.items())


def _has_more_capacity(name: str, one: DeploymentCapacity, other: DeploymentCapacity) -> bool:
    return one.capacity.get(name, 0.0) > other.capacity.get(name, 0.0) * (1 + EQUAL_CAPACITY_FRACTION)
