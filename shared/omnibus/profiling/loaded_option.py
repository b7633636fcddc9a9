"""A deployed trial under load: steps of load, and more replicas of what holds its option back."""

import asyncio
from collections.abc import Callable

from omnibus.bus import Bus
from omnibus.errors import DeadlineExceeded, Overloaded
from omnibus.profiling.engine_stats import EngineStats, compare_stats, reports_busy
from omnibus.profiling.experiments import Trial, with_replicas
from omnibus.profiling.load_generator import ClosedLoop, LoadRequest, LoadStep
from omnibus.profiling.monitor import BusySample
from omnibus.profiling.steps import StepMeasurement, busy_shares, option_loads
from omnibus.profiling.testbed import DeployedTrial, NotStarted, Testbed

#: Other options that are busy for at least so much of what the busiest is get more replicas together with it.
_BUSY_TOGETHER = 0.7
#: Requests in the system for each slot of an engine, so that one that ends is followed by one that waits.
_REQUESTS_PER_SLOT = 2
#: Lengths of a step for which nothing is sent after a refusal.
_CALM_STEPS = 2


class LoadedOption:
    """The option of ``trial`` as it is ``deployed``, with at most ``most_others`` replicas of any other one."""

    def __init__(
        self, house: Testbed, trial: Trial, deployed: DeployedTrial, most_others: int, tell: Callable[[str], None]
    ) -> None:
        self._house = house
        self._deployed = deployed
        self._most_others = most_others
        self._tell = tell
        self.trial = trial
        self.notes: list[str] = []

    @property
    def bus(self) -> Bus:
        return self._house.stack.bus

    @property
    def executor(self) -> str:
        """Id of the executor that is measured."""
        return self._deployed.under

    @property
    def pid(self) -> int:
        return self._deployed.pid

    @property
    def start_seconds(self) -> float:
        """Fewest seconds in which an executor of the option became ready; 0: none was seen to start."""
        return self._house.starts.get(self.trial.option, 0.0)

    async def read_stats(self) -> EngineStats:
        return await self._house.hearing.read_stats(self.executor)

    async def full_load(self, at_once: int, most: int) -> int:
        """Return how many requests at a time fill the engines: ``at_once``, or more where these have more slots."""
        slots = max((int(each.get("slots") or 0) for each in (await self.read_stats()).values()), default=0)
        return min(most, max(at_once, _REQUESTS_PER_SLOT * slots))

    async def run_step(self, orders: list[LoadRequest], at_once: int, step: LoadStep) -> StepMeasurement:
        """Keep ``at_once`` requests of ``orders`` under way for a step, and look at the executors before and after."""
        executors = dict(self._deployed.executors)
        looks: list[tuple[dict[str, BusySample], EngineStats]] = []

        async def read_executors() -> None:
            looks.append((await self._house.hearing.read_busy(executors), await self.read_stats()))

        seen = await ClosedLoop(self._house.stack.port, orders, at_once).run(step, read_executors)
        (before, stats), (after, stats_after) = looks
        loads = option_loads(executors, before, after)
        return StepMeasurement(
            seen,
            busy_shares(before[self.executor], after[self.executor]) if reports_busy(stats_after) else None,
            compare_stats(stats, stats_after, at_once),
            {name: load for name, load in loads.items() if name != self.trial.option},
        )

    async def run_most(
        self, orders: list[LoadRequest], at_once: int, step_of: Callable[[int], LoadStep]
    ) -> tuple[StepMeasurement, bool]:
        """Run a step with ``at_once`` requests at a time, or, where the gateway refuses some, with half as many, and so
        on; returns it, and whether some were refused. ``step_of`` says how long a step of so many lasts. Between two of
        them a gateway has time to see that nobody waits any more: until then it refuses what it would take.

        Raises what the gateway answers to one request at a time.
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
        """Double the replicas of the other options that were busiest in ``step``; False when there cannot be more."""
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
            self.notes.append(f"{before.option} has no more replicas of others beside it: {error.message}")
            self.trial, self._most_others = before, 0
            self._deployed = await self._house.deploy(before)
            return False
        return True
