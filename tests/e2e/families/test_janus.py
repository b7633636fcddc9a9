"""Janus answers and generates images like the whole model in every split.

Other models on the system do not change this.
"""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.apps.estate import read_error
from tests.e2e.questions import Question, make_image, make_question
from tests.e2e.system import System
from tests.e2e.watch import Watch
from tests.nightly import covering
from tests.oracles import janus as oracle
from tests.oracles import plain

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("painters")]

MODEL, HALVES = "janus-tiny", "janus-halves"
APART, TOGETHER = "T>D>V", "TDV"
TOKENS = 24
QUESTIONS = {
    "text": make_question("hello there, how are you?"),
    "image": make_question(make_image(1), "describe the image"),
    "two images": make_question("here", make_image(2), "and", make_image(3), "what is new?"),
}
#: Paths of a request with an image, and of one without.
CHATS = {
    "E>L": (MODEL, "L"),
    "EL": (MODEL, "EL"),
    "E>EL": (MODEL, "EL"),
    "E>P>D": (HALVES, "P>D"),
    "EP>D": (HALVES, "EP>D"),
}


@pytest.fixture(autouse=True)
async def wait_for_executors(painters: System) -> None:
    await painters.whole()
    await painters.becomes_ready()


async def send_question(system: System, question: Question, model: str, path: str) -> tuple[str, list[int]]:
    """Text and ids of an answer that took ``path``."""
    async with Watch.on(system) as watch, system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=model,
            messages=question.messages,
            max_tokens=TOKENS,
            temperature=0,
            extra_headers={"x-omnibus-path": path},
        )
        await watch.end(raw.headers["x-request-id"])
    assert raw.headers["x-omnibus-path"] == path
    return raw.parse().choices[0].message.content or "", watch.ids(raw.headers["x-request-id"])


async def paint_images(system: System, wish: dict[str, Any], path: str = "") -> tuple[list[np.ndarray], httpx.Response]:
    async with system.http() as http:
        headers = {"x-omnibus-path": path} if path else {}
        answer = await http.post("/v1/apps/janus_painter/invoke", json=wish, headers=headers)
    assert answer.status_code == 200, answer.text
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in answer.json()], answer


def make_wish(prompt: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "width": 64, "height": 64, "seed": seed, **more}


def expected_image(janus_checkpoint: Path, wish: dict[str, Any], place: int = 0) -> np.ndarray:
    return oracle.generate_image(janus_checkpoint, wish["prompt"], wish["seed"] + place, wish.get("guidance"))[1]


@pytest.mark.cell("transformers", "janus", "tokens")
@covering(name=QUESTIONS, shape=CHATS)
async def test_ids_and_text_are_those_of_the_whole_model(
    painters: System, janus_checkpoint: Path, shape: str, name: str
):
    question = QUESTIONS[name]
    model, textual = CHATS[shape]
    ids, text = plain.generate_answer(janus_checkpoint, question.plain, question.media, TOKENS)

    answer = await send_question(painters, question, model, shape if question.media else textual)

    assert answer == (text, ids)
    await painters.ledger_is_empty()


@pytest.mark.cell("transformers", "janus", "pixels", shape=(APART, TOGETHER))
@pytest.mark.parametrize("wish", [make_wish("a red square", 1, guidance=3.0), make_wish("birds over the hill", 2)])
async def test_a_picture_is_that_of_the_whole_model(painters: System, janus_checkpoint: Path, wish: dict[str, Any]):
    [apart], first = await paint_images(painters, wish, APART)
    [together], second = await paint_images(painters, wish, TOGETHER)

    assert [answer.headers["x-omnibus-path"] for answer in (first, second)] == [APART, TOGETHER]
    np.testing.assert_array_equal(apart, together)
    # Only values between two of 256 steps may round differently.
    np.testing.assert_allclose(apart, expected_image(janus_checkpoint, wish), atol=0.51)
    assert apart.std() > 10
    await painters.ledger_is_empty()


async def test_a_picture_whose_size_nobody_says_has_that_of_the_model(painters: System, janus_checkpoint: Path):
    wish = make_wish("a red square", 1, guidance=3.0)

    [picture], _ = await paint_images(painters, {key: wish[key] for key in ("prompt", "seed", "guidance")})

    np.testing.assert_allclose(picture, expected_image(janus_checkpoint, wish), atol=0.51)


async def test_chats_and_pictures_at_the_same_time_are_each_their_own(painters: System, janus_checkpoint: Path):
    wishes = [make_wish(prompt, seed, n=2) for seed in range(4) for prompt in ("a red square", "a long river")]
    questions = [make_question(make_image(seed), "describe the image") for seed in range(6)]

    async with painters.client() as client:
        chats = [
            client.chat.completions.create(model=MODEL, messages=one.messages, max_tokens=TOKENS, temperature=0)
            for one in questions
        ]
        answers, results = await asyncio.gather(
            asyncio.gather(*chats), asyncio.gather(*(paint_images(painters, wish) for wish in wishes))
        )

    for wish, (pictures, _) in zip(wishes, results, strict=True):
        for place, picture in enumerate(pictures):
            np.testing.assert_allclose(picture, expected_image(janus_checkpoint, wish, place), atol=0.51)
    for question, answer in zip(questions, answers, strict=True):
        text = plain.generate_answer(janus_checkpoint, question.plain, question.media, TOKENS)[1]
        assert answer.choices[0].message.content == text
    await painters.ledger_is_empty()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 128}, "64x64"),
        ({"negative_prompt": "clouds"}, "does not support negative prompts"),
        ({"prompt": "a <begin_of_image> b"}, "control token"),
    ],
)
async def test_wishes_that_cannot_be_met_are_refused(painters: System, changes: dict[str, Any], message: str):
    async with painters.http() as http:
        answer = await http.post("/v1/apps/janus_painter/invoke", json={**make_wish("a red square", 1), **changes})

    assert answer.status_code == 400
    assert message in read_error(answer)["message"]
    await painters.ledger_is_empty()
