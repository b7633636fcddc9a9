"""Other executors finish text and audio when any of five dies."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.omni.speech import APART, Spoken, assert_same_speech, make_speech_body, read_spoken, whole_model
from tests.e2e.questions import make_audio, make_image, make_question
from tests.e2e.system import System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

QUESTION = make_question(make_image(2), make_audio(1.1, 1), "describe")
TOKENS, CODES = 120, 90
LONG: dict[str, Any] = {"max_tokens": TOKENS, "audio": {"voice": "Chelsie", "format": "pcm16", "max_tokens": CODES}}
#: An answer takes less than a second: on a busy machine all of it may be there before its executor is killed.
ATTEMPTS = 4


def executor_id(option: str) -> str:
    return f"qwen2_5-omni-tiny-{option}-0"


@pytest.fixture(scope="module")
def truth(omni_checkpoint: Path) -> Spoken:
    return whole_model(omni_checkpoint, QUESTION, TOKENS, CODES)


@pytest.fixture(autouse=True)
async def everybody(omni: System) -> AsyncIterator[dict[str, int]]:
    """Process ids of all executors, once killed ones are back."""
    yield await omni.whole()
    await omni.ledger_is_empty()


async def read_answer(answer: httpx.Response, when: str, kill: Any) -> Spoken:
    """Read a stream to its end; ``kill`` is called at the first piece of ``when``."""
    text, audio, is_killed = "", b"", False
    async for line in answer.aiter_lines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        delta = event["choices"][0]["delta"]
        text += delta.get("content") or ""
        audio += base64.b64decode(delta.get("audio", {}).get("data", ""))
        if not is_killed and (audio if when == "sound" else text):
            is_killed = True
            kill()
    assert is_killed
    return Spoken(text, np.frombuffer(audio, "<i2"))


@pytest.mark.parametrize(("victim", "when"), [("V", "sound"), ("Ta", "text"), ("Th", "text"), ("M", "sound")])
async def test_an_answer_that_has_begun_goes_on_elsewhere(omni: System, truth: Spoken, victim: str, when: str):
    for _ in range(ATTEMPTS):
        record = await kill_and_compare(omni, truth, victim, when)
        if record["attempts"] > 1:
            break

    assert record["attempts"] == 2
    assert (record["path"] == "M") is (victim != "M")


async def kill_and_compare(omni: System, truth: Spoken, victim: str, when: str) -> dict[str, Any]:
    """Kill executor ``victim`` at the first piece of ``when``; return the record.

    The answer must be right.
    """
    body, headers = make_speech_body(QUESTION, stream=True, **LONG), {"x-omnibus-path": "M" if victim == "M" else APART}
    everybody = await omni.whole()
    async with (
        Watch.on(omni) as watch,
        omni.http() as http,
        http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        id = answer.headers["x-request-id"]
        result = await read_answer(answer, when, lambda: os.kill(everybody[executor_id(victim)], signal.SIGKILL))
        await watch.end(id)
    assert_same_speech(result, truth)
    return (await omni.record(id))[1]


@pytest.mark.parametrize("victim", ["EV", "EA"])
async def test_a_request_whose_encoder_dies_is_answered_by_another_one(
    omni: System, everybody: dict[str, int], omni_checkpoint: Path, victim: str
):
    pid = everybody[executor_id(victim)]
    async with Watch.on(omni) as watch, omni.http() as http:
        await watch.heartbeat(executor_id(victim))
        os.kill(pid, signal.SIGSTOP)  # so that it surely holds the request when it dies
        asking = asyncio.create_task(
            http.post("/v1/chat/completions", json=make_speech_body(QUESTION), headers={"x-omnibus-path": APART})
        )
        component = {"EV": "vision", "EA": "audio"}[victim]
        await watch.first(f"omnibus.task.encode-qwen2_5-omni-tiny-{component}.{executor_id(victim)}")
        os.kill(pid, signal.SIGKILL)
        answer = await asking

    assert answer.status_code == 200, answer.text
    assert_same_speech(read_spoken(answer.json()), whole_model(omni_checkpoint, QUESTION))
