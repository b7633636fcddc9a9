"""The whole system with other families in vLLM, with or without encoder."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.families import catalog
from tests import models_oracle as oracle
from tests.e2e.questions import VL_QUESTIONS, Question, make_image, make_question
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System, declare_model, start_system
from tests.oracles import language, qwen3_vl
from tests.vllm.conftest import select_values
from tests.vllm.test_qwen3_vl import QUESTIONS

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

TOKENS = 24
WORDS = ["hello world, how are you today?", "the small cat sleeps on a warm red mat " * 30]


def make_claim(family: str, shape: str, *more: Any, nightly: bool = False) -> Any:
    """Parameters of a test that claims a cell."""
    marks = [pytest.mark.cell("vllm", family, "tokens", shape=shape), *([pytest.mark.nightly] if nightly else [])]
    return pytest.param(family, shape, *more, marks=marks)


LANGUAGE = [make_claim("qwen2", "L"), make_claim("qwen3", "P>D", nightly=True), make_claim("qwen3", "PD", nightly=True)]
VISION = [
    *(make_claim("qwen2_vl", "E>L", name) for name in VL_QUESTIONS),
    *(make_claim("qwen3_vl", "E>L", name) for name in QUESTIONS),
    *(make_claim("qwen3_vl", "EL", name, nightly=index > 0) for index, name in enumerate(QUESTIONS)),
    *(make_claim("multimodal_lm", shape, "image") for shape in ("E>L", "EL")),
]
#: The tiny models of further families.
MODELS = {"multimodal_lm": "qwen3_vl"}


def declare_vllm_model(family: str, checkpoint: Path, *shapes: str) -> dict[str, Any]:
    """A model with its language model in vLLM, in these shapes."""
    if "P" in "".join(shapes):
        model = catalog.split_declaration(family, str(checkpoint), *shapes)
    else:
        model = declare_model(family, checkpoint, paths=[{"options": shape.split(">"), "share": 1} for shape in shapes])
    used_options = {option for path in model["paths"] for option in path["options"]}
    options = {
        name: {**option, "engine": "omnibus_engines:vllm"} if option["service"] == "llm" else option
        for name, option in model["options"].items()
        if name in used_options
    }
    return {**model, "options": options}


@pytest.fixture(scope="module")
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, build: Callable[[str], Path]
) -> Iterator[System]:
    shapes: dict[str, list[str]] = {}
    for family, shape in sorted(select_values(request, "family", "shape")):
        shapes.setdefault(family, []).append(shape)
    models = {
        family: declare_vllm_model(family, build(MODELS.get(family, family)), *shape_list)
        for family, shape_list in shapes.items()
    }
    with start_system(tmp_path_factory.mktemp("families"), models, OMNIBUS_VLLM_KV_MIB="32") as system:
        yield system


@pytest.fixture(autouse=True)
async def ready_system(system: System) -> AsyncIterator[None]:
    await system.whole()
    await system.becomes_ready()
    yield
    await system.ledger_is_empty(5.0)


@pytest.mark.parametrize(("family", "shape"), LANGUAGE)
async def test_ids_and_text_are_those_of_the_whole_model(
    system: System, build: Callable[[str], Path], family: str, shape: str
) -> None:
    for words in WORDS:
        ids, text = language.generate_answer(build(family), [{"role": "user", "content": words}], TOKENS)

        answer = await send_question(system, make_question(words), shape, model=family)

        assert answer == (text, ids)


@pytest.mark.parametrize(("family", "shape", "name"), VISION)
async def test_with_pictures_they_are_those_of_the_whole_model(
    system: System, build: Callable[[str], Path], family: str, shape: str, name: str
) -> None:
    question: Question = QUESTIONS[name]
    name = MODELS.get(family, family)
    whole = qwen3_vl.generate_answer if name == "qwen3_vl" else oracle.vl_answer
    ids, text = whole(build(name), question.plain, question.media, TOKENS)

    answer = await send_question(system, question, shape if question.media else shape.removeprefix("E>"), model=family)

    assert answer == (text, ids)


@pytest.mark.parametrize(("family", "shape"), [("qwen2", "L"), pytest.param("qwen3", "P>D", marks=pytest.mark.nightly)])
async def test_pictures_are_refused_by_a_model_without_an_encoder(system: System, family: str, shape: str) -> None:
    body = {"model": family, "messages": make_question(make_image(1), "describe").messages}

    async with system.http() as http:
        response = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": shape})

    assert response.status_code == 400
    assert "text only" in response.json()["error"]["message"]
