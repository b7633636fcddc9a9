"""The trained model of the small world, which draws what it is told, apart and together."""

from collections.abc import Iterator

import pytest

from omnibus_models import world
from tests.e2e.meaning.asking import PAINTER
from tests.e2e.system import System, declaration, running


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    models = {PAINTER: declaration("qwen_image", world.checkpoint("qwen_image"))}
    with running(tmp_path_factory.mktemp("house"), models) as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(house: System) -> None:
    """A test begins when all executors are there and the gateway knows them."""
    await house.whole()
    await house.becomes_ready()
