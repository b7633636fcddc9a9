"""The whole system over isolated nodes: equal answers, typed failures, no hang.

All tests share one system, because each of its nodes imports the libraries of executors, which takes most of a minute.
"""

import asyncio
import contextlib

import pytest

from tests.e2e.omni.speech import assert_same_speech, choose_path, make_speech_body, read_spoken
from tests.e2e.questions import OMNI_QUESTIONS
from tests.e2e.system import System
from tests.nightly import mark_nightly
from tests.nodes.namespaces import DATA, Node
from tests.nodes.soak import ANSWERED, REQUESTS, FaultDrawer, SoakLoad, learned_cases, load_again
from tests.nodes.system import APART, TOGETHER, send_chat

pytestmark = pytest.mark.netns


@pytest.mark.parametrize("name", ["text", "audio", "image"])
async def test_speech_over_three_nodes_sounds_as_from_one_executor(system: System, other_nodes: list[Node], name: str):
    question = OMNI_QUESTIONS[name]
    before = sum(node.received_bytes() for node in other_nodes)

    apart, together = [
        await send_chat(system, make_speech_body(question), choose_path(route, question, speech=True))
        for route in (APART, TOGETHER)
    ]

    assert_same_speech(read_spoken(apart), read_spoken(together))
    assert sum(node.received_bytes() for node in other_nodes) > before
    await system.ledger_is_empty(5.0)


async def test_a_node_that_is_cut_off_costs_typed_errors_and_serves_again(system: System, other_nodes: list[Node]):
    question = OMNI_QUESTIONS["text"]
    body, route = make_speech_body(question), choose_path(APART, question, speech=True)
    good = read_spoken(await send_chat(system, body, route))
    for node in other_nodes:
        node.cut_cable(DATA)

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})

    assert answer.status_code in (502, 503), answer.text
    assert answer.json()["error"]["code"] in {"node_unreachable", "unavailable", "stage_unavailable"}
    await system.ledger_is_empty(10.0)
    for node in other_nodes:
        node.heal_cable(DATA)
    async with asyncio.timeout(90), system.http() as http:
        while (again := await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})).is_error:
            await asyncio.sleep(0.2)
    assert_same_speech(good, read_spoken(again.json()))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("count", [60, *mark_nightly(REQUESTS)])
async def test_requests_are_right_or_refused_by_name_whatever_breaks(
    system: System, other_nodes: list[Node], count: int
):
    cases = await learned_cases(system)
    load, faults = SoakLoad(system, lambda number: cases[number % len(cases)]), FaultDrawer(system, other_nodes)

    breaking = asyncio.create_task(faults.run())
    try:
        await load.run(count)
    finally:
        breaking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await breaking

    print(f"{dict(load.outcomes)} beside {dict(faults.done)}, neither right nor typed: {len(load.faults)}")
    assert load.faults == []
    assert load.outcomes.total() == count
    assert load.outcomes[ANSWERED] > count / 2
    assert faults.done
    await system.whole()
    await load_again(load, len(cases))
    await system.ledger_is_empty(10.0)
