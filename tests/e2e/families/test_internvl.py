"""InternVL3, however it is taken apart, says what the whole model says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.families.plain import FILMS, PATHS, QUESTIONS, checkpoints, equals_the_monolith, models
from tests.e2e.system import System, running

pytestmark = pytest.mark.e2e

NAME = "internvl"
ASKED = {**QUESTIONS, **FILMS}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return checkpoints(tmp_path_factory.mktemp("checkpoints"), NAME)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, built: dict[str, Path]) -> Iterator[System]:
    with running(tmp_path_factory.mktemp("internvl"), models(built)) as made:
        yield made


@pytest.mark.cell("transformers", "internvl", "tokens")
@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("name", ASKED)
async def test_it_says_what_the_whole_model_says(system: System, built: dict[str, Path], name: str, shape: str):
    await equals_the_monolith(system, NAME, built[NAME], shape, ASKED[name])
