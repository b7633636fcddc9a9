"""Text-only models answer like the library's ``generate``, whole and in halves."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.questions import Question, make_audio, make_image, make_question, make_video
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System, declare_model, start_system
from tests.nightly import covering
from tests.oracles import language as oracle

pytestmark = pytest.mark.e2e

TOKENS = 24
TELLERS = Path(__file__).parent / "tellers"
FAMILIES = [
    pytest.param(name, marks=pytest.mark.cell("transformers", name, "tokens"))
    for name in ("causal_lm", "qwen2", "qwen3")
]
QUESTIONS = {
    "short": make_question("hello world, how are you today?"),
    "two parts": make_question("one two three", "four five six"),
    "long": make_question(" ".join(["the small cat sleeps on a warm red mat"] * 60)),
}
SHAPES = ("L", "P>D", "PD")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("checkpoints")
    return {family: tiny.build(family, directory / family) for family in ("causal_lm", "qwen2", "qwen3")}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[System]:
    models: dict[str, Any] = {}
    for family, checkpoint in checkpoints.items():
        models[f"{family}-tiny"] = declare_model(family, checkpoint)
        models[f"{family}-halves"] = catalog.split_declaration(family, str(checkpoint), "P>D", "PD")
    flags = ("--apps-dir", str(TELLERS), "--app", str(TELLERS / "teller.py"))
    with start_system(tmp_path_factory.mktemp("language"), models, *flags) as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(system: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateway."""
    pids = await system.whole()
    await system.becomes_ready()
    return pids


def model_name(family: str, shape: str) -> str:
    return f"{family}-tiny" if shape == "L" else f"{family}-halves"


def expected_answer(checkpoint: Path, question: Question) -> tuple[str, list[int]]:
    """Text and ids of the whole model."""
    words = "\n".join(text for _, text in question.parts)
    ids, text = oracle.generate_answer(checkpoint, [{"role": "user", "content": words}], TOKENS)
    return text, ids


@pytest.mark.parametrize("family", FAMILIES)
@covering(name=QUESTIONS, shape=SHAPES)
async def test_ids_and_text_are_those_of_the_whole_model(
    system: System, checkpoints: dict[str, Path], family: str, shape: str, name: str
):
    question = QUESTIONS[name]

    answer = await send_question(system, question, shape, model=model_name(family, shape))

    assert answer == expected_answer(checkpoints[family], question)
    await system.ledger_is_empty()


@pytest.mark.cell("transformers", "qwen2", "sampled", shape=SHAPES)
async def test_sampled_answers_do_not_depend_on_the_shape(system: System):
    settings = {"temperature": 1.0, "top_p": 0.9, "seed": 11}

    answers = [
        await send_question(system, QUESTIONS["short"], path, model=model_name("qwen2", path), **settings)
        for path in SHAPES
    ]

    assert len(answers[0][1]) > 1
    assert all(answer == answers[0] for answer in answers)


async def test_requests_at_the_same_time_each_get_their_own_answer(system: System, checkpoints: dict[str, Path]):
    requests = [
        (family, shape, make_question(f"{number} cats"))
        for number, shape in enumerate(SHAPES * 4)
        for family in checkpoints
    ]

    async with system.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=model_name(family, shape), messages=question.messages, max_tokens=TOKENS, temperature=0
                )
                for family, shape, question in requests
            )
        )

    expected_texts = [expected_answer(checkpoints[family], question)[0] for family, _, question in requests]
    assert [answer.choices[0].message.content for answer in answers] == expected_texts
    await system.ledger_is_empty()


@pytest.mark.parametrize("name", ["qwen2-tiny", "qwen3-halves", "teller"])
@pytest.mark.parametrize("medium", [make_image(1), make_audio(0.5), make_video(1)], ids=lambda medium: medium[0])
async def test_media_are_refused_with_what_the_model_takes(system: System, name: str, medium: tuple[str, bytes]):
    before = await system.whole()
    body = {"model": name, "messages": make_question(medium, "describe").messages, "max_tokens": 4}

    async with system.http() as http:
        response = await http.post("/v1/chat/completions", json=body)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "bad_request", "messages")
    assert f"takes no {medium[0]} input (it takes: text only)" in error["message"]
    assert await system.whole() == before
    await system.ledger_is_empty()


async def test_an_app_of_a_language_model_alone_answers_as_the_model_does(system: System, checkpoints: dict[str, Path]):
    body = {"model": "teller", "messages": QUESTIONS["short"].messages, "max_tokens": TOKENS, "temperature": 0}

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body)

    assert answer.status_code == 200, answer.text
    assert (
        answer.json()["choices"][0]["message"]["content"]
        == expected_answer(checkpoints["qwen2"], QUESTIONS["short"])[0]
    )
    await system.ledger_is_empty()


async def test_an_answer_streams(system: System, checkpoints: dict[str, Path]):
    async with system.client() as client:
        stream = await client.chat.completions.create(
            model="qwen3-tiny", messages=QUESTIONS["short"].messages, max_tokens=TOKENS, temperature=0, stream=True
        )
        deltas = [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert "".join(deltas) == expected_answer(checkpoints["qwen3"], QUESTIONS["short"])[0]
    assert sum(map(bool, deltas)) > 1
