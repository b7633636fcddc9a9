"""Qwen2.5-Omni answers and speaks like the whole model in every split."""

import asyncio
from pathlib import Path

import pytest

from tests import models_oracle as oracle
from tests.e2e.omni.speech import (
    APART,
    TOKENS,
    assert_same_speech,
    choose_path,
    make_speech_body,
    read_spoken,
    whole_model,
)
from tests.e2e.questions import OMNI_QUESTIONS, Question, make_audio, make_image, make_question
from tests.e2e.system import OMNI, System
from tests.e2e.watch import Watch
from tests.nightly import covering, mark_nightly

pytestmark = pytest.mark.e2e


@pytest.mark.cell("transformers", "qwen2_5_omni", "tokens")
@covering(name=OMNI_QUESTIONS, shape=[APART, "M"])
async def test_ids_and_text_are_those_of_the_whole_model(omni: System, omni_checkpoint: Path, name: str, shape: str):
    question = OMNI_QUESTIONS[name]
    path = choose_path(shape, question, speech=False)
    ids, text = oracle.omni_text(omni_checkpoint, question.plain, question.media, 24)

    async with Watch.on(omni) as watch, omni.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=OMNI,
            messages=question.messages,
            max_tokens=24,
            temperature=0,
            extra_headers={"x-omnibus-path": path},
        )
        await watch.end(raw.headers["x-request-id"])

    assert raw.headers["x-omnibus-path"] == path
    assert raw.parse().choices[0].message.content == text
    assert watch.ids(raw.headers["x-request-id"]) == ids


@pytest.mark.cell("transformers", "qwen2_5_omni", "waveform")
@covering(name=OMNI_QUESTIONS, shape=[APART, "M"])
async def test_speech_sounds_like_that_of_the_whole_model(omni: System, omni_checkpoint: Path, name: str, shape: str):
    question = OMNI_QUESTIONS[name]
    path = choose_path(shape, question, speech=True)

    async with omni.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json=make_speech_body(question), headers={"x-omnibus-path": path}
        )

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-omnibus-path"] == path
    assert_same_speech(read_spoken(answer.json()), whole_model(omni_checkpoint, question))
    await omni.ledger_is_empty()


def make_mixed_question(number: int) -> Question:
    """Sixteen different questions of every kind."""
    kinds = [
        make_question(f"{number} cats and {number} dogs"),
        make_question(make_image(number), "describe the image"),
        make_question(make_audio(0.6 + number / 20, number), "what do you hear?"),
        make_question(make_image(number, 60 + 10 * number, 90), make_audio(0.5 + number / 16, number), "describe"),
    ]
    return kinds[number % 4]


@pytest.mark.parametrize("count", [5, *mark_nightly(16)])
async def test_requests_at_once_each_get_their_own_answer(omni: System, omni_checkpoint: Path, count: int):
    questions = [make_mixed_question(number) for number in range(count)]
    references = [whole_model(omni_checkpoint, question) for question in questions]

    async with omni.http() as http:
        answers = await asyncio.gather(
            *(http.post("/v1/chat/completions", json=make_speech_body(question)) for question in questions)
        )

    for answer, truth in zip(answers, references, strict=True):
        assert answer.status_code == 200, answer.text
        assert_same_speech(read_spoken(answer.json()), truth)
    assert len({one.sound.tobytes() for one in references}) == count
    await omni.ledger_is_empty()


async def test_another_image_or_sound_changes_text_and_speech(omni: System):
    questions = [make_question(make_image(seed), "describe") for seed in (1, 2)] + [
        make_question(make_audio(1, seed), "describe") for seed in (1, 2)
    ]

    async with omni.http() as http:
        answers = [await http.post("/v1/chat/completions", json=make_speech_body(question)) for question in questions]

    speeches = [read_spoken(answer.json()) for answer in answers]
    assert len({one.text for one in speeches}) == 4
    assert len({one.sound.tobytes() for one in speeches}) == 4


async def test_text_alone_uses_neither_talker_nor_vocoder(omni: System):
    async with Watch.on(omni) as watch, omni.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=OMNI, messages=make_question("hello").messages, max_tokens=TOKENS
        )
        await watch.end(raw.headers["x-request-id"])

    assert raw.parse().choices[0].message.audio is None
    tasks = {one.subject.split(".")[2].split("-")[0] for one in watch.seen if one.subject.startswith("omnibus.task.")}
    assert tasks == {"think"}
