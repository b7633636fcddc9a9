"""Qwen3-Omni answers and speaks like the whole model in every split."""

import asyncio
import base64
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e import by_hand
from tests.e2e.omni.speech import Spoken, pcm, same, spoken
from tests.e2e.questions import OMNI_QUESTIONS, Question, ask, audio, image, video
from tests.e2e.shapes.test_shapes import said
from tests.e2e.system import System, declaration, running
from tests.e2e.watch import Watch, events
from tests.nightly import covering
from tests.oracles import qwen3_omni_moe as oracle

pytestmark = pytest.mark.e2e

NAME = "qwen3_omni_moe"
WHOLE, SPLIT = "qwen3-omni-tiny", "qwen3-omni-halves"
APART, TOGETHER = "EV>EA>Th>Ta>V", "EV>EA>Th>Ta+V"
TOKENS, FRAMES, VOICE = 10, 20, "Chelsie"
FAMILY = catalog.find_family(NAME)
QUESTIONS = {
    **OMNI_QUESTIONS,
    "all of them": ask(video(2, 2), image(3, 120, 60), audio(0.7, 2), "and", image(4), "compare"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(NAME, tmp_path_factory.mktemp("models") / "omni")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[System]:
    options = {name: FAMILY["options"][name] for name in ("EV", "EA", "Th", "Ta", "V", "Ta+V", "M")}
    paths = [{"options": shape.split(">"), "share": 1} for shape in (APART, TOGETHER, "M")]
    halves = catalog.split_declaration(NAME, str(checkpoint), "P>D")
    rest = {"components": ["vision", "audio", "talker", "vocoder"], "service": "llm"}
    halves |= {"options": {**halves["options"], "R": rest}, "paths": [{"options": ["R", "P", "D"], "share": 1}]}
    models = {WHOLE: declaration(NAME, checkpoint, options=options, paths=paths), SPLIT: halves}
    # Shares that cut through media.
    with running(tmp_path_factory.mktemp("system"), models, OMNIBUS_EXECUTOR_SHARE="48") as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


def taken(shape: str, question: Question, speech: bool) -> str:
    """Path of ``question`` in this ``shape``, without executors that are not needed."""
    if shape == "R>P>D":
        return ""  # the only one there is
    used = {"thinker", *(FAMILY["encoders"][kind] for kind in question.media)}
    used |= {"talker", "vocoder"} if speech else set()
    return ">".join(option for option in shape.split(">") if used & {*FAMILY["options"][option]["components"]})


def wanted(question: Question, model: str = WHOLE, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": question.messages,
        "modalities": ["text", "audio"],
        "audio": {"voice": VOICE, "format": "wav", "max_tokens": FRAMES},
        "max_tokens": TOKENS,
        "temperature": 0,
        **more,
    }


@functools.cache
def whole(checkpoint: Path, name: str) -> oracle.Answer:
    """The whole model's answer to a question, cached for many shapes."""
    question = QUESTIONS[name]
    return oracle.answer(checkpoint, question.plain, question.media, TOKENS, VOICE, FRAMES)


def heard(answer: oracle.Answer) -> Spoken:
    return Spoken(answer.text, pcm(answer.wave.numpy()))


@pytest.mark.cell("transformers", NAME, "tokens")
@pytest.mark.cell("transformers", NAME, "waveform")
@covering(name=QUESTIONS, shape=[APART, TOGETHER, "M", "R>P>D"])
async def test_it_says_and_sounds_what_the_whole_model_does(system: System, checkpoint: Path, name: str, shape: str):
    question = QUESTIONS[name]
    path, model = taken(shape, question, speech=True), SPLIT if shape == "R>P>D" else WHOLE
    truth = whole(checkpoint, name)

    async with Watch.on(system) as watch, system.http() as http:
        answer = await http.post(
            "/v1/chat/completions",
            json=wanted(question, model),
            headers={"x-omnibus-path": path} if path else {},
        )
        assert answer.status_code == 200, answer.text
        await watch.end(answer.headers["x-request-id"])

    assert answer.headers["x-omnibus-path"] == path or not path
    assert watch.ids(answer.headers["x-request-id"]) == truth.ids
    same(spoken(answer.json()), heard(truth))
    await system.ledger_is_empty()


@pytest.mark.parametrize("shape", [APART, "M"])
async def test_text_alone_is_that_of_the_whole_model(system: System, checkpoint: Path, shape: str):
    question = QUESTIONS["all of them"]
    ids, text = oracle.text(checkpoint, question.plain, question.media, 24)

    assert await said(system, question, taken(shape, question, speech=False), model=WHOLE) == (text, ids)


@pytest.mark.one_node  # by hand its end is sent to one
@pytest.mark.parametrize("path", [APART, "M"])
async def test_float_samples_are_those_of_the_whole_model(system: System, checkpoint: Path, path: str):
    question, truth = QUESTIONS["image and audio"], whole(checkpoint, "image and audio")

    answer = await by_hand.again(system, await by_hand.recorded(system, wanted(question), path), question)

    assert answer.text == truth.text
    np.testing.assert_allclose(answer.sound, truth.wave.numpy(), rtol=0, atol=1e-5)
    assert len(answer.sound) == FRAMES * 1920 - 555
    await system.ledger_is_empty()


async def test_a_stream_adds_up_to_the_whole_answer(system: System, checkpoint: Path):
    question = QUESTIONS["image and audio"]
    body = wanted(question, stream=True, audio={"voice": VOICE, "format": "pcm16", "max_tokens": FRAMES})

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": APART})
    deltas = [event["choices"][0]["delta"] for event in events(answer.content) if event["choices"]]
    pieces = [base64.b64decode(delta["audio"]["data"]) for delta in deltas if delta.get("audio", {}).get("data")]

    said = "".join(delta.get("content") or "" for delta in deltas)
    truth = whole(checkpoint, "image and audio")
    same(Spoken(said, np.frombuffer(b"".join(pieces), "<i2")), heard(truth))
    assert len(pieces) > 1


async def test_requests_at_the_same_time_each_get_their_own_answer(system: System, checkpoint: Path):
    kinds = [(image, audio), (audio,), (image,), ()]
    questions = [
        ask(*(make(1.0 + seed / 8, seed) if make is audio else make(seed) for make in kinds[seed % 4]), f"{seed} cats")
        for seed in range(8)
    ]
    voices = [FAMILY["voices"][seed % 3] for seed in range(8)]
    expected = [
        heard(oracle.answer(checkpoint, one.plain, one.media, TOKENS, voice, FRAMES))
        for one, voice in zip(questions, voices, strict=True)
    ]

    async with system.http() as http:
        answers = await asyncio.gather(
            *(
                http.post("/v1/chat/completions", json=body | {"audio": {**body["audio"], "voice": voice}})
                for body, voice in zip(map(wanted, questions), voices, strict=True)
            )
        )

    for answer, truth in zip(answers, expected, strict=True):
        assert answer.status_code == 200, answer.text
        same(spoken(answer.json()), truth)
    assert len({one.sound.tobytes() for one in expected}) == 8
    await system.ledger_is_empty()
