"""Qwen2-VL answers like the whole model in every split."""

from pathlib import Path

import pytest

from tests import models_oracle as oracle
from tests.e2e.questions import VL_QUESTIONS
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System
from tests.nightly import covering

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("plain families")]

TOKENS = 24
MODEL, HALVES = "qwen2_vl", "qwen2_vl-halves"
#: Paths of a request with an image, and of one without.
PATHS = {"E>L": "L", "EL": "EL", "E>EL": "EL", "E>P>D": "P>D"}


@pytest.fixture(autouse=True)
async def executor_pids(vision_system: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateway."""
    pids = await vision_system.whole()
    await vision_system.becomes_ready()
    return pids


@pytest.mark.cell("transformers", "qwen2_vl", "tokens")
@covering(name=VL_QUESTIONS, shape=PATHS)
async def test_ids_and_text_are_those_of_the_whole_model(
    vision_system: System, family_checkpoints: dict[str, Path], shape: str, name: str
):
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(family_checkpoints[MODEL], question.plain, question.media, TOKENS)

    answer = await send_question(
        vision_system,
        question,
        shape if question.media else PATHS[shape],
        model=HALVES if shape == "E>P>D" else MODEL,
    )

    assert answer == (text, ids)
    await vision_system.ledger_is_empty()
