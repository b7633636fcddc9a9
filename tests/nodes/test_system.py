"""The whole system over isolated nodes: equal answers, typed failures, no hang.

All tests share one system, because each of its nodes imports the libraries of executors, which takes most of a minute.
"""

import asyncio
import contextlib

import pytest

from tests.e2e.omni.speech import same, spoken, taken, wanted
from tests.e2e.questions import OMNI_QUESTIONS
from tests.e2e.system import System
from tests.nightly import nightly
from tests.nodes.namespaces import DATA, Node
from tests.nodes.soak import ANSWERED, REQUESTS, FaultDrawer, Load, learned_cases, load_again
from tests.nodes.system import APART, TOGETHER, ask

pytestmark = pytest.mark.netns


@pytest.mark.parametrize("name", ["text", "audio", "image"])
async def test_speech_over_three_nodes_sounds_as_from_one_executor(system: System, others: list[Node], name: str):
    question = OMNI_QUESTIONS[name]
    before = sum(node.received_bytes() for node in others)

    apart, together = [
        await ask(system, wanted(question), taken(route, question, speech=True)) for route in (APART, TOGETHER)
    ]

    same(spoken(apart), spoken(together))
    assert sum(node.received_bytes() for node in others) > before
    await system.ledger_is_empty(5.0)


async def test_a_node_that_is_cut_off_costs_typed_errors_and_serves_again(system: System, others: list[Node]):
    question = OMNI_QUESTIONS["text"]
    body, route = wanted(question), taken(APART, question, speech=True)
    good = spoken(await ask(system, body, route))
    for node in others:
        node.cut_cable(DATA)

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})

    assert answer.status_code in (502, 503), answer.text
    assert answer.json()["error"]["code"] in {"node_unreachable", "unavailable", "stage_unavailable"}
    await system.ledger_is_empty(10.0)
    for node in others:
        node.heal_cable(DATA)
    async with asyncio.timeout(90), system.http() as http:
        while (again := await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})).is_error:
            await asyncio.sleep(0.2)
    same(good, spoken(again.json()))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("count", [60, *nightly(REQUESTS)])
async def test_requests_are_right_or_refused_by_name_whatever_breaks(system: System, others: list[Node], count: int):
    cases = await learned_cases(system)
    load, faults = Load(system, lambda number: cases[number % len(cases)]), FaultDrawer(system, others)

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
