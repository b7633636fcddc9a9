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
from omnibus_gateway.replay.replay import Replayer
from tests.property.estate import Estate, estate
from tests.unit.sidecar.node import until
from tests.unit.task.tasks import ADD, FOLD, MANY, ONE, Add, AddInput, AddOutput, FoldInput, NumberInput

PATIENCE = 20.0  # seconds

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Estate]:
    async with estate(nats_url, tmp_path_factory.mktemp("estate")) as made:
        runs = made.runs
        replayer = Replayer(runs.router, runs.dispatcher, runs.tensors, runs.records, runs.records.media)
        stop = await runs.records.bus.add_responder(subjects.REPLAY, replayer.respond)
        yield made
        await stop()


class Loop(CompositeTask):
    """Sums that repeat until they are large enough; the results determine their number."""

    async def invoke(self, x: int) -> Any:
        first = ONE.invoke(NumberInput(x=x))
        total, made = await first.n, first.y
        while total < 20:
            summed = ADD.invoke(AddInput(items=[made], numbers=[total]))
            total, made = await summed.n, summed.y
        return FOLD.invoke(FoldInput(parts=ONE.invoke(NumberInput(x=total)).parts, start=total)).n


async def recorded_ids(place: Estate, x: int = 3) -> list[str]:
    """Run ``Loop`` once and return the ids of its recorded segments."""
    async with place.request() as run:
        await (await Loop()(x))
    ids = [each.id for each in run.segments]
    for id in ids:
        await ended(place, id)
    return ids


async def ended(place: Estate, id: str) -> None:
    async def there() -> bool:
        try:
            return (await place.runs.records.find(id)).ended is not None
        except NotFound:
            return False

    await until(there)


async def replay(place: Estate, id: str, change: Any = None, **headers: str) -> list[dict[str, Any]]:
    recorded: Invocation = (await place.runs.records.find(id)).invocation
    body = graph.encode_invocation(change(recorded) if change is not None else recorded)
    given = {f"Omnibus-{name.capitalize()}": value for name, value in headers.items()}
    bus = place.runs.records.bus
    found = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, PATIENCE, given or None)]
    await place.settled()
    return found


async def test_all_segments_run_again_and_each_is_compared_with_its_record(place: Estate):
    ids = await recorded_ids(place)
    assert len(ids) == 5

    *running, done = await replay(place, ids[0])

    assert [part["replay_of"] for part in running] == ids
    assert [part["id"] for part in running] == [running[0]["id"], *(f"{running[0]['id']}_{n}" for n in (1, 2, 3, 4))]
    assert (done["status"], done["identical"], "why" in done) == ("done", True, False)
    assert {text.split(":")[0] for text in done["compared"]} == {f"segment {id}" for id in ids}
    assert f"segment {ids[1]}: add.n (1 value)" in done["compared"]


async def test_a_replay_of_all_segments_can_be_replayed_itself(place: Estate):
    [first, *_] = await replay(place, (await recorded_ids(place))[0])
    await ended(place, f"{first['id']}_4")

    *running, done = await replay(place, first["id"])

    assert (len(running), done["identical"]) == (5, True)


async def test_one_segment_runs_alone_by_its_own_id(place: Estate):
    ids = await recorded_ids(place)

    running, done = await replay(place, ids[2])

    assert (running["replay_of"], "segments" in running) == (ids[2], False)
    assert (done["identical"], done["compared"]) == (True, ["add.n (1 value)", "add.y (2 numbers)"])


@pytest.mark.parametrize(("start", "first"), [("2:add", 2), ("2:0", 2), ("add", 1), ("fold", 4), ("4:1", 4), ("", 0)])
async def test_a_replay_begins_at_any_stage_of_any_segment(place: Estate, start: str, first: int):
    ids = await recorded_ids(place)
    place.dispatcher.keeps = True
    try:
        ids = await recorded_ids(place)
        *running, done = await replay(place, ids[0], **{"from": start})
    finally:
        place.dispatcher.keeps = False

    assert [part["replay_of"] for part in running] == ids[first:]
    assert done["identical"] is True


async def test_a_segment_that_is_not_there_is_refused(place: Estate):
    ids = await recorded_ids(place)

    [only] = await replay(place, ids[0], **{"from": "9:add"})

    assert (only["status"], only["problem"]["code"]) == ("failed", "bad_request")
    assert "unknown segment 9; use one of 0, 1, 2, 3, 4" in only["problem"]["message"]


async def test_the_first_segment_and_stage_that_differ_are_named(place: Estate, monkeypatch: pytest.MonkeyPatch):
    ids = await recorded_ids(place)

    async def run(self: Add, given: AddInput) -> AddOutput:
        total = (sum(int(array.sum()) for array in given.items) + sum(given.numbers) + 1) % MANY
        return AddOutput(y=np.array([total, 0], np.int64), n=total)

    monkeypatch.setattr(Add, "run", run)
    *running, done = await replay(place, ids[0])

    assert len(running) == 5
    assert (done["identical"], done["first"]["segment"], done["first"]["stage"]) == (False, ids[1], "add")
    assert done["why"].startswith(f"segment {ids[1]}: add.n differs: ")


async def test_a_graph_that_was_changed_by_hand_runs_alone(place: Estate):
    ids = await recorded_ids(place)

    def change(recorded: Invocation) -> Invocation:
        [node] = recorded.nodes
        return graph_with(recorded, graph.with_inputs(node, {**node.inputs, "x": 5}))

    running, done = await replay(place, ids[0], change)

    assert (running["replay_of"], done["identical"]) == (ids[0], False)


def graph_with(recorded: Invocation, node: graph.GraphNode) -> Invocation:
    import msgspec

    return msgspec.structs.replace(recorded, nodes=(node,))
