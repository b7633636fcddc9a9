"""The whole system with Qwen3-VL in vLLM: its encoder apart (E>L) and beside it (EL)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.shapes.test_shapes import said
from tests.e2e.system import System, declaration, running
from tests.oracles import qwen3_vl as oracle
from tests.vllm.test_qwen3_vl import QUESTIONS

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

MODEL = "qwen3-vl-tiny"
TOKENS = 24


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3_vl", tmp_path_factory.mktemp("models") / "vl", wide=True)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    usual = catalog.find_family("qwen3_vl")["options"]
    options = {"E": usual["E"], **{name: {**usual[name], "engine": "services.engines:vllm"} for name in ("L", "EL")}}
    paths = [{"options": path, "share": 1} for path in (["E", "L"], ["EL"])]
    declared = declaration("qwen3_vl", checkpoint, options=options, paths=paths)
    with running(tmp_path_factory.mktemp("served"), {MODEL: declared}, OMNIBUS_VLLM_KV_MIB="32") as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


@pytest.mark.cell("vllm", "qwen3_vl", "tokens")
@pytest.mark.parametrize("shape", ["E>L", "EL"])
@pytest.mark.parametrize("name", QUESTIONS)
async def test_ids_and_text_are_those_of_the_whole_model(
    system: System, checkpoint: Path, name: str, shape: str
) -> None:
    question = QUESTIONS[name]
    ids, text = oracle.answer(checkpoint, question.plain, question.media, TOKENS)

    answer = await said(system, question, shape if question.media else shape.removeprefix("E>"), model=MODEL)

    assert answer == (text, ids)
    await system.ledger_is_empty()
