"""Replays of requests whose graph grew: all segments run again, each compared with its own record."""

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from omnibus import graph
from omnibus.bus import subjects
from omnibus.errors import NotFound
from omnibus.graph import Invocation
from omnibus.task import CompositeTask
from omnibus_gateway.rerun.replayer import Replayer
from tests.property.estate import GraphSystem, start_graph_system
from tests.unit.sidecar.node import wait_until
from tests.unit.task.tasks import ADD, FOLD, MANY, ONE, Add, AddInput, AddOutput, FoldInput, NumberInput

PATIENCE = 20.0  # seconds

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def task_system(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GraphSystem]:
    async with start_graph_system(nats_url, tmp_path_factory.mktemp("estate")) as system:
        runs = system.runs
        replayer = Replayer(runs.router, runs.dispatcher, runs.tensors, runs.records, runs.records.media)
        stop = await runs.records.bus.add_responder(subjects.REPLAY, replayer.respond)
        yield system
        await stop()


class SumLoop(CompositeTask):
    """Sums that repeat until they are large enough; the results determine their number."""

    async def invoke(self, x: int) -> Any:
        first = ONE.invoke(NumberInput(x=x))
        total, array = await first.n, first.y
        while total < 20:
            sums = ADD.invoke(AddInput(items=[array], numbers=[total]))
            total, array = await sums.n, sums.y
        return FOLD.invoke(FoldInput(parts=ONE.invoke(NumberInput(x=total)).parts, start=total)).n


async def recorded_ids(place: GraphSystem, x: int = 3) -> list[str]:
    """Run ``Loop`` once and return the ids of its recorded segments."""
    async with place.request() as run:
        await (await SumLoop()(x))
    ids = [each.id for each in run.segments]
    for id in ids:
        await wait_until_ended(place, id)
    return ids


async def wait_until_ended(place: GraphSystem, id: str) -> None:
    async def is_ended() -> bool:
        try:
            return (await place.runs.records.find(id)).ended is not None
        except NotFound:
            return False

    await wait_until(is_ended)


async def replay_invocation(place: GraphSystem, id: str, change: Any = None, **headers: str) -> list[dict[str, Any]]:
    recorded_invocation: Invocation = (await place.runs.records.find(id)).invocation
    body = graph.encode_invocation(change(recorded_invocation) if change is not None else recorded_invocation)
    omnibus_headers = {f"Omnibus-{name.capitalize()}": value for name, value in headers.items()}
    bus = place.runs.records.bus
    replies = [
        json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, PATIENCE, omnibus_headers or None)
    ]
    await place.settled()
    return replies


async def test_all_segments_run_again_and_each_is_compared_with_its_record(task_system: GraphSystem):
    ids = await recorded_ids(task_system)
    assert len(ids) == 5

    *running, reply = await replay_invocation(task_system, ids[0])

    assert [part["replay_of"] for part in running] == ids
    assert [part["id"] for part in running] == [running[0]["id"], *(f"{running[0]['id']}_{n}" for n in (1, 2, 3, 4))]
    assert (reply["status"], reply["identical"], "why" in reply) == ("done", True, False)
    assert {text.split(":")[0] for text in reply["compared"]} == {f"segment {id}" for id in ids}
    assert f"segment {ids[1]}: add.n (1 value)" in reply["compared"]


async def test_a_replay_of_all_segments_can_be_replayed_itself(task_system: GraphSystem):
    [first, *_] = await replay_invocation(task_system, (await recorded_ids(task_system))[0])
    await wait_until_ended(task_system, f"{first['id']}_4")

    *running, reply = await replay_invocation(task_system, first["id"])

    assert (len(running), reply["identical"]) == (5, True)


async def test_one_segment_runs_alone_by_its_own_id(task_system: GraphSystem):
    ids = await recorded_ids(task_system)

    running, reply = await replay_invocation(task_system, ids[2])

    assert (running["replay_of"], "segments" in running) == (ids[2], False)
    assert (reply["identical"], reply["compared"]) == (True, ["add.n (1 value)", "add.y (2 numbers)"])


@pytest.mark.parametrize(("start", "first"), [("2:add", 2), ("2:0", 2), ("add", 1), ("fold", 4), ("4:1", 4), ("", 0)])
async def test_a_replay_begins_at_any_stage_of_any_segment(task_system: GraphSystem, start: str, first: int):
    ids = await recorded_ids(task_system)
    task_system.dispatcher.keeps = True
    try:
        ids = await recorded_ids(task_system)
        *running, reply = await replay_invocation(task_system, ids[0], **{"from": start})
    finally:
        task_system.dispatcher.keeps = False

    assert [part["replay_of"] for part in running] == ids[first:]
    assert reply["identical"] is True


async def test_a_segment_that_is_not_there_is_refused(task_system: GraphSystem):
    ids = await recorded_ids(task_system)

    [only] = await replay_invocation(task_system, ids[0], **{"from": "9:add"})

    assert (only["status"], only["problem"]["code"]) == ("failed", "bad_request")
    assert "unknown segment 9; use one of 0, 1, 2, 3, 4" in only["problem"]["message"]


async def test_the_first_segment_and_stage_that_differ_are_named(
    task_system: GraphSystem, monkeypatch: pytest.MonkeyPatch
):
    ids = await recorded_ids(task_system)

    async def add_one_more(self: Add, given: AddInput) -> AddOutput:
        total = (sum(int(array.sum()) for array in given.items) + sum(given.numbers) + 1) % MANY
        return AddOutput(y=np.array([total, 0], np.int64), n=total)

    monkeypatch.setattr(Add, "run", add_one_more)
    *running, reply = await replay_invocation(task_system, ids[0])

    assert len(running) == 5
    assert (reply["identical"], reply["first"]["segment"], reply["first"]["stage"]) == (False, ids[1], "add")
    assert reply["why"].startswith(f"segment {ids[1]}: add.n differs: ")


async def test_a_graph_that_was_changed_by_hand_runs_alone(task_system: GraphSystem):
    ids = await recorded_ids(task_system)

    def change_input(invocation: Invocation) -> Invocation:
        [node] = invocation.nodes
        return graph_with(invocation, graph.with_inputs(node, {**node.inputs, "x": 5}))

    running, reply = await replay_invocation(task_system, ids[0], change_input)

    assert (running["replay_of"], reply["identical"]) == (ids[0], False)


def graph_with(invocation: Invocation, node: graph.GraphNode) -> Invocation:
    import msgspec

    return msgspec.structs.replace(invocation, nodes=(node,))
