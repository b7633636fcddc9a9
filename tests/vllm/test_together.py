"""vLLM thinkers that share an executor with other components.

These are an encoder (EL), and all of an omni model (M). vLLM's metrics are exported with the executor's own, and panels
and alerts use no others of it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from omnibus.families import catalog
from tests import models_oracle as oracle
from tests import observed
from tests.e2e.metrics.conftest import scrape_metrics
from tests.e2e.omni.speech import assert_same_speech, make_speech_body, read_spoken, whole_model
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import OMNI, VL, System, declare_model, start_system

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

TOKENS = 24


def declare_vllm_model(family: str, checkpoint: Path, shape: str) -> dict[str, Any]:
    option = {**catalog.find_family(family)["options"][shape], "engine": "omnibus_engines:vllm"}
    return declare_model(family, checkpoint, options={shape: option}, paths=[{"options": [shape], "share": 1}])


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, vl: Path, omni: Path) -> Iterator[System]:
    models = {VL: declare_vllm_model("qwen2_5_vl", vl, "EL"), OMNI: declare_vllm_model("qwen2_5_omni", omni, "M")}
    with start_system(tmp_path_factory.mktemp("together"), models, OMNIBUS_VLLM_KV_MIB="32") as system:
        yield system


@pytest.fixture(autouse=True)
async def ready_system(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens")
@pytest.mark.parametrize("shape", ["EL"])
@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_ids_and_text_are_those_of_the_whole_model(system: System, vl: Path, name: str, shape: str) -> None:
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(vl, question.plain, question.media, TOKENS)

    answer = await send_question(system, question, shape)

    assert answer == (text, ids)
    await system.ledger_is_empty()


@pytest.mark.cell("vllm", "qwen2_5_omni", "tokens")
@pytest.mark.cell("vllm", "qwen2_5_omni", "waveform")
@pytest.mark.parametrize("shape", ["M"])
@pytest.mark.parametrize("name", OMNI_QUESTIONS)
async def test_it_says_and_sounds_what_the_whole_model_does(system: System, omni: Path, name: str, shape: str) -> None:
    question = OMNI_QUESTIONS[name]

    async with system.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json=make_speech_body(question), headers={"x-omnibus-path": shape}
        )

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-omnibus-path"] == shape
    assert_same_speech(read_spoken(answer.json()), whole_model(omni, question))
    await system.ledger_is_empty()


def generated_tokens(texts: Sequence[str]) -> float:
    counts = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", "\n".join(texts), re.MULTILINE)
    return sum(map(float, counts))


async def test_panels_and_alerts_of_vllm_ask_only_for_what_it_emits(system: System) -> None:
    body = {"model": VL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    before = generated_tokens((await scrape_metrics(system))["llm"])

    async with system.http() as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    texts = (await scrape_metrics(system))["llm"]

    assert observed.find_unanswered(observed.read_expressions(observed.VLLM), observed.read_samples(texts)) == []
    assert generated_tokens(texts) - before == 5
    assert [text.count("# TYPE process_resident_memory_bytes") for text in texts] == [1, 1]
