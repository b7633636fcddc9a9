"""LLaVA-OneVision answers like the whole model in every split."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.families.plain import FILMS, PATHS, QUESTIONS, TOKENS, equals_the_monolith
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import System
from tests.nightly import covering
from tests.oracles import plain as oracle

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("plain families")]

NAME = "llava_onevision"
ASKED = {**QUESTIONS, **FILMS}


@pytest.mark.cell("transformers", "llava_onevision", "tokens")
@covering(name=ASKED, shape=PATHS)
async def test_it_says_what_the_whole_model_says(
    vision_system: System, family_checkpoints: dict[str, Path], name: str, shape: str
):
    await equals_the_monolith(vision_system, NAME, family_checkpoints[NAME], shape, ASKED[name])


async def test_equal_pictures_alone_and_in_company_are_not_taken_for_each_other(
    vision_system: System, family_checkpoints: dict[str, Path]
):
    picture = make_image(5, 150, 90)
    questions = [
        make_question(picture, "describe"),
        make_question(picture, picture, "describe"),
        make_question(picture, make_image(6), "describe"),
    ] * 4
    expected_texts = [
        oracle.generate_answer(family_checkpoints[NAME], one.plain, one.media, TOKENS)[1] for one in questions
    ]

    async with vision_system.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=NAME, messages=one.messages, max_tokens=TOKENS, temperature=0)
                for one in questions
            )
        )

    assert [answer.choices[0].message.content for answer in answers] == expected_texts
    assert len(set(expected_texts)) == 3
