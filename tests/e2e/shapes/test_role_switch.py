"""A plan turns a prefill into a decode.

The executor keeps its process and weights.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.bus import subjects
from tests import models_oracle as oracle
from tests.e2e.questions import Question, make_image, make_question
from tests.e2e.system import VL, System, replace_text
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

WITHIN = 60.0  # seconds for a plan to be made and followed
TOKENS = 24
SECOND = "qwen2_5-vl-tiny-P-1"
QUESTIONS = [make_question(make_image(1), "describe the image"), make_question("three cats on a mat")]


def write_declarations(system: System, prefills: int, decodes: int) -> None:
    """Write the declarations that the planner follows."""
    path = Path(system.state.directory) / "models.json"
    declarations = json.loads(path.read_text())
    options = declarations["models"][VL]["options"]
    options["P"]["replicas"], options["D"]["replicas"] = prefills, decodes
    replace_text(path, json.dumps(declarations))


async def wait_for_option(system: System, executor: str, option: str) -> int:
    """Wait until ``executor`` is ready as ``option``; return its process id."""
    async with asyncio.timeout(WITHIN), system.bus() as bus, contextlib.aclosing(system.statuses(bus)) as stream:
        async for status in stream:
            if (status.id, status.option, status.state) == (executor, option, "ready"):
                return status.pid
    raise AssertionError("unreachable")


async def wait_for_plan(system: System, prefills: int, decodes: int) -> None:
    """Wait until this plan is active."""
    async with asyncio.timeout(WITHIN), system.store() as store:
        while True:
            plan = await store.plan()
            assert plan is not None
            options = plan.models[VL].options
            if (options["P"].replicas, options["D"].replicas) == (prefills, decodes):
                return
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def questions_without_end(system: System) -> AsyncIterator[dict[str, set[str]]]:
    """Send questions over P and D inside the block; yield answers by question.

    Every request must succeed.
    """
    answers: dict[str, set[str]] = {str(number): set() for number in range(len(QUESTIONS))}
    stop = asyncio.Event()

    async def ask_repeatedly(number: int, question: Question) -> None:
        body = {"model": VL, "messages": question.messages, "max_tokens": TOKENS, "temperature": 0}
        path = {"x-omnibus-path": "E>P>D" if question.media else "P>D"}
        async with system.http() as http:
            while not stop.is_set():
                answer = await http.post("/v1/chat/completions", json=body, headers=path)
                assert answer.status_code == 200, answer.text
                answers[str(number)].add(answer.json()["choices"][0]["message"]["content"])

    async with asyncio.TaskGroup() as group:
        for number, question in enumerate(QUESTIONS * 2):
            group.create_task(ask_repeatedly(number % len(QUESTIONS), question))
        try:
            yield answers
        finally:
            stop.set()


async def given_work(system: System, executor: str, task: str) -> None:
    """Wait for the next invocation of ``task`` to ``executor``."""
    subject = subjects.task_subject(task, executor)
    async with Watch.on(system) as watch:
        await watch.until(lambda: any(each.subject == subject for each in watch.seen))


@pytest.mark.one_node  # executors of two nodes do not take each other's place
async def test_a_prefill_becomes_a_decode_and_again_a_prefill(
    shapes: System, executor_pids: dict[str, int], vl_checkpoint: Path
):
    expected_texts = [oracle.vl_answer(vl_checkpoint, one.plain, one.media, TOKENS)[1] for one in QUESTIONS]
    load_count = shapes.log.count("ready: prefill of")

    async with questions_without_end(shapes) as answers:
        await given_work(shapes, SECOND, f"prefill-{subjects.subject_token(VL)}-prefill")
        write_declarations(shapes, prefills=1, decodes=2)
        there = await wait_for_option(shapes, SECOND, "D")
        await wait_for_plan(shapes, 1, 2)
        await given_work(shapes, SECOND, f"decode-{subjects.subject_token(VL)}-decode")
        write_declarations(shapes, prefills=2, decodes=1)
        back = await wait_for_option(shapes, SECOND, "P")
        await wait_for_plan(shapes, 2, 1)
        await given_work(shapes, SECOND, f"prefill-{subjects.subject_token(VL)}-prefill")

    assert [answers[str(number)] for number in range(len(QUESTIONS))] == [{text} for text in expected_texts]
    assert there == back == executor_pids[SECOND]
    assert await shapes.whole() == executor_pids
    assert shapes.log.count("ready: prefill of") == load_count
    await shapes.ledger_is_empty()
