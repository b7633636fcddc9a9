"""Status of an executor: in heartbeats, for Prometheus and for ``nats service stats``.

Prometheus metrics of an executor, from ``Runner.stats``; missing numbers are omitted.

Identity of an executor, and its status events on the bus.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from omnibus.bus.messages import PREFILL_ONLY, BatchCounts, ExecutorStatus
from omnibus.executor.runner import Runner
from omnibus.metrics import ENGINE, EXECUTOR
from omnibus.metrics.collectors import Values
from omnibus.process.memory import resident_bytes

#: Metrics by the key of ``Runner.stats``.
_KEYS = {
    "waiting": ENGINE.waiting,
    "slots": ENGINE.slots,
    "used": ENGINE.used,
    "tokens": ENGINE.tokens,
    "restarts": ENGINE.restarts,
}


def watch_runners(runners: Mapping[str, Runner]) -> None:
    """Read this process's metrics from the ``stats`` of ``runners`` by component."""

    def stat_reader(key: str) -> Callable[[], Values]:
        return lambda: {
            (name,): float(stats[key])
            for name, one in runners.items()
            if isinstance((stats := one.stats()).get(key), int | float)
        }

    for key, metric in _KEYS.items():
        metric.set_values(stat_reader(key))
    ENGINE.batches.set_counts(
        lambda: {name: _batch_sizes(one) for name, one in runners.items() if "batches" in one.stats()}
    )


def _batch_sizes(runner: Runner) -> dict[int, int]:
    return {int(size): count for size, count in runner.stats()["batches"].items()}


#: See ``ExecutorStatus.takes``.
TAKES = ("cache_key", "cache_salt", "fallback_temperature")


@dataclass(frozen=True)
class ExecutorIdentity:
    """Identity of this executor: set once at start, repeated in every status event."""

    id: str
    model: str
    option: str
    node: str
    tasks: Mapping[str, str]  # unit task name to component
    credits: int
    origin: str = ""  # of the plan that requires it; empty without one
    slots: int = 0  # invocations of a batch
    device: str = ""  # of its engines: cpu, or a GPU
    cell: str = ""  # of a model in cells
    sampling: Mapping[str, float] | None = None  # see ``ExecutorStatus``
    inline: int = 0  # bytes of a tensor that is sent within its message to a reader on another node

    def make_status(
        self,
        state: str,
        inflight: int,
        steps: int,
        keeps: bool = False,
        busy: tuple[float, ...] = (),
        done: tuple[int, ...] = (),
        gpu_bytes: int = 0,
        batches: tuple[BatchCounts, ...] = (),
    ) -> ExecutorStatus:
        """Return the status event; ``state`` is ready, draining or gone."""
        return ExecutorStatus(
            id=self.id,
            model=self.model,
            option=self.option,
            components=tuple(self.tasks.values()),
            tasks=tuple(self.tasks),
            node=self.node,
            state=state,
            credits=self.credits,
            inflight=inflight,
            steps=steps,
            pid=os.getpid(),
            origin=self.origin,
            cell=self.cell,
            keeps=keeps,
            busy=busy,
            done=done,
            slots=self.slots,
            device=self.device,
            memory_bytes=resident_bytes(),
            gpu_bytes=gpu_bytes,
            batches=batches,
            takes=TAKES,
            sampling=None if self.sampling is None else dict(self.sampling),
        )


#: Devices that are not GPUs.
_NO_GPU = ("", "cpu")
#: For engines that do not count their batches.
_NO_BATCHES = BatchCounts()
#: Keys of ``Runner.stats``: GPU bytes of this process, and of one that an engine has started.
_GPU_STATS = ("gpu_bytes", "engine_gpu_bytes")


class Vitals:
    """Status of the executor ``identity`` and of its ``runners`` by component."""

    def __init__(self, identity: ExecutorIdentity, runners: Mapping[str, Runner]) -> None:
        self._identity = identity
        self._runners = runners
        #: Increased by any progress: an executor that has work and takes no step is stuck.
        self.steps = 0
        #: Finished jobs by component.
        self.done: Counter[str] = Counter()

    @property
    def is_serving(self) -> bool:
        """True if every runner has its engine; see ``runner.Runner``."""
        return all(getattr(runner, "serving", True) for runner in self._runners.values())

    def register_metrics(self, inflight: Callable[[], int]) -> None:
        """Register this executor's metrics in this process; ``inflight`` counts its invocations."""
        EXECUTOR.inflight.set_value(inflight)
        EXECUTOR.credits.set_value(lambda: self._identity.credits)
        self._register_role()

    def change_role(self, identity: ExecutorIdentity, runners: Mapping[str, Runner]) -> None:
        """Change to the status of ``identity`` and its ``runners``."""
        me = self._identity
        EXECUTOR.about.remove(me.id, me.model, me.option, me.node)
        for component in self._runners:
            EXECUTOR.busy.remove(component)
        self._identity, self._runners = identity, runners
        self._register_role()

    def _register_role(self) -> None:
        me = self._identity
        EXECUTOR.about.labels(me.id, me.model, me.option, me.node).set(1)
        watch_runners(self._runners)
        for component in self._runners:
            EXECUTOR.busy.labels(component).set_function(partial(self._busy_seconds, component))

    def find_state(self, state: str) -> str:
        """Return the state to report. A ``ready`` executor without an engine reports ``loading``."""
        return state if state != "ready" or self.is_serving else "loading"

    def make_status(self, state: str, inflight: int) -> ExecutorStatus:
        """Return the status event of an executor in ``state``."""
        components = self._identity.tasks.values()
        status = self._identity.make_status(
            self.find_state(state),
            inflight=inflight,
            steps=self.steps,
            keeps=any(getattr(runner, "keeps", False) for runner in self._runners.values()),
            busy=tuple(round(self._busy_seconds(component), 6) for component in components),
            done=tuple(self.done[component] for component in components),
            gpu_bytes=0 if self._identity.device in _NO_GPU else self._gpu_bytes(),
            batches=tuple(self._batch_counts(component) for component in components),
        )
        if not any(getattr(runner, "keeps_prompts", False) for runner in self._runners.values()):
            return status
        return msgspec.structs.replace(status, takes=(*status.takes, PREFILL_ONLY))

    def component_stats(self, component: str) -> dict[str, Any]:
        """Return the data of ``nats service stats`` for a component.

        ``busy`` is null for an engine without it.
        """
        tells = hasattr(self._runners[component], "busy")
        counters = {
            "busy": round(self._busy_seconds(component), 6) if tells else None,
            "done": self.done[component],
        }
        return {**self._runners[component].stats(), **counters}

    def busy_seconds(self) -> float:
        """Return the seconds that all engines have computed."""
        return sum(self._busy_seconds(component) for component in self._runners)

    def _gpu_bytes(self) -> int:
        """Return the peak GPU bytes of this process and its engines' processes."""
        stats = [runner.stats() for runner in self._runners.values()]
        return sum(max((int(each.get(key) or 0) for each in stats), default=0) for key in _GPU_STATS)

    def _batch_counts(self, component: str) -> BatchCounts:
        counts: BatchCounts = getattr(self._runners[component], "batch_counts", _NO_BATCHES)
        return counts

    def _busy_seconds(self, component: str) -> float:
        return float(getattr(self._runners[component], "busy", 0.0))  # optional for engines of apps
