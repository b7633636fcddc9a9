"""Llama 3.2 Vision answers like the whole model in every split.

This includes concurrent requests of text alone.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.questions import make_image, make_question
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System, declare_model, start_system
from tests.nightly import covering, mark_nightly
from tests.oracles import plain as oracle

pytestmark = pytest.mark.e2e

USUAL, HALVES = "mllama-tiny", "mllama-halves"
TOKENS = 24
#: Paths of a request with an image, and of one without.
WAYS = {"E>L": "L", "EL": "EL", "E>EL": "EL"}
SPLIT = {"E>P>D": "P>D", "EP>D": "EP>D"}

QUESTIONS = {
    "text": make_question("hello world, how are you today? " * 6),
    "image of one tile": make_question(make_image(1, 50, 50), "what is in this picture?"),
    "image of four tiles": make_question("see", make_image(1, 300, 60), "what is in this picture?"),
    "two images": make_question(make_image(2), "and", make_image(3, 50, 100), "describe the image"),
    "images side by side": make_question(make_image(4), make_image(5, 40, 40), "compare"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("mllama", tmp_path_factory.mktemp("models") / "mllama")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    models = {
        USUAL: declare_model("mllama", checkpoint),
        HALVES: catalog.split_declaration("mllama", str(checkpoint), *SPLIT),
    }
    # With goals, so that encoders and language models of one executor share a loop; tight ones, so that shares are small.
    goals = {"OMNIBUS_EXECUTOR_TTFT": "1.0", "OMNIBUS_EXECUTOR_TBT": "0.000001"}
    with start_system(tmp_path_factory.mktemp("system"), models, **goals) as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


@pytest.mark.cell("transformers", "mllama", "tokens")
@covering(name=QUESTIONS, shape=[*WAYS, *SPLIT])
async def test_ids_and_text_are_those_of_the_whole_model(system: System, checkpoint: Path, name: str, shape: str):
    question = QUESTIONS[name]
    ids, text = oracle.generate_answer(checkpoint, question.plain, question.media, TOKENS)
    path = shape if question.media else {**WAYS, **SPLIT}[shape]

    answer = await send_question(system, question, path, model=USUAL if shape in WAYS else HALVES)

    assert answer == (text, ids)
    await system.ledger_is_empty()


@pytest.mark.parametrize("count", [6, *mark_nightly(12)])
async def test_requests_with_and_without_pictures_at_the_same_time_each_get_their_own_answer(
    system: System, checkpoint: Path, count: int
):
    requests = [
        (
            model,
            make_question(make_image(seed, *((300, 60), (50, 50))[seed % 2]), "describe")
            if seed % 3
            else make_question(f"{seed} cats"),
        )
        for seed in range(count)
        for model in (USUAL, HALVES)
    ]
    expected_texts = [oracle.generate_answer(checkpoint, one.plain, one.media, TOKENS)[1] for _, one in requests]

    async with system.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=model, messages=one.messages, max_tokens=TOKENS, temperature=0)
                for model, one in requests
            )
        )

    assert [answer.choices[0].message.content for answer in answers] == expected_texts
    await system.ledger_is_empty()


async def test_a_picture_counts_as_the_one_token_that_it_is_in_the_prompt(system: System):
    question = make_question(make_image(1), "describe", make_image(2), "this")

    async with system.client() as client:
        answer = await client.chat.completions.create(model=USUAL, messages=question.messages, max_tokens=2)

    assert answer.usage is not None
    details = answer.usage.model_dump()["prompt_tokens_details"]
    assert details["image_tokens"] == 2
    assert details["text_tokens"] == answer.usage.prompt_tokens - 2 > 0


async def test_a_system_message_beside_pictures_is_a_bad_request(system: System):
    messages = [{"role": "system", "content": "you are a cat."}, *make_question(make_image(1), "what?").messages]

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json={"model": USUAL, "messages": messages})

    assert answer.status_code == 400, answer.text
    assert "chat template does not take" in answer.json()["error"]["message"]
    await system.ledger_is_empty()
