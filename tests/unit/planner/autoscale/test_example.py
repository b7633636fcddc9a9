"""The shipped example under its own load, in virtual time: its plan stays in force."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus.cluster.presence import ReadyExecutors
from omnibus.executor.sim import read_profile
from omnibus.executor.sim.request import SimulatedRequest
from omnibus.plan import Plan
from omnibus.settings import PlannerSettings, StoreSettings
from omnibus.store import Store
from omnibus_planner.autoscale.autoscaler import Autoscaler
from omnibus_planner.declared import declarations_file
from omnibus_planner.optimize.job import PlanningJob
from omnibus_planner.rollout.rollout import PlanRollout
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, poisson_arrivals
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices, simulated_devices
from omnibus_planner.simulate.observed import ObservedRequest
from omnibus_planner.simulate.run import PlanSimulation, SimulatedPlan
from tests.memory_bus import MemoryBus
from tests.nightly import mark_nightly

ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.timeout(900)  # of a busy machine: it takes some seconds

EXAMPLE = ROOT / "examples" / "simulated"
MODEL = "omni"
#: A planner's default settings, and seconds between two expensive looks at the load.
SETTINGS = PlannerSettings(models=str(EXAMPLE / "models.json"))
LOOK_SECONDS = SETTINGS.window
MINUTES = 10
SEEN, HEARD, TEXT, SPOKEN = "vision+thinker", "audio+thinker+talker+vocoder", "thinker", "thinker+talker+vocoder"
#: Sizes of the example's requests as its engines count them; engines draw the answers' lengths.
SIZES: Mapping[str, Mapping[str, float]] = {
    SEEN: {"prompt_tokens": 340.0, "image_tokens": 300.0},
    HEARD: {"prompt_tokens": 122.0, "audio_tokens": 100.0},
    TEXT: {"prompt_tokens": 68.0},
    SPOKEN: {"prompt_tokens": 72.0},
}
#: Image tokens as gateways estimate them by the family's rule.
ESTIMATED_IMAGE = 256.0
SHARES, SPEECH_HEAVY = (0.4, 0.2, 0.3, 0.1), (0.15, 0.45, 0.1, 0.3)


class _Counts:
    """Counts of one type in one second: requests that arrived and ended, and sums of their sizes."""

    def __init__(self) -> None:
        self.came = self.done = 0
        self.tokens = self.speech = 0.0


class CountedSimulation(PlanSimulation):
    """A simulation that counts each second as a gateway does."""

    def __init__(self, plan: SimulatedPlan, seconds: float) -> None:
        super().__init__(plan, seconds, 0.0, 1)
        self.seconds: list[dict[str, _Counts]] = [{} for _ in range(int(seconds) + 1)]

    def _send(self, arrival: Arrival) -> None:
        self._find_counts(arrival.kind, arrival.at).came += 1
        super()._send(arrival)

    def _finish(self, request: SimulatedRequest, at: float) -> None:
        super()._finish(request, at)
        assert isinstance(request, ObservedRequest)
        if at < len(self.seconds):
            counts = self._find_counts(request.name, at)
            counts.done += 1
            counts.tokens += request.tokens
            counts.speech += request.spoken_seconds

    def _find_counts(self, kind: str, at: float) -> _Counts:
        return self.seconds[int(at)].setdefault(kind, _Counts())


def load_counts(kind: str, counts: _Counts) -> LoadCounts:
    """Return a gateway's report on a second of requests of ``kind``."""
    quantities = {name: size * counts.done for name, size in SIZES[kind].items()}
    quantities |= {"completion_tokens": counts.tokens, "speech_seconds": counts.speech}
    estimate = {**SIZES[kind], **({"image_tokens": ESTIMATED_IMAGE} if kind == SEEN else {})}
    return LoadCounts(
        came=counts.came,
        done=counts.done,
        quantities={name: value for name, value in quantities.items() if value},
        estimated={name: value * counts.came for name, value in estimate.items()},
        estimated_done={name: value * counts.done for name, value in estimate.items()},
    )


class Example(NamedTuple):
    """The planner of the example, its bus, and a clock."""

    follow: Autoscaler
    planning: PlanningJob
    plan: Plan
    bus: MemoryBus
    now: list[float]
    wanted: list[str]

    def engines(self) -> ModelDevices:
        """Return the devices of the example's executors."""
        checker = self.planning.checker
        assert checker is not None
        model = checker.planner.inputs[MODEL].model
        return simulated_devices(
            model.components, model.kinds, model.encoders, read_profile(str(EXAMPLE / "times.json"))
        )

    def seconds(self, shares: Sequence[float], part: float, minutes: float) -> Iterator[dict[str, LoadCounts]]:
        """Yield a gateway's reports by second, for ``part`` of the plan's capacity."""
        rate, length = part * self.planning.planned.capacity[MODEL], 60.0 * minutes
        rates = [TypeRate(MODEL, kind, share * rate, SIZES[kind]) for kind, share in zip(SIZES, shares, strict=True)]
        simulated_model = SimulatedModel(self.plan.models[MODEL], self.engines())
        run = CountedSimulation(SimulatedPlan({MODEL: simulated_model}), length)
        run.send_requests(poisson_arrivals(rates, length))
        for second in run.seconds[: int(length)]:
            yield {kind: load_counts(kind, counts) for kind, counts in second.items()}

    async def run(self, shares: Sequence[float], part: float, minutes: float) -> list[str]:
        """Return the reasons of new plans; the first one ends the run."""
        for number, types in enumerate(self.seconds(shares, part, minutes), 1):
            self.now[0] += 1.0
            event = LoadEvent("g", self.plan.epoch, 1.0, 0, {MODEL: types})
            self.bus.publish(subjects.event_subject(subjects.LOAD), msgspec.json.encode(event))
            await asyncio.sleep(0)
            if not number % LOOK_SECONDS:
                await self.follow.check_load()
                if self.wanted:
                    break
        return self.wanted


@pytest.fixture
async def example(valkey_url: str) -> AsyncIterator[Example]:
    store = Store(StoreSettings(url=valkey_url))
    now, reasons, bus = [0.0], list[str](), MemoryBus()
    planning = PlanningJob(store, SETTINGS.models, SETTINGS.simulate)
    planning.set_declarations(declarations_file.read_declarations(SETTINGS.models), {})
    result = await planning.plan({})
    changes = PlanRollout(store, SETTINGS, ReadyExecutors(), lambda plan: None)
    changes.plan = Plan(1, 0, 0.0, result.models, explain=result.explain)
    follow = Autoscaler(SETTINGS, changes, planning, reasons.append, lambda: now[0])
    await follow.listen(bus)
    yield Example(follow, planning, changes.plan, bus, now, reasons)
    await store.close()


@pytest.mark.parametrize("part", [0.15, *mark_nightly(0.3, 0.7, 1.0)])
async def test_ten_minutes_of_its_own_load_bring_no_other_plan(example: Example, part: float):
    assert await example.run(SHARES, part, MINUTES) == []


async def test_another_mix_brings_one_within_two_minutes(example: Example):
    (reason,) = await example.run(SPEECH_HEAVY, 0.15, 2.0)

    assert reason.startswith("load: omni")
