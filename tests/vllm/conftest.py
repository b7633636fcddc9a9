"""vLLM thinkers and transformers thinkers on the same tiny checkpoints."""

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import registry as engines
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_llm.vllm.runner import VllmRunner
from omnibus_models import tiny
from omnibus_models.contract import Encoded
from tests.vllm.warm_cores import fork_engine_cores

torch.set_num_threads(1)

CONTEXT = 1024
#: Marks of tests whose engines are made in this process.
IN_PROCESS = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.usefixtures("forked_cores")]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the tiny checkpoint of a family, building it once."""
    directory = tmp_path_factory.mktemp("models")
    return functools.cache(lambda family: tiny.build(family, directory / family, wide=True))


@pytest.fixture(scope="session")
def vl(build: Callable[[str], Path]) -> Path:
    return build("qwen2_5_vl")


@pytest.fixture(scope="session")
def omni(build: Callable[[str], Path]) -> Path:
    return build("qwen2_5_omni")


@pytest.fixture(scope="session", autouse=True)
def small_caches() -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv("OMNIBUS_VLLM_KV_MIB", "32")
    patch.setenv("OMNIBUS_VLLM_STEP_TOKENS", "64")


@pytest.fixture(scope="session")
def forked_cores() -> Iterator[None]:
    """Engines of this process start within a second."""
    with pytest.MonkeyPatch.context() as patch:
        fork_engine_cores(patch)
        yield


@asynccontextmanager
async def start_vllm(family: str, checkpoint: Path, **changes: Any) -> AsyncIterator[VllmRunner]:
    """A thinker as an executor creates it from its settings."""
    settings = ExecutorSettings(family=family, checkpoint=str(checkpoint), context=CONTEXT, **changes)
    runner = engines.vllm("thinker", settings)
    assert isinstance(runner, VllmRunner)
    try:
        await runner.load()
        yield runner
    finally:
        await runner.close()


@asynccontextmanager
async def start_transformers(family: str, checkpoint: Path) -> AsyncIterator[ThinkRunner]:
    runner = ThinkRunner(ThinkerCore(family, checkpoint, "cpu", "float32", ThinkSettings(slots=8, context=CONTEXT)))
    await runner.load()
    yield runner
    await runner.close()


def select_values(request: pytest.FixtureRequest, *names: str) -> set[tuple[str, ...]]:
    """Values of the parameters ``names`` in this module's selected tests."""
    items = (item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function))
    all_params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return {tuple(params[name] for name in names) for params in all_params if {*names} <= params.keys()}


def list_descriptors(pid: int | str = "self") -> list[str]:
    """Shared memory of requests that a process holds."""
    paths = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            paths.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue  # the one that lists them
    return [path for path in paths if "omnibus-llm" in path]


def engine_core(processes: Sequence[psutil.Process]) -> psutil.Process:
    """The one engine core among ``processes``."""

    def read_title(process: psutil.Process) -> str:
        with contextlib.suppress(psutil.NoSuchProcess):
            return " ".join(process.cmdline())
        return ""

    [core] = [one for one in processes if "EngineCore" in read_title(one)]
    return core


def encode_items(encodings: Sequence[Encoded]) -> list[Item]:
    """Embeddings as encoders send them."""
    return [Item(dict(one.meta), one.embeds.numpy()) for one in encodings]
