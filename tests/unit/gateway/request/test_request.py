"""One client's request: its segments, their records, and their one shared end."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from omnibus.errors import BadRequest, Fatal, Overloaded, ProtocolError, StageFailed, StageUnavailable, TooLarge
from omnibus.graph import HANDLE, GraphNode
from omnibus.recording.records import EndRecord
from omnibus.task import CompositeTask, Segment, choose, use
from omnibus.task.session import MAX_CALLS, MAX_SEGMENTS
from omnibus_gateway.request.request import ClientRequest, RequestFactory, app_letters
from tests.property.estate import GraphSystem, start_graph_system
from tests.unit.sidecar.node import PATIENCE, wait_until
from tests.unit.task.tasks import ADD, ONE, ROLL, STRICT, AddInput, NumberInput

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def task_system(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GraphSystem]:
    async with start_graph_system(nats_url, tmp_path_factory.mktemp("estate")) as system:
        yield system


@pytest.fixture
def request_factory(task_system: GraphSystem) -> RequestFactory:
    return task_system.runs


class RequestChain(CompositeTask):
    """Two segments: the second one uses the first one's output twice."""

    async def invoke(self, x: int) -> Any:
        first = ONE.invoke(NumberInput(x=choose([x])))
        n = await first.n
        return ADD.invoke(AddInput(items=[first.y], one=first.y, numbers=[n])).n


def make_segment(*inputs: dict[str, Any], task: Any = ONE, outputs: tuple[str, ...] = ("n",)) -> Segment:
    """Return the calls of one task with these inputs, as recorded."""
    nodes = tuple(GraphNode(task.name, task.component_name, each, "d", (), task.model) for each in inputs)
    return Segment(nodes, tuple((index, output) for index in range(len(inputs)) for output in outputs))


async def wait_for_end(place: GraphSystem, id: str) -> EndRecord:
    """Return the end record of ``id`` once it exists."""
    end_records: list[EndRecord] = []

    async def is_ended() -> bool:
        _, end = await place.runs.records.find(id)
        end_records[:] = [end] if end is not None else []
        return bool(end_records)

    await wait_until(is_ended)
    return end_records[0]


# Segments


async def test_a_request_of_several_segments_is_one_request(task_system: GraphSystem):
    async with task_system.request() as run:
        assert await (await RequestChain()(6)) == 12 + 12 + 6
        first, second = (each.invocation for each in run.segments)

    assert (first.id, second.id) == (run.id, f"{run.id}_1")
    assert (first.parent, second.parent, first.step, second.step) == ("", run.id, 0, 1)
    assert first.seed == second.seed == run.seed
    assert first.deadline == second.deadline == run.deadline
    assert (first.choices, second.choices) == ((0,), ())
    assert (first.app, first.model, second.type) == ("app", "sums", "add")
    await task_system.settled()


async def test_segments_are_recorded_with_digests_of_their_results(task_system: GraphSystem):
    output_pairs = []
    for _ in range(2):
        async with task_system.request() as run:
            await (await RequestChain()(6))
        end, later = await wait_for_end(task_system, run.id), await wait_for_end(task_system, f"{run.id}_1")
        assert (end.status, end.segments, later.segments) == ("done", (later.inv,), ())
        output_pairs.append((end.outputs, later.outputs))

    assert output_pairs[0] == output_pairs[1]
    assert set(output_pairs[0][0]) == {"0.y", "0.n", "0.parts"}
    assert output_pairs[0][0]["0.n"] != output_pairs[0][1]["0.n"] != ""


async def test_a_tensor_that_a_later_segment_reads_twice_is_placed_once(task_system: GraphSystem):
    digests = []
    for _ in range(2):
        async with task_system.request() as run:
            await (await RequestChain()(6))
            [node] = run.segments[1].invocation.nodes
        assert node.inputs["items"][0][HANDLE] == node.inputs["one"][HANDLE]
        digests.append(node.digest)

    assert digests[0] == digests[1]
    await task_system.settled()


async def test_the_first_segment_that_is_sent_has_the_requests_name(task_system: GraphSystem):
    async with task_system.request() as run:
        with pytest.raises(BadRequest):
            await ONE(NumberInput.model_construct(x={"$ref": [0, "y"]}))
        out = await ONE(NumberInput(x=1))
        assert await out.n == 1

        assert [(each.id, each.invocation.step) for each in run.segments] == [(run.id, 1)]


async def test_a_step_is_sent_once(request_factory: RequestFactory):
    run = request_factory.open_request("app")
    await run.submit(make_segment({"x": 1}), 0)

    with pytest.raises(ProtocolError, match=f"segment 0 of {run.id} was sent already"):
        await run.submit(make_segment({"x": 1}), 0)
    run.end("cancelled")


@pytest.mark.parametrize(("step", "calls"), [(-1, 1), (MAX_SEGMENTS, 1), (0, MAX_CALLS + 1)])
async def test_a_request_has_so_many_segments_of_so_many_calls(request_factory: RequestFactory, step: int, calls: int):
    with pytest.raises(TooLarge, match="a request may have 256 segments of 512 calls each: loop less"):
        await request_factory.open_request("app").submit(make_segment(*[{"x": 1}] * calls), step)


async def test_a_task_that_nobody_runs_is_named_and_nothing_stays_behind(task_system: GraphSystem):
    run = task_system.runs.open_request("app")
    await run.submit(make_segment({"x": 1}, outputs=("y",)), 0)
    strange = Segment((GraphNode("dance", "dance", {"y": {"$from": [0, 0, "y"]}}, "d"),), ((0, "n"),))

    with pytest.raises(StageUnavailable, match="no plan runs unit task 'dance': declare its model"):
        await run.submit(strange, 1)
    run.end("failed")
    await task_system.settled()


async def test_a_mark_of_what_there_is_not_leaves_nothing_behind(task_system: GraphSystem):
    run = task_system.runs.open_request("app")
    await run.submit(make_segment({"x": 1}, outputs=("y",)), 0)
    inputs = {"one": {"$from": [0, 0, "y"]}, "more": {"$from": [0, 7, "n"]}}

    with pytest.raises(ProtocolError, match="which no earlier segment of its request made"):
        await run.submit(make_segment(inputs, task=ADD), 1)
    run.end("failed")
    await task_system.settled()


# Numbers


async def test_a_seed_is_the_clients_or_follows_from_the_id(request_factory: RequestFactory):
    first, second, seeded_request = (
        request_factory.open_request("app"),
        request_factory.open_request("app"),
        request_factory.open_request("app", seed=2**70 + 5),
    )

    assert (seeded_request.seed, request_factory.open_request("app", seed=0).seed) == (5, 0)
    assert first.seed == first.seed != second.seed
    assert all(0 <= each.seed < 2**63 for each in (first, second))


async def test_an_equal_seed_gives_an_equal_answer(task_system: GraphSystem):
    rolls = []
    for seed in (5, 5, 6):
        async with task_system.request(seed=seed):
            rolls.append(await (await ROLL(NumberInput(x=0))).n)

    assert rolls[0] == rolls[1] != rolls[2]


async def test_choices_are_even_over_requests_each_by_itself_and_together(request_factory: RequestFactory):
    requests = [request_factory.open_request("even") for _ in range(1000)]

    for site in range(3):
        tenth_counts = Counter(int(run.choice_point(site) * 10) for run in requests)
        assert all(abs(tenth_counts[tenth] - 100) <= 5 for tenth in range(10))
    pairs = Counter((int(run.choice_point(0) * 2), int(run.choice_point(1) * 2)) for run in requests)
    assert all(abs(pairs[pair] - 250) <= 25 for pair in ((0, 0), (0, 1), (1, 0), (1, 1)))
    assert [requests[7].choice_point(site) for site in range(40)] == [
        requests[7].choice_point(site) for site in range(40)
    ]


async def test_apps_whose_ids_look_alike_share_their_numbers(request_factory: RequestFactory):
    names_by_letters: dict[str, str] = {}
    for number in count():
        name = f"app-{number}"
        if (other := names_by_letters.setdefault(app_letters(name), name)) != name:
            break

    ids = [request_factory.open_request(each).id for each in (name, other, name, other)]

    assert len(set(ids)) == 4


async def test_at_its_limit_the_gateway_takes_no_more(request_factory: RequestFactory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_factory, "settings", msgspec.structs.replace(request_factory.settings, max_inflight=1))
    run = request_factory.open_request("app")
    await run.submit(make_segment({"x": 1}), 0)

    with pytest.raises(Overloaded, match="1 requests are in flight here: try again later"):
        request_factory.open_request("app")
    run.end("cancelled")
    request_factory.open_request("app")


# The end


async def start_reading(run: ClientRequest) -> asyncio.Task[Any]:
    """Return a task that waits for a result that never arrives."""
    sources = await run.submit(make_segment({"x": 1}, outputs=("n", "no_such_output")), 0)
    assert await sources[0, "n"].next_items()
    lost_stream = sources[0, "no_such_output"]
    lost_stream.ended = False  # as if its executor were still running
    waiting = asyncio.get_running_loop().create_task(lost_stream.next_items())
    await asyncio.sleep(0)
    return waiting


async def await_task(task: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await task


@pytest.mark.parametrize("status", ["done", "failed", "cancelled", "expired"])
async def test_whoever_still_reads_at_the_end_is_not_left_waiting(task_system: GraphSystem, status: str):
    run = task_system.runs.open_request("app")
    waiting = await start_reading(run)

    run.end(status)

    with pytest.raises(Fatal, match="the request is over: nothing of it runs any more"):
        await await_task(waiting)
    assert (await wait_for_end(task_system, run.id)).status == status
    await task_system.settled()


async def test_a_request_ends_once(task_system: GraphSystem):
    async with task_system.request() as run:
        await (await RequestChain()(1))
    run.end("failed")

    assert (await wait_for_end(task_system, run.id)).status == "done"
    with pytest.raises(Fatal, match="the request is over"):
        await run.submit(make_segment({"x": 1}), 9)


async def test_a_failure_reaches_all_who_wait(task_system: GraphSystem):
    run = task_system.runs.open_request("app")
    waiting = await start_reading(run)

    run.fail(StageFailed("out of paper"))
    run.fail(StageFailed("too late"))

    with pytest.raises(StageFailed, match="out of paper"):
        await await_task(waiting)
    run.end("failed")
    problem = (await wait_for_end(task_system, run.id)).problem
    assert problem is not None
    assert problem.message == "out of paper"


async def test_what_came_whole_stays_whole_when_something_beside_it_fails(task_system: GraphSystem):
    async with task_system.request() as run:
        good, bad = (
            await run.submit(make_segment({"x": 4}), 0),
            await run.submit(make_segment({"x": 3}, task=STRICT), 1),
        )
        with pytest.raises(BadRequest, match="3 is odd"):
            await bad[0, "n"].next_items()
        stream = good[0, "n"]
        await wait_until(lambda: stream.ended)

        run.fail(StageFailed("out of paper"))

        assert [item.data for item in await stream.next_items()] == [{"value": 4}]
        assert await stream.next_items() == []


async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(task_system: GraphSystem):
    async def run_chain() -> None:
        with use(run):
            await (await RequestChain()(6))

    run = task_system.runs.open_request("app")
    asking = asyncio.get_running_loop().create_task(run_chain())
    while not run.segments:
        await asyncio.sleep(0)
    asking.cancel()
    run.end("cancelled")

    with pytest.raises(asyncio.CancelledError):
        await asking
    await task_system.settled()
