"""Halves of a speaking model in vLLM: the talker gets the whole model's rows."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.families import load_family
from tests.e2e.questions import OMNI_QUESTIONS
from tests.unit.jobs import finish_job
from tests.vllm.conftest import IN_PROCESS, list_descriptors, start_transformers
from tests.vllm.halves import Three, start_three
from tests.vllm.test_omni import CUTS, SPEECH, cut_params, end_of, make_job

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def omni_three(omni: Path) -> AsyncIterator[Three]:
    async with start_three("qwen2_5_omni", omni) as new_engines:
        yield new_engines


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(omni: Path) -> AsyncIterator[ThinkRunner]:
    async with start_transformers("qwen2_5_omni", omni) as new_reference:
        yield new_reference


@pytest.fixture(scope="module")
def encoders(omni: Path) -> list[Any]:
    return [load_family("qwen2_5_omni").load(component, omni) for component in ("vision", "audio")]


@pytest.mark.cell("vllm", "qwen2_5_omni", "tokens")
@pytest.mark.cell("vllm", "qwen2_5_omni", "rows")
@pytest.mark.parametrize("shape", ["P>D", "PD"])
@pytest.mark.parametrize("name", OMNI_QUESTIONS)
async def test_halves_write_and_speak_as_a_thinker_does(
    omni_three: Three, reference: ThinkRunner, encoders: list[Any], name: str, shape: str
) -> None:
    halves, request, whole = (
        omni_three.halves(shape == "PD"),
        *(make_job(OMNI_QUESTIONS[name], encoders, voice="Ethan") for _ in "ab"),
    )

    answer = await halves.answer(request, *SPEECH)
    silent = await halves.answer(make_job(OMNI_QUESTIONS[name], encoders))
    await finish_job(reference, whole)

    first = halves.made[0][0]
    assert answer.ids == silent.ids == whole.ids
    assert answer.text == whole.text
    assert np.array_equal(first.array("layout"), whole.array("layout"))
    np.testing.assert_allclose(first.array("prompt"), whole.array("prompt"), rtol=0, atol=1e-4)
    np.testing.assert_allclose(answer.whole("rows"), whole.whole("rows"), rtol=0, atol=1e-4)
    assert answer.end("rows") == whole.end("rows")
    assert silent.outputs["rows"].items == []
    await omni_three.until_idle()
    assert list_descriptors() == []


@pytest.mark.parametrize("shape", ["P>D", "PD"])
@pytest.mark.parametrize("name", CUTS)
async def test_halves_speak_all_of_an_answer_that_is_cut(
    omni_three: Three, reference: ThinkRunner, encoders: list[Any], name: str, shape: str
) -> None:
    question, halves = OMNI_QUESTIONS["image and audio"], omni_three.halves(shape == "PD")
    free = await finish_job(reference, make_job(question, encoders, voice="Ethan"))
    request, whole = (make_job(question, encoders, voice="Ethan", **cut_params(free.text, name)) for _ in range(2))

    answer = await halves.answer(request, *SPEECH)
    await finish_job(reference, whole)

    assert (answer.text, end_of(answer)) == (whole.text, end_of(whole))
    np.testing.assert_allclose(answer.whole("rows"), whole.whole("rows"), rtol=0, atol=1e-4)
    await omni_three.until_idle()
    assert list_descriptors() == []
