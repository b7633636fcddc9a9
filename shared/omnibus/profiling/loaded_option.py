"""A deployed trial under load: runs steps, and adds replicas of the options that limit its rate.

One step of load on an option: its rate, its busy share, and whether it was the bottleneck.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from omnibus.bus import Bus
from omnibus.errors import DeadlineExceeded, Overloaded
from omnibus.profiling.experiments import Trial, with_replicas
from omnibus.profiling.load_generator import ClosedLoop, LoadRequest, LoadResult, LoadStep
from omnibus.profiling.monitor import BusySample, EngineStats, EngineWindow, compare_stats, reports_busy
from omnibus.profiling.testbed import DeployedTrial, NotStarted, Testbed
from omnibus.profiling.workload import WorkloadRequest

#: Share of the time that an option must be busy to count as the bottleneck, and share of the slots of its language
#: models that must be taken. The slots count because a model with a single sequence is busy all the time, too. A step
#: costs nearly the same with one sequence less, so the free share of slots is the share by which seconds are too many.
BOTTLENECK_LOAD, BOTTLENECK_FILL = 0.85, 0.95
#: Share of the time below which an option counts as having computed nothing.
MIN_LOAD = 1e-4
#: Sizes that differ by more than this factor are measured separately.
MIN_SIZE_RATIO = 1.2


class StepMeasurement(NamedTuple):
    """A step, and the busy share of each component of the option; None if unreported.

    ``engine`` has the work of its engines. ``others`` has the mean load of a replica of each other option of the path.
    """

    seen: LoadResult
    busy: dict[str, float] | None
    engine: EngineWindow = EngineWindow()
    others: Mapping[str, float] = {}

    @property
    def load(self) -> float:
        return sum(self.busy.values()) if self.busy is not None else -1.0

    @property
    def is_bottleneck(self) -> bool:
        """True if the option limited the rate, with the largest possible batches."""
        full = self.engine.fill is None or self.engine.fill >= BOTTLENECK_FILL or self.engine.waiting
        return self.load >= BOTTLENECK_LOAD and (full or not self.others)

    @property
    def seconds(self) -> float | None:
        """Seconds of one replica per request: None if the option computed nothing.

        If another option was the bottleneck, they follow from the service demand law.
        """
        if self.busy is None:
            return 1.0 / self.seen.rate
        if self.load < MIN_LOAD:
            return None
        return (1.0 if self.is_bottleneck else min(1.0, self.load)) / self.seen.rate

    def component_seconds(self, role: Sequence[str]) -> dict[str, float]:
        """Return the seconds of each component of ``role``."""
        seconds = self.seconds
        if seconds is None:
            return {}
        if len(role) == 1:
            return {role[0]: seconds}
        if self.busy is None:
            return {}
        return {part: seconds * self.busy.get(part, 0.0) / self.load for part in role}


def busy_shares(before: BusySample, after: BusySample) -> dict[str, float] | None:
    """Return each component's busy share between two samples: None if unreported."""
    if before.seconds is None or after.seconds is None:
        return None
    duration = max(after.at - before.at, 1e-9)
    return {part: max(0.0, after.seconds[part] - before.seconds[part]) / duration for part in after.seconds}


def option_loads(
    executors: Mapping[str, str], before: Mapping[str, BusySample], after: Mapping[str, BusySample]
) -> dict[str, float]:
    """Return the mean replica load of each option between two samples.

    ``executors`` maps id to option. An executor that reports no busy time counts as busy all the time.
    """
    option_shares: dict[str, list[float]] = {}
    for id, option in executors.items():
        shares = busy_shares(before[id], after[id])
        option_shares.setdefault(option, []).append(1.0 if shares is None else sum(shares.values()))
    return {option: sum(loads) / len(loads) for option, loads in option_shares.items()}


def split_by_size(requests: Sequence[WorkloadRequest]) -> list[tuple[float, list[WorkloadRequest]]]:
    """Split requests into small and large ones, each with its share; one group if sizes are similar."""
    by_size = sorted(requests, key=lambda request: request.size)
    if by_size[-1].size <= by_size[0].size * MIN_SIZE_RATIO:
        return [(1.0, by_size)]
    total, small_share = sum(request.share for request in by_size), 0.0
    small: list[WorkloadRequest] = []
    for request in by_size[:-1]:
        if small and small_share + request.share / 2 > total / 2:
            break
        small.append(request)
        small_share += request.share
    return [(small_share / total, small), (1 - small_share / total, by_size[len(small) :])]


def bottleneck_notes(option: str, steps: Mapping[str, StepMeasurement]) -> Iterator[str]:
    """Yield a note on ``steps``: the steps, by type, in which ``option`` was not the bottleneck."""
    if not steps:
        return
    words = []
    for kind, step in steps.items():
        fill = "" if step.engine.fill is None else f", batches {min(1.0, step.engine.fill):.0%} full"
        words.append(f"{kind or 'requests'} ({min(1.0, step.load):.0%} busy{fill})")
    yield (
        f"{option} was not the bottleneck for {', '.join(words)}: its seconds are upper bounds; "
        "raise --most-others or --most, or measure on a machine with more processors"
    )


#: Options at least this busy, relative to the busiest other option, get more replicas together with it.
_BUSY_TOGETHER = 0.7
#: Requests in the system for each slot of an engine, so that one that ends is followed by one that waits.
_REQUESTS_PER_SLOT = 2
#: Lengths of a step for which nothing is sent after a rejection.
_CALM_STEPS = 2


class LoadedOption:
    """The deployed option of ``trial``, with ``most_others`` replicas of others at most."""

    def __init__(
        self, house: Testbed, trial: Trial, deployment: DeployedTrial, most_others: int, tell: Callable[[str], None]
    ) -> None:
        self._house = house
        self._deployed = deployment
        self._most_others = most_others
        self._tell = tell
        self.trial = trial
        self.notes: list[str] = []

    @property
    def bus(self) -> Bus:
        return self._house.stack.bus

    @property
    def executor(self) -> str:
        """Id of the measured executor."""
        return self._deployed.under

    @property
    def pid(self) -> int:
        return self._deployed.pid

    @property
    def start_seconds(self) -> float:
        """Fewest seconds in which an executor became ready: 0 without a start."""
        return self._house.starts.get(self.trial.option, 0.0)

    async def read_stats(self) -> EngineStats:
        return await self._house.hearing.read_stats(self.executor)

    async def full_load(self, at_once: int, most: int) -> int:
        """Return how many requests fill the engines: ``at_once``, or more if they have more slots."""
        slots = max((int(each.get("slots") or 0) for each in (await self.read_stats()).values()), default=0)
        return min(most, max(at_once, _REQUESTS_PER_SLOT * slots))

    async def run_step(self, orders: list[LoadRequest], at_once: int, step: LoadStep) -> StepMeasurement:
        """Keep ``at_once`` requests of ``orders`` in flight for a step.

        Samples the executors before and after it.
        """
        executors = dict(self._deployed.executors)
        looks: list[tuple[dict[str, BusySample], EngineStats]] = []

        async def read_executors() -> None:
            looks.append((await self._house.hearing.read_busy(executors), await self.read_stats()))

        load_result = await ClosedLoop(self._house.stack.port, orders, at_once).run(step, read_executors)
        (before, stats), (after, stats_after) = looks
        loads = option_loads(executors, before, after)
        return StepMeasurement(
            load_result,
            busy_shares(before[self.executor], after[self.executor]) if reports_busy(stats_after) else None,
            compare_stats(stats, stats_after, at_once),
            {name: load for name, load in loads.items() if name != self.trial.option},
        )

    async def run_most(
        self, orders: list[LoadRequest], at_once: int, step_of: Callable[[int], LoadStep]
    ) -> tuple[StepMeasurement, bool]:
        """Run a step with ``at_once`` requests, or fewer after rejections.

        While the gateway rejects some, their number is halved. Returns the step, and whether the gateway rejected
        requests. ``step_of`` returns the length of a step with this many requests. After a rejection, nothing is sent
        for a while: until the gateway sees its queue empty, it rejects requests that it could take.

        Raises the gateway's error if it rejects a single request at a time.
        """
        most = at_once
        while True:
            step = step_of(at_once)
            try:
                return await self.run_step(orders, at_once, step), at_once < most
            except (Overloaded, DeadlineExceeded) as error:
                if at_once == 1:
                    raise
                at_once //= 2
                kind = orders[0].request.kind or "requests"
                self.notes.append(
                    f"{self.trial.option} took no more than {at_once} at a time of {kind} alone: {error.message}"
                )
                await asyncio.sleep(_CALM_STEPS * step.seconds)

    async def raise_others(self, step: StepMeasurement) -> bool:
        """Double the replicas of the busiest other options in ``step``; return False at the limit."""
        top = max(step.others.values(), default=0.0)
        more = {
            name: min(2 * self.trial.options[name].replicas, self._most_others)
            for name, load in step.others.items()
            if load >= _BUSY_TOGETHER * top and self.trial.options[name].replicas < self._most_others
        }
        if not more:
            return False
        self._tell(f"starting {', '.join(f'{count} x {name}' for name, count in more.items())}")
        before, self.trial = self.trial, with_replicas(self.trial, more)
        try:
            self._deployed = await self._house.deploy(self.trial)
        except NotStarted as error:
            self.notes.append(f"{before.option} cannot get more replicas of other options: {error.message}")
            self.trial, self._most_others = before, 0
            self._deployed = await self._house.deploy(before)
            return False
        return True
