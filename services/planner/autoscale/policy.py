"""Policy that decides when a measured load calls for another plan. Pure: no I/O, and the clock is given.

    expected = adapt.expected(loads)     # what to plan for; None: too little is known
    verdict = adapt.judge(scene)         # keep, other path rates alone, or the best plan

Goal "throughput": the best plan serves more than ``margin`` more of what comes than the same replicas would with
path rates of its own, and has done so for ``hold`` seconds, twice as long while the mix still changes. Goal "gpus":
up at once when less than half of the headroom is left; down when fewer GPUs have been enough for long, counted in
starts of an executor, for the highest rate of that time. What requests cost follows from their tokens: longer ones
count as more. What came in the last seconds is acted on at once when it is more than what runs can serve, or
when some of it was refused: a burst is over before a window has filled (``find_shortage``).

Executors that start serve nobody, so a change must be worth them: what it gains, in GPUs, as long as the load
lasts must be more than the GPU-seconds of the starts. A load is taken to last as long as the plan before it did,
and one ``cooldown`` at least. Two changes are always one ``cooldown`` apart.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from services.planner.optimize.load import Loads, ModelLoad

#: Two deployments that differ by less than this part serve the same: models and measurements are no finer.
EQUAL_CAPACITY_FRACTION = 0.02
#: The part of its requests that may have become of another type within half a window while a mix counts as steady.
STEADY_MIX_FRACTION = 0.05
#: Fewer GPUs must have been enough for so many starts of an executor.
SCALE_DOWN_START_COUNT = 5.0
#: Seconds of load that a burst is told by, and between two steps that follow one.
BURST_SECONDS = 5.0
#: A burst exceeds what runs serves by this part; where requests are refused, so much more than comes, or than
#: what runs was taken to serve, is planned for.
_BURST_MARGIN, _REFUSED_FACTOR = 0.05, 1.25
#: Seconds for which a burst must have been seen, unless requests were refused.
CONFIRM_SECONDS = 0.9
#: Seconds until a new executor serves, besides those that it loads: staging, its process, and the switch.
ROLLOUT_SECONDS = 3.0
#: Seconds in which requests that wait for room are to be served beside those that come.
DRAIN_SECONDS = 15.0
#: A gain is no more than this: what serves nothing now would gain without end.
_MAX_GAIN = 100.0


class ScalingRules(NamedTuple):
    """``margin`` is a part of the capacity; fewer than ``least`` requests in a ``window`` say nothing. In seconds."""

    window: float = 15.0
    margin: float = 0.1
    hold: float = 30.0
    cooldown: float = 60.0
    least: int = 30


class ScalingGoal(NamedTuple):
    """Planning goal of a model: the fewest ``gpus`` for its rate and ``headroom``, or most requests.

    ``rate`` in req/s is what it was planned for before anything was measured.
    """

    gpus: bool = False
    headroom: float = 0.0
    rate: float = 0.0


class DeploymentCapacity(NamedTuple):
    """Capacity of a deployment for the requests that come, in req/s by model.

    ``gpus`` are those of its executors; ``starts`` the GPU-seconds until those serve that do not run yet.
    """

    capacity: Mapping[str, float]
    gpus: float = 0.0
    starts: float = 0.0


class ScalingSnapshot(NamedTuple):
    """The measured load, and for it what runs, the same replicas with the best path rates, and the best of all."""

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
    """Judges the load of models that are planned together, of which ``goals`` says what they are planned for.

    ``start`` is how many seconds an executor takes to be ready. ``clock`` tells seconds.
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
        self._true: dict[str, float] = {}  # what is true, since when
        self._short_since: float | None = None
        self._mixes: deque[tuple[float, dict[str, dict[str, float]]]] = deque()
        self._highest = {name: _SlidingMaximum(self._patience, self._began, goal.rate) for name, goal in goals.items()}

    def note_plan_change(self) -> None:
        """There is another plan, or one is on its way: what was held against the old one says nothing any more."""
        self._changed = self._clock()
        self._short_since = None
        self._true.clear()

    def reset_measurements(self) -> None:
        """Start again after the loss of what was measured: nothing is known for one window. Rates may be as before."""
        self._began = self._clock()
        self._highest = {
            name: _SlidingMaximum(self._patience, self._began, highest.value) for name, highest in self._highest.items()
        }
        self._true.clear()

    def expected_load(self, loads: Loads) -> dict[str, ModelLoad] | None:
        """The load to plan for, by what was measured; None when that is too little to go by.

        With goal "gpus" the rate is the highest of a long time.
        """
        now = self._clock()
        found = {name: loads.get(name, ModelLoad(0.0)) for name in self._goals}
        highest = {name: self._highest[name].add(now, load.rate) for name, load in found.items()}
        if now - self._began < self._rules.window:
            return None
        if not any(self._goals[name].gpus or self._has_enough_requests(load) for name, load in found.items()):
            self._true.clear()
            return None
        return {
            name: msgspec.structs.replace(load, rate=highest[name]) if self._goals[name].gpus else load
            for name, load in found.items()
        }

    def find_shortage(
        self,
        recent: Loads,
        capacity: Mapping[str, float],
        refused: Mapping[str, float],
        waiting: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, ModelLoad]:
        """The load of models with goal "gpus" whose last ``BURST_SECONDS`` call for more at once; empty: none.

        ``capacity`` is what runs serves of ``recent``, ``refused`` what was refused of it, in req/s by model;
        ``waiting`` counts requests that wait for room: they, and those that come while executors start, are to be
        served as well.
        """
        now = self._clock()
        found, sudden = dict[str, ModelLoad](), False
        for name, load in recent.items():
            known = name in self._goals and self._goals[name].gpus
            if not known or load.rate * self._rules.window < self._rules.least:
                continue
            until = self._start + ROLLOUT_SECONDS
            queued = waiting.get(name, 0) + max(0.0, load.rate - capacity.get(name, 0.0)) * until
            needed = load.rate + queued / DRAIN_SECONDS
            if refused.get(name, 0.0) > 0 and now - self._changed >= BURST_SECONDS:
                sudden = True
                most = max(needed, capacity.get(name, 0.0))
                found[name] = msgspec.structs.replace(load, rate=most * _REFUSED_FACTOR)
            elif needed > capacity.get(name, 0.0) * (1 + _BURST_MARGIN):
                found[name] = msgspec.structs.replace(load, rate=max(needed, self._highest[name].value))
        if not self._is_confirmed(bool(found), now) and not sudden:
            return {}
        for name, load in found.items():
            self._highest[name].add(now, load.rate)
        return found

    def _is_confirmed(self, short: bool, now: float) -> bool:
        """Return whether something has been ``short`` for a second: what comes first says little of what is coming."""
        self._short_since = (self._short_since if self._short_since is not None else now) if short else None
        return self._short_since is not None and now - self._short_since >= CONFIRM_SECONDS

    def decide(self, scene: ScalingSnapshot) -> Verdict:
        """Decide what to do now; ``note_plan_change`` is to be called once it is under way."""
        margin, hold = self._rules.margin, self._rules.hold
        gain = self._relative_gain(scene, scene.best, scene.rerouted)
        # A mix that still changes is on its way somewhere, unless it never arrives.
        waited = self._is_sustained("better", gain, margin, hold if self._is_mix_steady(scene.load) else 2 * hold)
        better = waited and self._pays_for_starts(min(gain, _MAX_GAIN) * scene.now.gpus, scene)
        routes = self._is_sustained("routes", self._relative_gain(scene, scene.rerouted, scene.now), margin, hold)
        spared = scene.now.gpus - scene.best.gpus if any(goal.gpus for goal in self._goals.values()) else 0.0
        fewer = self._is_sustained("fewer", spared, 0.0, self._patience) and self._pays_for_starts(spared, scene)
        if self._clock() - self._changed < self._rules.cooldown:
            return Verdict.KEEP
        if any(self._lacks_capacity(name, scene) for name in self._models_with_load(scene.load, gpus=True)):
            return self._decide_scale_up(scene)
        if better or fewer:
            return Verdict.REPLAN
        return Verdict.REROUTE if routes and "better" not in self._true else Verdict.KEEP

    # What is known

    def _has_enough_requests(self, load: ModelLoad) -> bool:
        return load.rate * self._rules.window >= self._rules.least

    def _models_with_load(self, loads: Loads, gpus: bool) -> list[str]:
        """Models of a goal whose load says something."""
        return [
            name
            for name, goal in self._goals.items()
            if goal.gpus == gpus and name in loads and self._has_enough_requests(loads[name])
        ]

    def _is_sustained(self, what: str, value: float, above: float, seconds: float) -> bool:
        """Return whether ``value`` has been ``above`` for so long. Below half of it, it begins again."""
        now = self._clock()
        if value > above:
            self._true.setdefault(what, now)
            return now - self._true[what] >= seconds
        if value <= above / 2:
            self._true.pop(what, None)
        return False

    def _is_mix_steady(self, load: Loads) -> bool:
        """Return whether requests of each model are of the types that they were of half a window ago."""
        now, before = self._clock(), {name: each.shares for name, each in load.items()}
        while len(self._mixes) > 1 and self._mixes[1][0] <= now - self._rules.window / 2:
            self._mixes.popleft()
        self._mixes.append((now, before))
        then, shares = self._mixes[0]
        return then <= now - self._rules.window / 2 and all(
            mix_shift(shares.get(name, {}), mix) <= STEADY_MIX_FRACTION for name, mix in before.items()
        )

    def _pays_for_starts(self, gpus: float, scene: ScalingSnapshot) -> bool:
        """Return whether so many GPUs, as long as the load lasts, are more than what the starts take."""
        lasts = max(self._rules.cooldown, self._clock() - max(self._changed, self._began))
        return gpus * lasts > scene.best.starts

    # Most requests within the GPUs

    def _relative_gain(self, scene: ScalingSnapshot, one: DeploymentCapacity, other: DeploymentCapacity) -> float:
        """The part that ``one`` serves more of what comes than ``other``."""
        names = self._models_with_load(scene.load, gpus=False)
        served, before = _load_factor(names, scene, one), _load_factor(names, scene, other)
        if before <= 0:
            return math.inf if served > 0 else 0.0
        return served / before - 1

    # Fewest GPUs for the rate

    def _lacks_capacity(self, name: str, scene: ScalingSnapshot) -> bool:
        return scene.load[name].rate * (1 + self._goals[name].headroom / 2) > scene.now.capacity.get(name, 0.0)

    def _decide_scale_up(self, scene: ScalingSnapshot) -> Verdict:
        """Something lacks: other path rates if they are enough, else more executors if there are any to have."""
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
        """Take a value, return the highest."""
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((at, value))
        while falling[0][0] < at - self._seconds:
            falling.popleft()
        return self.value


def _load_factor(names: Iterable[str], scene: ScalingSnapshot, deployment: DeploymentCapacity) -> float:
    """Return the factor by which the rates of ``names`` can grow together within the capacity of ``deployment``."""
    return min((deployment.capacity.get(name, 0.0) / scene.load[name].rate for name in names), default=0.0)


def mix_shift(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The part of requests that are of another type."""
    return sum(max(0.0, share - before.get(kind, 0.0)) for kind, share in after.items())


def _has_more_capacity(name: str, one: DeploymentCapacity, other: DeploymentCapacity) -> bool:
    return one.capacity.get(name, 0.0) > other.capacity.get(name, 0.0) * (1 + EQUAL_CAPACITY_FRACTION)
