"""Qwen3-VL answers like the whole model in every split."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.questions import VL_QUESTIONS, make_image, make_question, make_video
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System, declare_model, start_system
from tests.nightly import covering
from tests.oracles import qwen3_vl as oracle

pytestmark = pytest.mark.e2e

WHOLE, SPLIT = "qwen3-vl-tiny", "qwen3-vl-halves"
TOKENS = 24
#: Paths of a request with an image, and of one without.
PATHS = {"E>P>D": "P>D", "EP>D": "EP>D", "ED>P": "P>ED", "E>PD": "PD", "EPD": "EPD"}
USUAL = {"E>L": "L", "EL": "EL", "E>EL": "EL"}
QUESTIONS = {
    **VL_QUESTIONS,
    "two videos and an image": make_question(
        make_video(1, 1), "then", make_image(4, 120, 60), make_video(3, 2), "compare"
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    models = {
        WHOLE: declare_model("qwen3_vl", checkpoint),
        SPLIT: catalog.split_declaration("qwen3_vl", str(checkpoint), *PATHS),
    }
    # Goals, so that encoders and language models of one executor share a loop; shares that cut through media.
    more = {"TTFT": "1.0", "TBT": "0.2", "SHARE": "16", "CACHE_MIB": "8"}
    settings = {f"OMNIBUS_EXECUTOR_{name}": value for name, value in more.items()}
    with start_system(tmp_path_factory.mktemp("system"), models, **settings) as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


@pytest.mark.cell("transformers", "qwen3_vl", "tokens")
@covering(name=QUESTIONS, shape=[*USUAL, *PATHS])
async def test_ids_and_text_are_those_of_the_whole_model(system: System, checkpoint: Path, name: str, shape: str):
    question = QUESTIONS[name]
    ids, text = oracle.generate_answer(checkpoint, question.plain, question.media, TOKENS)
    path = shape if question.media else {**USUAL, **PATHS}[shape]

    answers = [
        await send_question(system, question, path, model=WHOLE if shape in USUAL else SPLIT)
        for _ in range(2)  # cached results equal computed ones
    ]

    assert answers == [(text, ids)] * 2
    await system.ledger_is_empty()


@pytest.mark.cell("transformers", "qwen3_vl", "sampled", shape=tuple(PATHS))
async def test_sampled_answers_do_not_depend_on_the_shape(system: System):
    question = make_question(make_video(2, 4), "describe")
    sampling = {"temperature": 1.0, "top_p": 0.9, "seed": 11, "extra_body": {"ignore_eos": True}}

    answers = [await send_question(system, question, path, model=SPLIT, **sampling) for path in PATHS]

    assert len(set(answers[0][1])) > 1
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("model", [WHOLE, SPLIT])
async def test_requests_at_the_same_time_each_get_their_own_answer(system: System, checkpoint: Path, model: str):
    questions = [
        make_question(make_image(seed), "describe") if seed % 3 else make_question(make_video(1, seed % 4), "what?")
        for seed in range(20)
    ]
    expected_texts = [oracle.generate_answer(checkpoint, one.plain, one.media, TOKENS)[1] for one in questions]

    async with system.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=model, messages=one.messages, max_tokens=TOKENS, temperature=0)
                for one in questions
            )
        )

    assert [answer.choices[0].message.content for answer in answers] == expected_texts
    await system.ledger_is_empty()
