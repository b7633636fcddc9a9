"""The whole system with both halves in vLLM: separate, combined, and with the encoder."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from tests import models_oracle as oracle
from tests.e2e.questions import VL_QUESTIONS, make_image, make_question
from tests.e2e.shapes.conftest import PATHS
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import VL, System, start_system
from tests.vllm.conftest import select_values

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

TOKENS = 24
SHAPES = PATHS


@pytest.fixture(scope="module")
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, vl: Path) -> Iterator[System]:
    shapes = {"E>P>D", "EPD", *(shape for (shape,) in select_values(request, "shape"))}
    model = catalog.split_declaration("qwen2_5_vl", str(vl), *sorted(shapes))
    for name in set(model["options"]) - {"E"}:
        model["options"][name] = {**model["options"][name], "engine": "omnibus_engines:vllm"}
    with start_system(tmp_path_factory.mktemp("halves"), {VL: model}, OMNIBUS_VLLM_KV_MIB="32") as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(system: System) -> AsyncIterator[dict[str, int]]:
    pids = await system.whole()
    await system.becomes_ready()
    yield pids
    await system.ledger_is_empty(5.0)


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_ids_and_text_are_those_of_the_whole_model(system: System, vl: Path, shape: str, name: str) -> None:
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(vl, question.plain, question.media, TOKENS)

    answer = await send_question(system, question, shape if question.media else PATHS[shape])

    assert answer == (text, ids)


@pytest.mark.cell("vllm", "qwen2_5_vl", "sampled")
@pytest.mark.parametrize("shape", SHAPES)
async def test_sampled_answers_do_not_depend_on_the_shape(system: System, shape: str) -> None:
    question = make_question(make_image(4), "describe the image")

    answers = [
        await send_question(system, question, path, temperature=1.0, top_p=0.9, seed=11) for path in ("EPD", shape)
    ]

    assert len(answers[0][1]) > 1
    assert answers[0] == answers[1]


async def test_an_answer_goes_on_in_another_shape_when_its_decode_dies(
    system: System, executor_pids: dict[str, int], vl: Path
) -> None:
    question, tokens = make_question(make_image(1), "describe the image"), 300
    text = oracle.vl_answer(vl, question.plain, question.media, tokens)[1]
    victim, output = "qwen2_5-vl-tiny-D-0", ""

    async with system.client() as client:
        stream = await client.chat.completions.create(
            model=VL,
            messages=question.messages,
            max_tokens=tokens,
            temperature=0,
            stream=True,
            extra_headers={"x-omnibus-path": "E>P>D"},
        )
        async for chunk in stream:
            output += chunk.choices[0].delta.content or ""
            if output and victim in executor_pids:
                os.kill(executor_pids.pop(victim), signal.SIGKILL)

    assert victim not in executor_pids
    assert output == text
