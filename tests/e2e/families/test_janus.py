"""However Janus is taken apart, and whoever else is served, it says and paints what the whole model does."""

import asyncio
import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.apps.estate import error
from tests.e2e.questions import Question, ask, image
from tests.e2e.system import System, declaration, running
from tests.e2e.watch import Watch
from tests.oracles import janus as oracle
from tests.oracles import plain

pytestmark = pytest.mark.e2e

MODEL, HALVES = "janus-tiny", "janus-halves"
STUDIO = Path(__file__).parent / "studio"
APART, TOGETHER = "T>D>V", "TDV"
TOKENS = 24
QUESTIONS = {
    "text": ask("hello there, how are you?"),
    "image": ask(image(1), "describe the image"),
    "two images": ask("here", image(2), "and", image(3), "what is new?"),
}
#: What runs a request with a picture, and one without.
CHATS = {
    "E>L": (MODEL, "L"),
    "EL": (MODEL, "EL"),
    "E>EL": (MODEL, "EL"),
    "E>P>D": (HALVES, "P>D"),
    "EP>D": (HALVES, "EP>D"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("janus", tmp_path_factory.mktemp("checkpoints") / "janus")


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    models = {
        MODEL: declaration("janus", checkpoint),
        HALVES: catalog.split_declaration("janus", str(checkpoint), "E>P>D", "EP>D"),
    }
    flags = ("--apps-dir", str(STUDIO), "--app", str(STUDIO / "janus_painter.py"))
    with running(tmp_path_factory.mktemp("studio"), models, *flags) as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(studio: System) -> None:
    await studio.whole()
    await studio.becomes_ready()


async def said(system: System, question: Question, model: str, path: str) -> tuple[str, list[int]]:
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


async def paint(system: System, wish: dict[str, Any], path: str = "") -> tuple[list[np.ndarray], httpx.Response]:
    async with system.http() as http:
        headers = {"x-omnibus-path": path} if path else {}
        answer = await http.post("/v1/apps/janus_painter/invoke", json=wish, headers=headers)
    assert answer.status_code == 200, answer.text
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in answer.json()], answer


def wished(prompt: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "width": 64, "height": 64, "seed": seed, **more}


def wanted(checkpoint: Path, wish: dict[str, Any], place: int = 0) -> np.ndarray:
    return oracle.picture(checkpoint, wish["prompt"], wish["seed"] + place, wish.get("guidance"))[1]


@pytest.mark.cell("transformers", "janus", "tokens")
@pytest.mark.parametrize("shape", CHATS)
@pytest.mark.parametrize("name", QUESTIONS)
async def test_ids_and_text_are_those_of_the_whole_model(studio: System, checkpoint: Path, shape: str, name: str):
    question = QUESTIONS[name]
    model, textual = CHATS[shape]
    ids, text = plain.answer(checkpoint, question.plain, question.media, TOKENS)

    answer = await said(studio, question, model, shape if question.media else textual)

    assert answer == (text, ids)
    await studio.ledger_is_empty()


@pytest.mark.cell("transformers", "janus", "pixels", shape=(APART, TOGETHER))
@pytest.mark.parametrize("wish", [wished("a red square", 1, guidance=3.0), wished("birds over the hill", 2)])
async def test_a_picture_is_that_of_the_whole_model(studio: System, checkpoint: Path, wish: dict[str, Any]):
    [apart], first = await paint(studio, wish, APART)
    [together], second = await paint(studio, wish, TOGETHER)

    assert [answer.headers["x-omnibus-path"] for answer in (first, second)] == [APART, TOGETHER]
    np.testing.assert_array_equal(apart, together)
    # Only what lies between two of 256 values may be rounded to the other one.
    np.testing.assert_allclose(apart, wanted(checkpoint, wish), atol=0.51)
    assert apart.std() > 10
    await studio.ledger_is_empty()


async def test_a_picture_whose_size_nobody_says_has_that_of_the_model(studio: System, checkpoint: Path):
    wish = wished("a red square", 1, guidance=3.0)

    [picture], _ = await paint(studio, {key: wish[key] for key in ("prompt", "seed", "guidance")})

    np.testing.assert_allclose(picture, wanted(checkpoint, wish), atol=0.51)


async def test_chats_and_pictures_at_the_same_time_are_each_their_own(studio: System, checkpoint: Path):
    wishes = [wished(prompt, seed, n=2) for seed in range(4) for prompt in ("a red square", "a long river")]
    questions = [ask(image(seed), "describe the image") for seed in range(6)]

    async with studio.client() as client:
        chats = [
            client.chat.completions.create(model=MODEL, messages=one.messages, max_tokens=TOKENS, temperature=0)
            for one in questions
        ]
        answers, painted = await asyncio.gather(
            asyncio.gather(*chats), asyncio.gather(*(paint(studio, wish) for wish in wishes))
        )

    for wish, (pictures, _) in zip(wishes, painted, strict=True):
        for place, picture in enumerate(pictures):
            np.testing.assert_allclose(picture, wanted(checkpoint, wish, place), atol=0.51)
    for question, answer in zip(questions, answers, strict=True):
        text = plain.answer(checkpoint, question.plain, question.media, TOKENS)[1]
        assert answer.choices[0].message.content == text
    await studio.ledger_is_empty()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 128}, "64x64"),
        ({"negative_prompt": "clouds"}, "no negative prompt"),
        ({"prompt": "a <begin_of_image> b"}, "control token"),
    ],
)
async def test_wishes_that_cannot_be_met_are_refused(studio: System, changed: dict[str, Any], message: str):
    async with studio.http() as http:
        answer = await http.post("/v1/apps/janus_painter/invoke", json={**wished("a red square", 1), **changed})

    assert answer.status_code == 400
    assert message in error(answer)["message"]
    await studio.ledger_is_empty()
