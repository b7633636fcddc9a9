"""One system for all routes: a model that makes pictures, each component alone, and one that hears and speaks."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.system import OMNI, System, declaration, running

PAINTER = "qwen-image-tiny"


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory, image_checkpoint: Path, omni_checkpoint: Path) -> Iterator[System]:
    models = {
        PAINTER: declaration("qwen_image", image_checkpoint),
        OMNI: declaration("qwen2_5_omni", omni_checkpoint),
    }
    with running(tmp_path_factory.mktemp("routes"), models) as made:
        yield made


@pytest.fixture
async def client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    await system.becomes_ready()
    async with system.client() as made:
        yield made
