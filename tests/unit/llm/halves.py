"""Both halves of a language model, joined as over a bus."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from tests.unit.jobs import MemoryJob, run


@dataclass
class Halves:
    """Both halves of one model; with ``near`` they share a process."""

    prefill: PrefillRunner
    decode: DecodeRunner
    near: bool
    made: list[tuple[MemoryJob, MemoryJob]] = field(default_factory=list)

    def jobs(self, asked: MemoryJob, *wants: str) -> tuple[MemoryJob, MemoryJob]:
        """Return the nodes of one request: the second reads the outputs of the first."""
        near = ("cache",) if self.near else ()
        spoken = tuple(name for name in wants if name != "rows")
        first = MemoryJob(asked._inputs, wants=("cache", "start", *spoken), seed=asked.seed, near=near)
        given = {name: first.outputs[name] for name in ("cache", "start")}
        # Seeds of nodes may differ; the prefill's seed applies.
        second = MemoryJob(
            {**given, "params": asked.inputs["params"]},
            wants=("rows",) if "rows" in wants else (),
            seed=asked.seed + 1,
            invocation=first.invocation,
        )
        self.made.append((first, second))
        return first, second

    async def answer(self, asked: MemoryJob, *wants: str) -> MemoryJob:
        first, second = self.jobs(asked, *wants)
        await asyncio.gather(run(self.prefill, first), run(self.decode, second))
        return second


def core(checkpoint: Path, family: str = "qwen2_5_vl", **settings: Any) -> ThinkerCore:
    return ThinkerCore(family, checkpoint, "cpu", "float32", ThinkSettings(**{"slots": 3, "context": 512, **settings}))
