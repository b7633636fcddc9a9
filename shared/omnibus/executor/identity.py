"""Identity of an executor, and its status events on the bus."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from omnibus.bus.messages import BatchCounts, ExecutorStatus
from omnibus.process.memory import resident_bytes

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
