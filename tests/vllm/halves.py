"""Both halves of a language model in vLLM."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import registry as engines
from tests.unit.llm.halves import Halves
from tests.vllm.conftest import CONTEXT

#: KV cache of the other engine: too small for eight long answers at once.
FAR_MIB = "2"


@dataclass
class Three:
    """Prefill and decode in one engine, and another decode."""

    prefill: Any
    near: Any
    far: Any

    def halves(self, near: bool = False) -> Halves:
        return Halves(self.prefill, self.near if near else self.far, near)

    async def until_idle(self) -> None:
        async with asyncio.timeout(10):
            while self.near.stats()["used"] or self.far.stats()["used"]:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def start_three(family: str, checkpoint: Path, **changes: Any) -> AsyncIterator[Three]:
    def make_engines(*components: str) -> list[Any]:
        settings = ExecutorSettings(
            family=family,
            checkpoint=str(checkpoint),
            context=CONTEXT,
            batch=8,
            components=",".join(components),
            **changes,
        )
        return [engines.vllm(component, settings) for component in components]

    with pytest.MonkeyPatch.context() as patch:
        runners = make_engines("prefill", "decode")
        patch.setenv("OMNIBUS_VLLM_KV_MIB", FAR_MIB)
        runners += make_engines("decode")
    try:
        for runner in runners:
            await runner.load()
        yield Three(*runners)
    finally:
        for runner in runners:
            await runner.close()
