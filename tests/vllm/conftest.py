"""vLLM thinkers and transformers thinkers on the same tiny checkpoints."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.executor.contract import Item
from omnibus.settings import ExecutorSettings
from omnibus_models import tiny
from omnibus_models.contract import Encoded
from services import engines
from services.llm.core import Core, ThinkSettings
from services.llm.runner import ThinkRunner
from services.llm.vllm.runner import VllmRunner

torch.set_num_threads(1)

CONTEXT = 1024


@pytest.fixture(scope="session")
def vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("models") / "vl", wide=True)


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_omni", tmp_path_factory.mktemp("models") / "omni", wide=True)


@pytest.fixture(scope="session", autouse=True)
def small_caches() -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv("OMNIBUS_VLLM_KV_MIB", "32")
    patch.setenv("OMNIBUS_VLLM_STEP_TOKENS", "64")


@asynccontextmanager
async def vllm(family: str, checkpoint: Path, **changes: Any) -> AsyncIterator[VllmRunner]:
    """A thinker as an executor makes it from its settings."""
    settings = ExecutorSettings(family=family, checkpoint=str(checkpoint), context=CONTEXT, **changes)
    runner = engines.vllm("thinker", settings)
    assert isinstance(runner, VllmRunner)
    try:
        await runner.load()
        yield runner
    finally:
        await runner.close()


@asynccontextmanager
async def transformers(family: str, checkpoint: Path) -> AsyncIterator[ThinkRunner]:
    runner = ThinkRunner(Core(family, checkpoint, "cpu", "float32", ThinkSettings(slots=8, context=CONTEXT)))
    await runner.load()
    yield runner
    await runner.close()


def sent(encoded: Sequence[Encoded]) -> list[Item]:
    """Embeddings as encoders send them."""
    return [Item(dict(one.meta), one.embeds.numpy()) for one in encoded]
