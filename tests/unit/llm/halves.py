"""Both halves of a language model, joined as over a bus."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from tests.unit.jobs import MemoryJob, finish_job


@dataclass
class Halves:
    """Both halves of one model; with ``near`` they share a process."""

    prefill: PrefillRunner
    decode: DecodeRunner
    near: bool
    made: list[tuple[MemoryJob, MemoryJob]] = field(default_factory=list)

    def jobs(self, request: MemoryJob, *wants: str) -> tuple[MemoryJob, MemoryJob]:
        """Return the nodes of one request: the second reads the outputs of the first."""
        near = ("cache",) if self.near else ()
        speech_outputs = tuple(name for name in wants if name != "rows")
        first = MemoryJob(request._inputs, wants=("cache", "start", *speech_outputs), seed=request.seed, near=near)
        first_outputs = {name: first.outputs[name] for name in ("cache", "start")}
        # Seeds of nodes may differ; the prefill's seed applies.
        second = MemoryJob(
            {**first_outputs, "params": request.inputs["params"]},
            wants=("rows",) if "rows" in wants else (),
            seed=request.seed + 1,
            invocation=first.invocation,
        )
        self.made.append((first, second))
        return first, second

    async def answer(self, request: MemoryJob, *wants: str) -> MemoryJob:
        first, second = self.jobs(request, *wants)
        await asyncio.gather(finish_job(self.prefill, first), finish_job(self.decode, second))
        return second


def make_core(checkpoint: Path, family: str = "qwen2_5_vl", **settings: Any) -> ThinkerCore:
    return ThinkerCore(family, checkpoint, "cpu", "float32", ThinkSettings(**{"slots": 3, "context": 512, **settings}))
