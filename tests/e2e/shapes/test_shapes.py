"""Prefill and decode answer like the whole model in every shape.

They leave nothing in the arena.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import models_oracle as oracle
from tests.e2e.omni.speech import assert_same_speech, make_speech_body, read_spoken, whole_model
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS, Question, make_image, make_question
from tests.e2e.shapes.conftest import PATHS
from tests.e2e.system import OMNI, VL, System
from tests.e2e.traffic import Edge, measure_traffic
from tests.e2e.watch import Watch
from tests.nightly import covering

pytestmark = pytest.mark.e2e

TOKENS = 24


async def send_question(system: System, question: Question, path: str, **more: Any) -> tuple[str, list[int]]:
    """Text and ids of an answer that took ``path``."""
    async with Watch.on(system) as watch, system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            **{"model": VL, "max_tokens": TOKENS, "temperature": 0, **more},
            messages=question.messages,
            extra_headers={"x-omnibus-path": path} if path else {},
        )
        await watch.end(raw.headers["x-request-id"])
    assert raw.headers["x-omnibus-path"] == path or not path
    return raw.parse().choices[0].message.content or "", watch.ids(raw.headers["x-request-id"])


@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens")
@covering(name=VL_QUESTIONS, shape=PATHS)
async def test_ids_and_text_are_those_of_the_whole_model(shapes: System, vl_checkpoint: Path, shape: str, name: str):
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(vl_checkpoint, question.plain, question.media, TOKENS)

    answer = await send_question(shapes, question, shape if question.media else PATHS[shape])

    assert answer == (text, ids)
    await shapes.ledger_is_empty()


@pytest.mark.cell("transformers", "qwen2_5_vl", "sampled", shape=tuple(PATHS))
async def test_sampled_answers_do_not_depend_on_the_shape(shapes: System):
    question = make_question(make_image(4), "describe the image")

    answers = [await send_question(shapes, question, path, temperature=1.0, top_p=0.9, seed=11) for path in PATHS]

    assert len(answers[0][1]) > 1
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.cell("transformers", "qwen2_5_omni", "tokens", shape="R>P>D")
@pytest.mark.parametrize("name", OMNI_QUESTIONS)
async def test_an_omni_model_writes_what_the_whole_model_writes(shapes: System, omni_checkpoint: Path, name: str):
    question = OMNI_QUESTIONS[name]
    ids, text = oracle.omni_text(omni_checkpoint, question.plain, question.media, TOKENS)

    answer = await send_question(shapes, question, "", model=OMNI)

    assert answer == (text, ids)


@pytest.mark.cell("transformers", "qwen2_5_omni", "waveform", shape="R>P>D")
async def test_an_omni_model_sounds_like_the_whole_model(shapes: System, omni_checkpoint: Path):
    question = OMNI_QUESTIONS["image and audio"]

    async with shapes.http() as http:
        answer = await http.post("/v1/chat/completions", json=make_speech_body(question))

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-omnibus-path"] == "R>P>D"
    assert_same_speech(read_spoken(answer.json()), whole_model(omni_checkpoint, question))
    await shapes.ledger_is_empty()


EMBEDDING, CACHE = ("embedding",), ("start", "cache")
CROSSES = {
    "E>P>D": {("E", "P"): EMBEDDING, ("P", "D"): CACHE},
    "EP>D": {("EP", "D"): CACHE},
    "ED>P": {("ED", "P"): EMBEDDING, ("P", "ED"): CACHE},
    "E>PD": {("E", "PD"): EMBEDDING},
    "EPD": {},
}


@pytest.mark.parametrize("shape", PATHS)
async def test_only_what_another_executor_needs_is_moved(shapes: System, shape: str):
    body = {"model": VL, "messages": VL_QUESTIONS["two images"].messages, "max_tokens": 8, "temperature": 0}

    async def send_request() -> httpx.Response:
        async with shapes.http() as http:
            return await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": shape})

    transfer = await measure_traffic(shapes, send_request)

    assert transfer.edges == {Edge(*ends, output) for ends, outputs in CROSSES[shape].items() for output in outputs}
    assert transfer.granted == transfer.named


async def test_requests_of_all_shapes_at_the_same_time_each_get_their_own_answer(shapes: System, vl_checkpoint: Path):
    questions = [
        make_question(make_image(seed), "describe the image") if seed % 3 else make_question(f"{seed} cats")
        for seed in range(30)
    ]
    expected_texts = [oracle.vl_answer(vl_checkpoint, one.plain, one.media, TOKENS)[1] for one in questions]

    async with shapes.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=VL, messages=one.messages, max_tokens=TOKENS, temperature=0)
                for one in questions
            )
        )

    assert [answer.choices[0].message.content for answer in answers] == expected_texts
    await shapes.ledger_is_empty()


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_leaves_leaves_nothing_behind(shapes: System, path: str):
    body = {
        "model": VL,
        "messages": make_question(make_image(5), "describe").messages,
        "max_tokens": 1500,
        "stream": True,
    }

    async with (
        shapes.http() as http,
        http.stream("POST", "/v1/chat/completions", json=body, headers={"x-omnibus-path": path}) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        while not (await anext(lines)).startswith("data: "):
            pass

    await shapes.ledger_is_empty(5.0)
