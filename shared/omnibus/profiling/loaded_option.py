"""A deployed trial under load: runs steps, and adds replicas of the options that limit its rate."""

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
