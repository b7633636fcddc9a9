"""Qwen2-VL with its language model in vLLM, behind an encoder of its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from omnibus_models import tiny
from tests import models_oracle as oracle
from tests.e2e.questions import VL_QUESTIONS
from tests.e2e.shapes.test_shapes import said
from tests.e2e.system import System, declaration, running
from tests.vllm.test_served import OPTIONS

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

TOKENS = 24
MODEL = "qwen2-vl-tiny"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_vl", tmp_path_factory.mktemp("models") / "qwen2_vl", wide=True)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    declared = declaration("qwen2_vl", checkpoint, options=OPTIONS, paths=[{"options": ["E", "L"], "share": 1}])
    with running(tmp_path_factory.mktemp("qwen2_vl"), {MODEL: declared}, OMNIBUS_VLLM_KV_MIB="32") as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(system: System) -> AsyncIterator[None]:
    await system.whole()
    await system.becomes_ready()
    yield
    await system.ledger_is_empty(5.0)


@pytest.mark.cell("vllm", "qwen2_vl", "tokens", shape="E>L")
@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_ids_and_text_are_those_of_the_whole_model(system: System, checkpoint: Path, name: str) -> None:
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(checkpoint, question.plain, question.media, TOKENS)

    answer = await said(system, question, "E>L" if question.media else "L", model=MODEL)

    assert answer == (text, ids)
