"""However Qwen2-VL is taken apart, it says what the whole model says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests import models_oracle as oracle
from tests.e2e.questions import VL_QUESTIONS
from tests.e2e.shapes.test_shapes import said
from tests.e2e.system import System, declaration, running

pytestmark = pytest.mark.e2e

TOKENS = 24
MODEL, HALVES = "qwen2-vl-tiny", "qwen2-vl-halves"
#: Ways of a request with a picture, and of one without.
PATHS = {"E>L": "L", "EL": "EL", "E>EL": "EL", "E>P>D": "P>D"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_vl", tmp_path_factory.mktemp("checkpoints") / "qwen2_vl")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    models = {
        MODEL: declaration("qwen2_vl", checkpoint),
        HALVES: catalog.split_declaration("qwen2_vl", str(checkpoint), "E>P>D"),
    }
    with running(tmp_path_factory.mktemp("qwen2_vl"), models) as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(system: System) -> dict[str, int]:
    """Process id of every executor: a test begins when all of them are there and the gateway knows them."""
    pids = await system.whole()
    await system.becomes_ready()
    return pids


@pytest.mark.cell("transformers", "qwen2_vl", "tokens")
@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_ids_and_text_are_those_of_the_whole_model(system: System, checkpoint: Path, shape: str, name: str):
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(checkpoint, question.plain, question.media, TOKENS)

    answer = await said(
        system,
        question,
        shape if question.media else PATHS[shape],
        model=HALVES if shape == "E>P>D" else MODEL,
    )

    assert answer == (text, ids)
    await system.ledger_is_empty()
