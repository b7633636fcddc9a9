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
from tests.e2e.questions import make_image, make_question
from tests.e2e.small.load import list_sent_tasks
from tests.e2e.system import VL, System, missing_stages
from tests.e2e.watch import Watch
from tests.own_time import own_time

pytestmark = pytest.mark.e2e

TOKENS = 300  # a few hundred milliseconds of work
NOTICED = 2.0  # seconds of own time from the death of an executor to the answer
QUESTION = make_question(make_image(1), "describe the image")
E, L, EL = (f"qwen2_5-vl-tiny-{option}-0" for option in ("E", "L", "EL"))


@pytest.fixture(scope="module")
def reference_text(vl_checkpoint: Path) -> str:
    """Answer of the whole model."""
    return oracle.vl_answer(vl_checkpoint, QUESTION.plain, QUESTION.media, TOKENS)[1]


def make_body(question=QUESTION, **more: Any) -> dict[str, Any]:
    return {"model": VL, "messages": question.messages, "max_tokens": TOKENS, "temperature": 0, **more}


@contextlib.asynccontextmanager
async def stream_answer(http: httpx.AsyncClient, path: str, **more: Any) -> AsyncIterator[AsyncIterator[str]]:
    """The text of one long answer, delta by delta."""
    request_body, headers = make_body(stream=True, **more), {"x-omnibus-path": path}
    async with http.stream("POST", "/v1/chat/completions", json=request_body, headers=headers) as answer:
        assert answer.headers["x-omnibus-path"] == path
        yield read_deltas(answer)


async def read_deltas(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            yield event["choices"][0]["delta"].get("content") or ""


@pytest.mark.parametrize(("victim", "path"), [(L, "E>L"), (EL, "EL")])
async def test_an_answer_that_has_begun_goes_on_elsewhere_and_is_still_right(
    vl: System, executor_pids: dict[str, int], reference_text: str, victim: str, path: str
):
    answer_text = ""
    async with vl.http() as http, stream_answer(http, path) as answer:
        async for delta in answer:
            answer_text += delta
            if answer_text and victim in executor_pids:
                os.kill(executor_pids.pop(victim), signal.SIGKILL)

    assert victim not in executor_pids
    assert answer_text == reference_text
    await vl.ledger_is_empty()


@pytest.mark.parametrize(("victim", "path"), [(E, "E>L"), (EL, "EL")])
async def test_a_request_whose_encoder_dies_is_answered_by_another_one(
    vl: System, executor_pids: dict[str, int], reference_text: str, victim: str, path: str
):
    async with Watch.on(vl) as watch, vl.http() as http:
        await watch.heartbeat(victim)
        os.kill(executor_pids[victim], signal.SIGSTOP)  # so that it surely holds the request when it dies
        asking = asyncio.create_task(
            http.post("/v1/chat/completions", json=make_body(), headers={"x-omnibus-path": path})
        )
        await watch.first(f"omnibus.task.encode-qwen2_5-vl-tiny-vision.{victim}")
        os.kill(executor_pids[victim], signal.SIGKILL)
        answer = await asking

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == reference_text
    await vl.ledger_is_empty()


def list_accepted(watch: Watch) -> set[str]:
    """Executors that accepted an invocation."""
    return {one.executor for one in watch.replies() if isinstance(one, Accepted)}


def resume_process(pid: int) -> None:
    """Resume a frozen process, which the supervisor may have replaced."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def test_an_answer_that_has_begun_goes_on_elsewhere_when_its_executor_freezes(
    vl: System, executor_pids: dict[str, int]
):
    long, answer_text, is_frozen = {"max_tokens": 1000, "ignore_eos": True}, "", False
    try:
        async with vl.http() as http:
            async with Watch.on(vl) as watch, stream_answer(http, "E>L", **long) as answer:
                async for delta in answer:
                    answer_text += delta
                    if not is_frozen and L in list_accepted(watch):
                        os.kill(executor_pids[L], signal.SIGSTOP)  # its connection stays, so no event reports the loss
                        is_frozen = True
                went_on = {each.to for each in list_sent_tasks(watch)} - {E, L}
            resume_process(executor_pids[L])
            whole = await http.post("/v1/chat/completions", json=make_body(**long))
    finally:
        resume_process(executor_pids[L])

    assert answer_text == whole.json()["choices"][0]["message"]["content"]
    assert is_frozen
    assert went_on
    await vl.ledger_is_empty()


async def test_a_request_to_an_executor_that_hangs_moves_on(
    vl: System, executor_pids: dict[str, int], reference_text: str
):
    os.kill(executor_pids[E], signal.SIGSTOP)
    try:
        async with vl.http() as http:
            answer = await http.post("/v1/chat/completions", json=make_body(), headers={"x-omnibus-path": "E>L"})
    finally:
        resume_process(executor_pids[E])

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == reference_text
    await vl.ledger_is_empty()


async def test_without_another_llm_the_answer_is_503_with_the_stage_and_readyz_agrees(
    vl: System, executor_pids: dict[str, int]
):
    slow = make_body(max_tokens=3000, ignore_eos=True)
    async with Watch.on(vl) as watch, vl.http() as http, own_time() as clock:
        asking = [asyncio.create_task(http.post("/v1/chat/completions", json=slow)) for _ in range(4)]
        await watch.first("omnibus.reply.")
        kill_time = clock.seconds
        for victim in (L, EL):
            os.kill(executor_pids[victim], signal.SIGKILL)
        down = asyncio.create_task(missing_stages(vl, VL))  # it may be up again soon
        answers = await asyncio.gather(*asking)
        took = clock.seconds - kill_time

    assert took < NOTICED
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["stage"]) == (503, "stage_unavailable", "thinker")
    assert await down == {"thinker": "no executor"}
    await vl.ledger_is_empty()


async def test_without_any_encoder_images_fail_with_the_stage_and_text_is_served(
    vl: System, executor_pids: dict[str, int]
):
    os.kill(executor_pids[E], signal.SIGSTOP)
    async with Watch.on(vl) as watch, vl.http() as http, own_time() as clock:
        headers = {"x-omnibus-path": "E>L"}
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=make_body(), headers=headers))
        await watch.first(f"omnibus.task.encode-qwen2_5-vl-tiny-vision.{E}")
        kill_time = clock.seconds
        for victim in (EL, E):
            os.kill(executor_pids[victim], signal.SIGKILL)
        answer = await asking
        took = clock.seconds - kill_time
        plain = await http.post("/v1/chat/completions", json=make_body(make_question("hello")))

    error = answer.json()["error"]
    assert (answer.status_code, error["stage"]) == (503, "vision")
    assert took < NOTICED
    assert plain.status_code == 200
