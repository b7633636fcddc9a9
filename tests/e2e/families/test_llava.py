"""LLaVA-1.5 and LLaVA-NeXT answer like the whole models in every split."""

from pathlib import Path

import pytest

from tests.e2e.families.plain import PATHS, QUESTIONS, equals_the_monolith
from tests.e2e.system import System
from tests.nightly import covering

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("plain families")]


@pytest.mark.cell("transformers", "llava", "tokens")
@covering(name=QUESTIONS, shape=PATHS)
async def test_llava_says_what_the_whole_model_says(
    vision_system: System, family_checkpoints: dict[str, Path], name: str, shape: str
):
    await equals_the_monolith(vision_system, "llava", family_checkpoints["llava"], shape, QUESTIONS[name])


@pytest.mark.cell("transformers", "llava_next", "tokens")
@covering(name=QUESTIONS, shape=PATHS)
async def test_llava_next_says_what_the_whole_model_says(
    vision_system: System, family_checkpoints: dict[str, Path], name: str, shape: str
):
    await equals_the_monolith(vision_system, "llava_next", family_checkpoints["llava_next"], shape, QUESTIONS[name])
