"""Requests of a dead executor continue elsewhere.

If they cannot, they fail at once with the stage's name.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.bus.messages import Accepted
from tests import models_oracle as oracle
from tests.e2e.questions import ask, image
from tests.e2e.small.load import sent
from tests.e2e.system import VL, System, missing_stages
from tests.e2e.watch import Watch
from tests.own_time import own_time

pytestmark = pytest.mark.e2e

TOKENS = 300  # a few hundred milliseconds of work
NOTICED = 2.0  # seconds of own time from the death of an executor to the answer
QUESTION = ask(image(1), "describe the image")
E, L, EL = (f"qwen2_5-vl-tiny-{option}-0" for option in ("E", "L", "EL"))


@pytest.fixture(scope="module")
def text(vl_checkpoint: Path) -> str:
    """Answer of the whole model."""
    return oracle.vl_answer(vl_checkpoint, QUESTION.plain, QUESTION.media, TOKENS)[1]


def body(question=QUESTION, **more: Any) -> dict[str, Any]:
    return {"model": VL, "messages": question.messages, "max_tokens": TOKENS, "temperature": 0, **more}


@contextlib.asynccontextmanager
async def streaming(http: httpx.AsyncClient, path: str, **more: Any) -> AsyncIterator[AsyncIterator[str]]:
    """The text of one long answer, delta by delta."""
    asked, headers = body(stream=True, **more), {"x-omnibus-path": path}
    async with http.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as answer:
        assert answer.headers["x-omnibus-path"] == path
        yield deltas(answer)


async def deltas(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            yield event["choices"][0]["delta"].get("content") or ""


@pytest.mark.parametrize(("victim", "path"), [(L, "E>L"), (EL, "EL")])
async def test_an_answer_that_has_begun_goes_on_elsewhere_and_is_still_right(
    vl: System, everybody: dict[str, int], text: str, victim: str, path: str
):
    said = ""
    async with vl.http() as http, streaming(http, path) as answer:
        async for delta in answer:
            said += delta
            if said and victim in everybody:
                os.kill(everybody.pop(victim), signal.SIGKILL)

    assert victim not in everybody
    assert said == text
    await vl.ledger_is_empty()


@pytest.mark.parametrize(("victim", "path"), [(E, "E>L"), (EL, "EL")])
async def test_a_request_whose_encoder_dies_is_answered_by_another_one(
    vl: System, everybody: dict[str, int], text: str, victim: str, path: str
):
    async with Watch.on(vl) as watch, vl.http() as http:
        await watch.heartbeat(victim)
        os.kill(everybody[victim], signal.SIGSTOP)  # so that it surely holds the request when it dies
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body(), headers={"x-omnibus-path": path}))
        await watch.first(f"omnibus.task.encode-qwen2_5-vl-tiny-vision.{victim}")
        os.kill(everybody[victim], signal.SIGKILL)
        answer = await asking

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == text
    await vl.ledger_is_empty()


def accepted(watch: Watch) -> set[str]:
    """Executors that accepted an invocation."""
    return {one.executor for one in watch.replies() if isinstance(one, Accepted)}


def thaw(pid: int) -> None:
    """Resume a frozen process, which the supervisor may have replaced."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def test_an_answer_that_has_begun_goes_on_elsewhere_when_its_executor_freezes(
    vl: System, everybody: dict[str, int]
):
    long, said, is_frozen = {"max_tokens": 1000, "ignore_eos": True}, "", False
    try:
        async with vl.http() as http:
            async with Watch.on(vl) as watch, streaming(http, "E>L", **long) as answer:
                async for delta in answer:
                    said += delta
                    if not is_frozen and L in accepted(watch):
                        os.kill(everybody[L], signal.SIGSTOP)  # its connection stays, so no event reports the loss
                        is_frozen = True
                went_on = {each.to for each in sent(watch)} - {E, L}
            thaw(everybody[L])
            whole = await http.post("/v1/chat/completions", json=body(**long))
    finally:
        thaw(everybody[L])

    assert said == whole.json()["choices"][0]["message"]["content"]
    assert is_frozen
    assert went_on
    await vl.ledger_is_empty()


async def test_a_request_to_an_executor_that_hangs_moves_on(vl: System, everybody: dict[str, int], text: str):
    os.kill(everybody[E], signal.SIGSTOP)
    try:
        async with vl.http() as http:
            answer = await http.post("/v1/chat/completions", json=body(), headers={"x-omnibus-path": "E>L"})
    finally:
        thaw(everybody[E])

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == text
    await vl.ledger_is_empty()


async def test_without_another_llm_the_answer_is_503_with_the_stage_and_readyz_agrees(
    vl: System, everybody: dict[str, int]
):
    slow = body(max_tokens=3000, ignore_eos=True)
    async with Watch.on(vl) as watch, vl.http() as http, own_time() as clock:
        asking = [asyncio.create_task(http.post("/v1/chat/completions", json=slow)) for _ in range(4)]
        await watch.first("omnibus.reply.")
        killed = clock.seconds
        for victim in (L, EL):
            os.kill(everybody[victim], signal.SIGKILL)
        down = asyncio.create_task(missing_stages(vl, VL))  # it may be up again soon
        answers = await asyncio.gather(*asking)
        took = clock.seconds - killed

    assert took < NOTICED
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["stage"]) == (503, "stage_unavailable", "thinker")
    assert await down == {"thinker": "no executor"}
    await vl.ledger_is_empty()


async def test_without_any_encoder_images_fail_with_the_stage_and_text_is_served(vl: System, everybody: dict[str, int]):
    os.kill(everybody[E], signal.SIGSTOP)
    async with Watch.on(vl) as watch, vl.http() as http, own_time() as clock:
        headers = {"x-omnibus-path": "E>L"}
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body(), headers=headers))
        await watch.first(f"omnibus.task.encode-qwen2_5-vl-tiny-vision.{E}")
        killed = clock.seconds
        for victim in (EL, E):
            os.kill(everybody[victim], signal.SIGKILL)
        answer = await asking
        took = clock.seconds - killed
        plain = await http.post("/v1/chat/completions", json=body(ask("hello")))

    error = answer.json()["error"]
    assert (answer.status_code, error["stage"]) == (503, "vision")
    assert took < NOTICED
    assert plain.status_code == 200
