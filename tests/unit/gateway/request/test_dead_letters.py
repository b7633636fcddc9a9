"""Inputs that fail or crash an engine become dead letters. This takes few attempts, and they can be retried."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.errors import BadRequest, StageFailed
from omnibus.executor.runner import Job
from omnibus.graph import GraphNode
from omnibus.metrics import GATEWAY
from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import DeadLetter
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from omnibus_gateway.dispatch.failures import MAX_DEATHS
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.request import load_report as metrics
from omnibus_gateway.request.record import MAX_LABEL_PAIRS
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute
from tests.unit.executor.arithmetic import make_call, make_invocation
from tests.unit.gateway.house import (
    TEXT,
    ToyGateway,
    read_chat_answer,
    read_error_body,
    start_toy_gateway,
    write_chat_words,
)
from tests.unit.sidecar.node import wait_until

SECRET = "my-secret-words"


async def wait_for_letters(home: ToyGateway, count: int) -> list[DeadLetter]:
    """Return all letters, newest first, once there are ``count``."""

    async def have_letters() -> bool:
        return len(await dead_letters.list_dead_letters(home.bus, 100)) >= count

    await wait_until(have_letters)
    return [dead_letters.decode_dead_letter(each.data) for each in await dead_letters.list_dead_letters(home.bus, 100)]


async def think_or_fail(job: Job) -> None:
    """Run the toy thinker, but fail on one word."""
    messages = await job.value("messages")
    if "poison" in str(messages):
        raise RuntimeError("a defect")
    if "mistake" in str(messages):
        raise BadRequest("a client's mistake")
    await write_chat_words(job)


async def start_executor(home: ToyGateway, **more: Any) -> None:
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", **{"thinker": think_or_fail, **more})


async def test_an_input_that_fails_an_engine_is_kept_with_the_reason(home: ToyGateway):
    await start_executor(home)

    response = await home.ask(TEXT, f"poison {SECRET}")

    assert response.status_code == 502
    [letter] = await wait_for_letters(home, 1)
    assert (letter.inv, letter.reason, letter.model) == (response.headers["x-request-id"], "failed", TEXT)
    assert (letter.problem.code, letter.node, letter.component) == ("stage_failed", 0, "thinker")
    assert letter.problem.executor in home.place.executors
    assert (letter.attempts, letter.lost, letter.moves) == (1, (), ())


async def test_it_holds_sizes_and_digests_and_no_content(home: ToyGateway):
    await start_executor(home)
    await home.ask(TEXT, f"poison {SECRET}")

    [letter] = await wait_for_letters(home, 1)

    assert letter.invocation is not None
    assert SECRET not in str(letter)
    assert letter.invocation.nodes[0].inputs["messages"]["nbytes"] > len(SECRET)


async def test_equal_inputs_have_equal_digests(home: ToyGateway):
    await start_executor(home)
    for word in ("poison one", "poison two", "poison one"):
        await home.ask(TEXT, word)

    message_digests = [
        letter.invocation.nodes[0].inputs["messages"] for letter in await wait_for_letters(home, 3) if letter.invocation
    ]

    assert message_digests[0] == message_digests[2] != message_digests[1]


async def test_what_clients_do_wrong_is_no_dead_letter(home: ToyGateway):
    await start_executor(home)
    mistaken = await home.ask(TEXT, "mistake")
    missing_response = await home.ask("no-such-model", "poison")
    await home.ask(TEXT, "poison")

    assert (mistaken.status_code, missing_response.status_code) == (400, 404)
    assert [letter.reason for letter in await wait_for_letters(home, 1)] == ["failed"]


async def start_crashing(home: ToyGateway, replicas: int) -> list[str]:
    """Start executors that a poisoned input kills; returns their names in order of death."""
    deaths: list[str] = []

    async def think_or_crash(job: Job, name: str) -> None:
        if "poison" in str(await job.value("messages")):
            deaths.append(name)
            home.bus.publish(subjects.event_subject(subjects.GONE), name.encode())
            await asyncio.Event().wait()
        await write_chat_words(job)

    home.serve(TEXT)
    for number in range(replicas):
        name = f"L-{number}"
        await home.executor(TEXT, "L", "thinker", id=name, thinker=lambda job, name=name: think_or_crash(job, name))
    return deaths


async def test_an_input_whose_executors_die_is_refused_after_two_of_them(home: ToyGateway):
    deaths = await start_crashing(home, MAX_ATTEMPTS + 3)

    response = await home.ask(TEXT, "poison")
    again = await home.ask(TEXT, "poison")

    assert (response.status_code, read_error_body(response)["code"]) == (422, "bad_input")
    assert (again.status_code, read_error_body(again)["code"]) == (422, "bad_input")
    assert "dead letters" in read_error_body(again)["message"]
    assert len(deaths) == len(set(deaths)) == MAX_DEATHS
    [letter] = await wait_for_letters(home, 1)
    assert (letter.reason, letter.attempts, len(letter.refused)) == ("crashed", MAX_DEATHS, 1)
    assert list(letter.lost) == deaths
    assert [move.reason for move in letter.moves] == ["gone"] * MAX_DEATHS
    assert letter.component == "thinker"
    assert read_chat_answer(await home.ask(TEXT, "hello")).startswith("You said hello")


async def test_an_input_that_takes_the_only_executor_is_kept_too(home: ToyGateway):
    deaths = await start_crashing(home, 1)

    response = await home.ask(TEXT, "poison")

    assert response.status_code == 503
    [letter] = await wait_for_letters(home, 1)
    assert (letter.reason, list(letter.lost), letter.node) == ("crashed", deaths, 0)


async def test_who_loses_one_executor_and_is_answered_by_the_next_is_no_dead_letter(home: ToyGateway):
    deaths: list[str] = []

    async def die_once(job: Job) -> None:
        if not deaths:
            deaths.append("x")
            home.bus.publish(subjects.event_subject(subjects.GONE), b"L-0")
            await asyncio.Event().wait()
        await write_chat_words(job)

    home.serve(TEXT)
    for number in range(2):
        await home.executor(TEXT, "L", "thinker", id=f"L-{number}", thinker=die_once)

    assert read_chat_answer(await home.ask(TEXT, "hi"))
    assert await dead_letters.list_dead_letters(home.bus, 10) == []


async def test_a_letter_runs_again_from_the_record(home: ToyGateway):
    has_defect = True

    async def fail_when_broken(job: Job) -> None:
        if has_defect:
            raise RuntimeError("a defect")
        await write_chat_words(job)

    await start_executor(home, thinker=fail_when_broken)
    await home.ask(TEXT, "hello")
    [letter] = await wait_for_letters(home, 1)
    has_defect = False

    body = graph.encode_invocation(await dead_letters.resolve_invocation(home.bus, letter))
    parts = [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, body, 20.0)]

    assert [part["status"] for part in parts] == ["running", "done"]
    assert parts[0]["replay_of"] == letter.inv
    assert parts[0]["id"] != letter.inv


@pytest.mark.parametrize(("letters_mode", "there"), [("digest", False), ("full", True)])
async def test_inputs_are_kept_with_the_letter_when_that_is_asked_for(tmp_path: Path, letters_mode: str, there: bool):
    async with start_toy_gateway(tmp_path, record="digest", deadletters=letters_mode) as home:
        await start_executor(home)
        await home.ask(TEXT, f"poison {SECRET}")
        [letter] = await wait_for_letters(home, 1)

        assert (SECRET in str(letter)) is there
        if there:
            assert (await dead_letters.resolve_invocation(home.bus, letter)).id == letter.inv
        else:
            with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_DEADLETTERS=full"):
                await dead_letters.resolve_invocation(home.bus, letter)


# Metrics


def read_counts(home: ToyGateway) -> dict[tuple[str, str], float]:
    """Return dead letters by model and reason, as Prometheus reads them."""
    metrics.register_metrics(home.settings, home.router, home.members, home.dispatcher, home.dead)
    return {
        (sample.labels["model"], sample.labels["reason"]): sample.value
        for family in GATEWAY.dead.collect()
        for sample in family.samples
    }


async def test_dead_letters_are_counted_by_model_and_reason_from_zero_on(home: ToyGateway):
    await start_executor(home)
    before = read_counts(home)

    for words in ("poison", "hello", "mistake", "poison"):
        await home.ask(TEXT, words)
    await wait_for_letters(home, 2)

    assert before == {(TEXT, "crashed"): 0, (TEXT, "failed"): 0}
    assert read_counts(home) == {(TEXT, "crashed"): 0, (TEXT, "failed"): 2}


async def test_an_input_whose_executors_die_is_counted_once(home: ToyGateway):
    await start_crashing(home, 2)

    await home.ask(TEXT, "poison")
    await wait_for_letters(home, 1)

    assert read_counts(home) == {(TEXT, "crashed"): 1, (TEXT, "failed"): 0}


def make_failed_invocation(model: str, *nodes: GraphNode) -> InflightInvocation:
    """Return an invocation whose first node has failed an engine."""
    base_invocation = make_invocation([make_call("thinker")], ["L-0"], [(0, "text")])
    model_invocation = msgspec.structs.replace(base_invocation, model=model, nodes=nodes or base_invocation.nodes)
    running = InflightInvocation(
        model_invocation, (1.0,), lambda _: ExecutorRoute("", (), (), ()), lambda _: np.zeros(1), ExecutorTable()
    )
    running.failure, running.failed = StageFailed("a defect", stage="thinker", executor="L-0"), 0
    return running


async def test_of_several_models_the_one_that_failed_is_told(home: ToyGateway):
    running = make_failed_invocation("a+b", GraphNode("think", "thinker", {}, "", model="b"))

    home.dead.write(running, running.invocation)

    assert read_counts(home) == {("b", "failed"): 1}


async def test_models_that_somebody_makes_up_are_told_together(home: ToyGateway):
    for number in range(MAX_LABEL_PAIRS + 3):
        running = make_failed_invocation(f"unheard-of-{number}")
        home.dead.write(running, running.invocation)

    assert len(home.dead.counts) == MAX_LABEL_PAIRS + 1
    assert read_counts(home)["other", "failed"] == 3
