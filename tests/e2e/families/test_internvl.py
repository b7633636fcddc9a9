"""InternVL3 answers like the whole model in every split."""

from pathlib import Path

import pytest

from tests.e2e.families.plain import FILMS, PATHS, QUESTIONS, equals_the_monolith
from tests.e2e.system import System
from tests.nightly import covering

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("plain families")]

NAME = "internvl"
ASKED = {**QUESTIONS, **FILMS}


@pytest.mark.cell("transformers", "internvl", "tokens")
@covering(name=ASKED, shape=PATHS)
async def test_it_says_what_the_whole_model_says(
    vision_system: System, family_checkpoints: dict[str, Path], name: str, shape: str
):
    await equals_the_monolith(vision_system, NAME, family_checkpoints[NAME], shape, ASKED[name])
