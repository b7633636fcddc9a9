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
from tests.e2e.omni.speech import Spoken, assert_same_speech, read_spoken, to_pcm
from tests.e2e.questions import OMNI_QUESTIONS, Question, make_audio, make_image, make_question, make_video
from tests.e2e.shapes.test_shapes import send_question
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.watch import Watch, parse_events
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
    "all of them": make_question(
        make_video(2, 2), make_image(3, 120, 60), make_audio(0.7, 2), "and", make_image(4), "compare"
    ),
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
    models = {WHOLE: declare_model(NAME, checkpoint, options=options, paths=paths), SPLIT: halves}
    # Shares that cut through media.
    with start_system(tmp_path_factory.mktemp("system"), models, OMNIBUS_EXECUTOR_SHARE="48") as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


def choose_path(shape: str, question: Question, speech: bool) -> str:
    """Path of ``question`` in this ``shape``, without executors that are not needed."""
    if shape == "R>P>D":
        return ""  # the only one there is
    components = {"thinker", *(FAMILY["encoders"][kind] for kind in question.media)}
    components |= {"talker", "vocoder"} if speech else set()
    return ">".join(option for option in shape.split(">") if components & {*FAMILY["options"][option]["components"]})


def make_body(question: Question, model: str = WHOLE, **more: Any) -> dict[str, Any]:
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
def reference_answer(checkpoint: Path, name: str) -> oracle.OmniMoeAnswer:
    """The whole model's answer to a question, cached for many shapes."""
    question = QUESTIONS[name]
    return oracle.generate_answer(checkpoint, question.plain, question.media, TOKENS, VOICE, FRAMES)


def to_spoken(answer: oracle.OmniMoeAnswer) -> Spoken:
    return Spoken(answer.text, to_pcm(answer.wave.numpy()))


@pytest.mark.cell("transformers", NAME, "tokens")
@pytest.mark.cell("transformers", NAME, "waveform")
@covering(name=QUESTIONS, shape=[APART, TOGETHER, "M", "R>P>D"])
async def test_it_says_and_sounds_what_the_whole_model_does(system: System, checkpoint: Path, name: str, shape: str):
    question = QUESTIONS[name]
    path, model = choose_path(shape, question, speech=True), SPLIT if shape == "R>P>D" else WHOLE
    truth = reference_answer(checkpoint, name)

    async with Watch.on(system) as watch, system.http() as http:
        answer = await http.post(
            "/v1/chat/completions",
            json=make_body(question, model),
            headers={"x-omnibus-path": path} if path else {},
        )
        assert answer.status_code == 200, answer.text
        await watch.end(answer.headers["x-request-id"])

    assert answer.headers["x-omnibus-path"] == path or not path
    assert watch.ids(answer.headers["x-request-id"]) == truth.ids
    assert_same_speech(read_spoken(answer.json()), to_spoken(truth))
    await system.ledger_is_empty()


@pytest.mark.parametrize("shape", [APART, "M"])
async def test_text_alone_is_that_of_the_whole_model(system: System, checkpoint: Path, shape: str):
    question = QUESTIONS["all of them"]
    ids, text = oracle.generate_text(checkpoint, question.plain, question.media, 24)

    assert await send_question(system, question, choose_path(shape, question, speech=False), model=WHOLE) == (text, ids)


@pytest.mark.one_node  # by hand its end is sent to one
@pytest.mark.parametrize("path", [APART, "M"])
async def test_float_samples_are_those_of_the_whole_model(system: System, checkpoint: Path, path: str):
    question, truth = QUESTIONS["image and audio"], reference_answer(checkpoint, "image and audio")

    answer = await by_hand.replay_record(system, await by_hand.record_chat(system, make_body(question), path), question)

    assert answer.text == truth.text
    np.testing.assert_allclose(answer.sound, truth.wave.numpy(), rtol=0, atol=1e-5)
    assert len(answer.sound) == FRAMES * 1920 - 555
    await system.ledger_is_empty()


async def test_a_stream_adds_up_to_the_whole_answer(system: System, checkpoint: Path):
    question = QUESTIONS["image and audio"]
    body = make_body(question, stream=True, audio={"voice": VOICE, "format": "pcm16", "max_tokens": FRAMES})

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": APART})
    deltas = [event["choices"][0]["delta"] for event in parse_events(answer.content) if event["choices"]]
    pieces = [base64.b64decode(delta["audio"]["data"]) for delta in deltas if delta.get("audio", {}).get("data")]

    text = "".join(delta.get("content") or "" for delta in deltas)
    truth = reference_answer(checkpoint, "image and audio")
    assert_same_speech(Spoken(text, np.frombuffer(b"".join(pieces), "<i2")), to_spoken(truth))
    assert len(pieces) > 1


async def test_requests_at_the_same_time_each_get_their_own_answer(system: System, checkpoint: Path):
    kinds = [(make_image, make_audio), (make_audio,), (make_image,), ()]
    questions = [
        make_question(
            *(make(1.0 + seed / 8, seed) if make is make_audio else make(seed) for make in kinds[seed % 4]),
            f"{seed} cats",
        )
        for seed in range(8)
    ]
    voices = [FAMILY["voices"][seed % 3] for seed in range(8)]
    expected_answers = [
        to_spoken(oracle.generate_answer(checkpoint, one.plain, one.media, TOKENS, voice, FRAMES))
        for one, voice in zip(questions, voices, strict=True)
    ]

    async with system.http() as http:
        answers = await asyncio.gather(
            *(
                http.post("/v1/chat/completions", json=body | {"audio": {**body["audio"], "voice": voice}})
                for body, voice in zip(map(make_body, questions), voices, strict=True)
            )
        )

    for answer, truth in zip(answers, expected_answers, strict=True):
        assert answer.status_code == 200, answer.text
        assert_same_speech(read_spoken(answer.json()), truth)
    assert len({one.sound.tobytes() for one in expected_answers}) == 8
    await system.ledger_is_empty()
