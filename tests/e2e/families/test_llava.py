"""LLaVA-1.5 and LLaVA-NeXT, however they are taken apart, say what the whole models say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.families.plain import PATHS, QUESTIONS, checkpoints, equals_the_monolith, models
from tests.e2e.system import System, running

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return checkpoints(tmp_path_factory.mktemp("checkpoints"), "llava", "llava_next")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, built: dict[str, Path]) -> Iterator[System]:
    with running(tmp_path_factory.mktemp("llava"), models(built)) as made:
        yield made


@pytest.mark.cell("transformers", "llava", "tokens")
@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("name", QUESTIONS)
async def test_llava_says_what_the_whole_model_says(system: System, built: dict[str, Path], name: str, shape: str):
    await equals_the_monolith(system, "llava", built["llava"], shape, QUESTIONS[name])


@pytest.mark.cell("transformers", "llava_next", "tokens")
@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("name", QUESTIONS)
async def test_llava_next_says_what_the_whole_model_says(system: System, built: dict[str, Path], name: str, shape: str):
    await equals_the_monolith(system, "llava_next", built["llava_next"], shape, QUESTIONS[name])
