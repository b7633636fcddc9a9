"""One step of load on an option: its rate, its busy share, and whether it was the bottleneck."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from omnibus.profiling.engine_stats import EngineWindow
from omnibus.profiling.load_generator import LoadResult
from omnibus.profiling.monitor import BusySample
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
