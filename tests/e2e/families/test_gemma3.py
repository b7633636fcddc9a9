"""Gemma 3 answers like the whole model in every split.

Two sizes of it share one encoder.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus.up.tiny_models import TWIN_SEED
from omnibus_models import tiny
from tests.e2e.questions import Question, make_image, make_question
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.watch import Watch
from tests.nightly import covering
from tests.oracles import plain as oracle

pytestmark = pytest.mark.e2e

USUAL, HALVES, LARGER = "gemma3-tiny", "gemma3-halves", "gemma3-tiny-b"
ARENAS = Path(__file__).parent / "arenas"
TOKENS = 24
#: Paths of a request with an image, and of one without.
WAYS = {"E>L": "L", "EL": "EL", "E>EL": "EL"}
SPLIT = {"E>P>D": "P>D", "EP>D": "EP>D"}
#: The language model of one size with the other's encoder.
SHARED = f"{USUAL}/E>L"

QUESTIONS = {
    "text": make_question("hello world, how are you today? " * 6),
    "image": make_question(make_image(1, 120, 90), "what is in this picture?"),
    "two images": make_question("see", make_image(2), "and", make_image(3, 120, 200), "describe the image"),
    "images side by side": make_question(make_image(4), make_image(5), make_image(6, 300, 40), "compare"),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    small = tiny.build("gemma3", directory / "small")
    return {
        USUAL: small,
        HALVES: small,
        LARGER: tiny.build("gemma3", directory / "larger", llm_seed=TWIN_SEED, wide=LARGER in catalog.LARGER_TWINS),
    }


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[System]:
    models = {
        USUAL: declare_model("gemma3", checkpoints[USUAL]),
        HALVES: catalog.split_declaration("gemma3", str(checkpoints[HALVES]), *SPLIT),
        LARGER: catalog.shared_encoder_declaration(LARGER, str(checkpoints[LARGER])),
    }
    flags = ("--apps-dir", str(ARENAS), "--app", str(ARENAS / "sizes.py"))
    # Shares that are smaller than an image.
    with start_system(tmp_path_factory.mktemp("system"), models, *flags, OMNIBUS_EXECUTOR_SHARE="7") as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


@pytest.mark.cell("transformers", "gemma3", "tokens")
@covering(name=QUESTIONS, shape=[*WAYS, *SPLIT])
async def test_ids_and_text_are_those_of_the_whole_model(
    system: System, checkpoints: dict[str, Path], name: str, shape: str
):
    question = QUESTIONS[name]
    ids, text = oracle.generate_answer(checkpoints[USUAL], question.plain, question.media, TOKENS)
    path = shape if question.media else {**WAYS, **SPLIT}[shape]

    answer = await send_question(system, question, path, model=USUAL if shape in WAYS else HALVES)

    assert answer == (text, ids)
    await system.ledger_is_empty()


@pytest.mark.cell("transformers", "gemma3", "tokens", shape="a/E>L")
@pytest.mark.parametrize("name", QUESTIONS)
async def test_another_size_says_behind_that_encoder_what_it_says_alone(
    system: System, checkpoints: dict[str, Path], name: str
):
    question = QUESTIONS[name]
    ids, text = oracle.generate_answer(checkpoints[LARGER], question.plain, question.media, TOKENS)

    answer = await send_question(system, question, SHARED if question.media else "L", model=LARGER)

    assert answer == (text, ids)


async def test_two_sizes_answer_side_by_side_and_the_picture_is_encoded_once(
    system: System, checkpoints: dict[str, Path]
):
    question = make_question(make_image(9), "what is in this picture?")
    body = {"messages": question.messages, "max_tokens": TOKENS, "temperature": 0}

    async with Watch.on(system) as watch, system.http() as http:
        answer = await http.post("/v1/apps/sizes/invoke", json=body)
        assert answer.status_code == 200, answer.text
        await watch.end(answer.headers["x-request-id"])

    assert answer.json() == {
        model: oracle.generate_answer(checkpoints[model], question.plain, question.media, TOKENS)[1]
        for model in (USUAL, LARGER)
    }
    document = json.loads((await system.record(answer.headers["x-request-id"]))[0])
    assert sorted(node["task"] for node in document["nodes"]) == [
        "encode-gemma3-tiny-vision",
        "think-gemma3-tiny-b-thinker",
        "think-gemma3-tiny-thinker",
    ]
    await system.ledger_is_empty()


async def test_requests_to_all_models_at_the_same_time_each_get_their_own_answer(
    system: System, checkpoints: dict[str, Path]
):
    requests: list[tuple[str, Question]] = [
        (
            model,
            make_question(make_image(seed), "describe", *([make_image(seed + 1)] * (seed % 2)))
            if seed % 3
            else make_question(f"{seed} cats"),
        )
        for seed in range(8)
        for model in (USUAL, HALVES, LARGER)
    ]
    expected_texts = [
        oracle.generate_answer(checkpoints[model], one.plain, one.media, TOKENS)[1] for model, one in requests
    ]

    async with system.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=model, messages=one.messages, max_tokens=TOKENS, temperature=0)
                for model, one in requests
            )
        )

    assert [answer.choices[0].message.content for answer in answers] == expected_texts
    await system.ledger_is_empty()


async def test_turns_that_do_not_alternate_are_a_bad_request(system: System):
    twice = [{"role": "user", "content": "hello"}, {"role": "user", "content": "again"}]

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json={"model": USUAL, "messages": twice})

    assert answer.status_code == 400, answer.text
    assert "take turns" in answer.json()["error"]["message"]
    await system.ledger_is_empty()
