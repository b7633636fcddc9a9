"""Two models of one checkpoint with recommended sampling; one declares other values."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.system import System, start_system

RECOMMENDED, DECLARED = "qwen3-recommended", "qwen3-declared"


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny.build("qwen3", tmp_path_factory.mktemp("checkpoints") / "qwen3")
    path = directory / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_sample": False, "top_k": 20, "max_new_tokens": 24}))
    return directory


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    declaration = catalog.model_declaration("qwen3", str(checkpoint))
    models = {
        RECOMMENDED: declaration,
        DECLARED: {**declaration, "sampling_defaults": {"checkpoint": False, "max_tokens": 7}},
    }
    with start_system(tmp_path_factory.mktemp("sampling"), models) as new_system:
        yield new_system


@pytest.fixture
async def client(system: System) -> AsyncIterator[httpx.AsyncClient]:
    await system.becomes_ready()
    async with httpx.AsyncClient(base_url=system.url, timeout=60) as new_client:
        yield new_client
