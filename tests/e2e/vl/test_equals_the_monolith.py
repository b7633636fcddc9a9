"""Qwen2.5-VL answers like the whole model in every split."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from omnibus.plan import Path as PlannedPath
from tests import models_oracle as oracle
from tests.e2e.questions import VL_QUESTIONS, make_image, make_question
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch
from tests.nightly import covering

pytestmark = pytest.mark.e2e

TOKENS = 24


@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens")
@covering(name=VL_QUESTIONS, shape=["E>L", "EL", "E>EL"])
async def test_ids_and_text_are_those_of_the_whole_model(vl: System, vl_checkpoint: Path, name: str, shape: str):
    question = VL_QUESTIONS[name]
    path = shape if question.media else shape.removeprefix("E>")
    ids, text = oracle.vl_answer(vl_checkpoint, question.plain, question.media, TOKENS)

    async with Watch.on(vl) as watch, vl.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=VL,
            messages=question.messages,
            max_tokens=TOKENS,
            temperature=0,
            extra_headers={"x-omnibus-path": path},
        )
        await watch.end(raw.headers["x-request-id"])

    assert raw.headers["x-omnibus-path"] == path
    assert raw.parse().choices[0].message.content == text
    assert watch.ids(raw.headers["x-request-id"]) == ids


@pytest.fixture
async def partial_role(vl: System) -> str:
    """Plan a path on which the option EL encodes, and leaves the answer to L; returns its name."""
    name = "EL>L"
    async with vl.store() as store:
        plan = await store.plan()
        assert plan is not None
        model = plan.models[VL]
        path = PlannedPath(name, {"vision": "EL", "thinker": "L"}, 0.0)  # for requests that name it
        types = {**model.types, "vision+thinker": (*model.types["vision+thinker"], path)}
        models = {VL: msgspec.structs.replace(model, types=types)}
        await store.swap_plan(msgspec.structs.replace(plan, epoch=plan.epoch + 1, models=models))
    return name


async def test_an_option_may_leave_out_a_component(vl: System, vl_checkpoint: Path, partial_role: str):
    question = make_question(make_image(3), "describe the image")
    ids, text = oracle.vl_answer(vl_checkpoint, question.plain, question.media, TOKENS)

    async with Watch.on(vl) as watch, vl.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=VL,
            messages=question.messages,
            max_tokens=TOKENS,
            temperature=0,
            extra_headers={"x-omnibus-path": partial_role},
        )
        await watch.end(raw.headers["x-request-id"])

    assert raw.headers["x-omnibus-path"] == partial_role
    assert raw.parse().choices[0].message.content == text
    assert watch.ids(raw.headers["x-request-id"]) == ids


async def test_another_image_gives_another_answer(vl: System):
    async with vl.client() as client:
        answers = [
            await client.chat.completions.create(
                model=VL,
                messages=make_question(make_image(seed), "describe").messages,
                max_tokens=TOKENS,
                temperature=0,
            )
            for seed in range(4)
        ]

    assert len({answer.choices[0].message.content for answer in answers}) == 4


async def test_requests_at_the_same_time_each_get_their_own_answer(vl: System, vl_checkpoint: Path):
    questions = [
        make_question(make_image(seed), "describe the image") if seed % 3 else make_question(f"{seed} cats")
        for seed in range(24)
    ]
    expected_texts = [oracle.vl_answer(vl_checkpoint, one.plain, one.media, TOKENS)[1] for one in questions]

    async with vl.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=VL, messages=one.messages, max_tokens=TOKENS, temperature=0)
                for one in questions
            )
        )

    assert [answer.choices[0].message.content for answer in answers] == expected_texts
