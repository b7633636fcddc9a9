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

from tests.e2e.omni.speech import APART, Spoken, same, spoken, wanted, whole_model
from tests.e2e.questions import ask, audio, image
from tests.e2e.system import System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

QUESTION = ask(image(2), audio(1.1, 1), "describe")
TOKENS, CODES = 120, 90
LONG: dict[str, Any] = {"max_tokens": TOKENS, "audio": {"voice": "Chelsie", "format": "pcm16", "max_tokens": CODES}}
#: An answer takes less than a second: on a busy machine all of it may be there before its executor is killed.
ATTEMPTS = 4


def executor(option: str) -> str:
    return f"qwen2_5-omni-tiny-{option}-0"


@pytest.fixture(scope="module")
def truth(omni_checkpoint: Path) -> Spoken:
    return whole_model(omni_checkpoint, QUESTION, TOKENS, CODES)


@pytest.fixture(autouse=True)
async def everybody(omni: System) -> AsyncIterator[dict[str, int]]:
    """Process ids of all executors, once killed ones are back."""
    yield await omni.whole()
    await omni.ledger_is_empty()


async def answered(answer: httpx.Response, when: str, kill: Any) -> Spoken:
    """Read a stream to its end; ``kill`` is called at the first piece of ``when``."""
    said, heard, done = "", b"", False
    async for line in answer.aiter_lines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        delta = event["choices"][0]["delta"]
        said += delta.get("content") or ""
        heard += base64.b64decode(delta.get("audio", {}).get("data", ""))
        if not done and (heard if when == "sound" else said):
            done = True
            kill()
    assert done
    return Spoken(said, np.frombuffer(heard, "<i2"))


@pytest.mark.parametrize(("victim", "when"), [("V", "sound"), ("Ta", "text"), ("Th", "text"), ("M", "sound")])
async def test_an_answer_that_has_begun_goes_on_elsewhere(omni: System, truth: Spoken, victim: str, when: str):
    for _ in range(ATTEMPTS):
        record = await disturb(omni, truth, victim, when)
        if record["attempts"] > 1:
            break

    assert record["attempts"] == 2
    assert (record["path"] == "M") is (victim != "M")


async def disturb(omni: System, truth: Spoken, victim: str, when: str) -> dict[str, Any]:
    """Kill executor ``victim`` at the first piece of ``when``; return the record.

    The answer must be right.
    """
    body, headers = wanted(QUESTION, stream=True, **LONG), {"x-omnibus-path": "M" if victim == "M" else APART}
    everybody = await omni.whole()
    async with (
        Watch.on(omni) as watch,
        omni.http() as http,
        http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        id = answer.headers["x-request-id"]
        found = await answered(answer, when, lambda: os.kill(everybody[executor(victim)], signal.SIGKILL))
        await watch.end(id)
    same(found, truth)
    return (await omni.record(id))[1]


@pytest.mark.parametrize("victim", ["EV", "EA"])
async def test_a_request_whose_encoder_dies_is_answered_by_another_one(
    omni: System, everybody: dict[str, int], omni_checkpoint: Path, victim: str
):
    pid = everybody[executor(victim)]
    async with Watch.on(omni) as watch, omni.http() as http:
        await watch.heartbeat(executor(victim))
        os.kill(pid, signal.SIGSTOP)  # so that it surely holds the request when it dies
        asking = asyncio.create_task(
            http.post("/v1/chat/completions", json=wanted(QUESTION), headers={"x-omnibus-path": APART})
        )
        component = {"EV": "vision", "EA": "audio"}[victim]
        await watch.first(f"omnibus.task.encode-qwen2_5-omni-tiny-{component}.{executor(victim)}")
        os.kill(pid, signal.SIGKILL)
        answer = await asking

    assert answer.status_code == 200, answer.text
    same(spoken(answer.json()), whole_model(omni_checkpoint, QUESTION))
