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
from omnibus_gateway.request.factory import RequestFactory
from omnibus_gateway.request.names import app_letters
from omnibus_gateway.request.request import ClientRequest
from tests.property.estate import Estate, estate
from tests.unit.sidecar.node import PATIENCE, until
from tests.unit.task.tasks import ADD, ONE, ROLL, STRICT, AddInput, NumberInput

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Estate]:
    async with estate(nats_url, tmp_path_factory.mktemp("estate")) as made:
        yield made


@pytest.fixture
def runs(place: Estate) -> RequestFactory:
    return place.runs


class Chain(CompositeTask):
    """Two segments: the second one uses the first one's output twice."""

    async def invoke(self, x: int) -> Any:
        first = ONE.invoke(NumberInput(x=choose([x])))
        n = await first.n
        return ADD.invoke(AddInput(items=[first.y], one=first.y, numbers=[n])).n


def segment(*inputs: dict[str, Any], task: Any = ONE, outputs: tuple[str, ...] = ("n",)) -> Segment:
    """Return the calls of one task with these inputs, as recorded."""
    nodes = tuple(GraphNode(task.name, task.component_name, each, "d", (), task.model) for each in inputs)
    return Segment(nodes, tuple((index, output) for index in range(len(inputs)) for output in outputs))


async def ended(place: Estate, id: str) -> EndRecord:
    """Return the end record of ``id`` once it exists."""
    found: list[EndRecord] = []

    async def there() -> bool:
        _, end = await place.runs.records.find(id)
        found[:] = [end] if end is not None else []
        return bool(found)

    await until(there)
    return found[0]


# Segments


async def test_a_request_of_several_segments_is_one_request(place: Estate):
    async with place.request() as run:
        assert await (await Chain()(6)) == 12 + 12 + 6
        first, second = (each.invocation for each in run.segments)

    assert (first.id, second.id) == (run.id, f"{run.id}_1")
    assert (first.parent, second.parent, first.step, second.step) == ("", run.id, 0, 1)
    assert first.seed == second.seed == run.seed
    assert first.deadline == second.deadline == run.deadline
    assert (first.choices, second.choices) == ((0,), ())
    assert (first.app, first.model, second.type) == ("app", "sums", "add")
    await place.settled()


async def test_segments_are_recorded_with_digests_of_their_results(place: Estate):
    found = []
    for _ in range(2):
        async with place.request() as run:
            await (await Chain()(6))
        end, later = await ended(place, run.id), await ended(place, f"{run.id}_1")
        assert (end.status, end.segments, later.segments) == ("done", (later.inv,), ())
        found.append((end.outputs, later.outputs))

    assert found[0] == found[1]
    assert set(found[0][0]) == {"0.y", "0.n", "0.parts"}
    assert found[0][0]["0.n"] != found[0][1]["0.n"] != ""


async def test_a_tensor_that_a_later_segment_reads_twice_is_placed_once(place: Estate):
    digests = []
    for _ in range(2):
        async with place.request() as run:
            await (await Chain()(6))
            [node] = run.segments[1].invocation.nodes
        assert node.inputs["items"][0][HANDLE] == node.inputs["one"][HANDLE]
        digests.append(node.digest)

    assert digests[0] == digests[1]
    await place.settled()


async def test_the_first_segment_that_is_sent_has_the_requests_name(place: Estate):
    async with place.request() as run:
        with pytest.raises(BadRequest):
            await ONE(NumberInput.model_construct(x={"$ref": [0, "y"]}))
        out = await ONE(NumberInput(x=1))
        assert await out.n == 1

        assert [(each.id, each.invocation.step) for each in run.segments] == [(run.id, 1)]


async def test_a_step_is_sent_once(runs: RequestFactory):
    run = runs.open_request("app")
    await run.submit(segment({"x": 1}), 0)

    with pytest.raises(ProtocolError, match=f"segment 0 of {run.id} was sent already"):
        await run.submit(segment({"x": 1}), 0)
    run.end("cancelled")


@pytest.mark.parametrize(("step", "calls"), [(-1, 1), (MAX_SEGMENTS, 1), (0, MAX_CALLS + 1)])
async def test_a_request_has_so_many_segments_of_so_many_calls(runs: RequestFactory, step: int, calls: int):
    with pytest.raises(TooLarge, match="a request may have 256 segments of 512 calls each: loop less"):
        await runs.open_request("app").submit(segment(*[{"x": 1}] * calls), step)


async def test_a_task_that_nobody_runs_is_named_and_nothing_stays_behind(place: Estate):
    run = place.runs.open_request("app")
    await run.submit(segment({"x": 1}, outputs=("y",)), 0)
    strange = Segment((GraphNode("dance", "dance", {"y": {"$from": [0, 0, "y"]}}, "d"),), ((0, "n"),))

    with pytest.raises(StageUnavailable, match="no plan runs unit task 'dance': declare its model"):
        await run.submit(strange, 1)
    run.end("failed")
    await place.settled()


async def test_a_mark_of_what_there_is_not_leaves_nothing_behind(place: Estate):
    run = place.runs.open_request("app")
    await run.submit(segment({"x": 1}, outputs=("y",)), 0)
    inputs = {"one": {"$from": [0, 0, "y"]}, "more": {"$from": [0, 7, "n"]}}

    with pytest.raises(ProtocolError, match="which no earlier segment of its request made"):
        await run.submit(segment(inputs, task=ADD), 1)
    run.end("failed")
    await place.settled()


# Numbers


async def test_a_seed_is_the_clients_or_follows_from_the_id(runs: RequestFactory):
    first, second, given = runs.open_request("app"), runs.open_request("app"), runs.open_request("app", seed=2**70 + 5)

    assert (given.seed, runs.open_request("app", seed=0).seed) == (5, 0)
    assert first.seed == first.seed != second.seed
    assert all(0 <= each.seed < 2**63 for each in (first, second))


async def test_an_equal_seed_gives_an_equal_answer(place: Estate):
    rolled = []
    for seed in (5, 5, 6):
        async with place.request(seed=seed):
            rolled.append(await (await ROLL(NumberInput(x=0))).n)

    assert rolled[0] == rolled[1] != rolled[2]


async def test_choices_are_even_over_requests_each_by_itself_and_together(runs: RequestFactory):
    requests = [runs.open_request("even") for _ in range(1000)]

    for site in range(3):
        found = Counter(int(run.choice_point(site) * 10) for run in requests)
        assert all(abs(found[tenth] - 100) <= 5 for tenth in range(10))
    pairs = Counter((int(run.choice_point(0) * 2), int(run.choice_point(1) * 2)) for run in requests)
    assert all(abs(pairs[pair] - 250) <= 25 for pair in ((0, 0), (0, 1), (1, 0), (1, 1)))
    assert [requests[7].choice_point(site) for site in range(40)] == [
        requests[7].choice_point(site) for site in range(40)
    ]


async def test_apps_whose_ids_look_alike_share_their_numbers(runs: RequestFactory):
    seen: dict[str, str] = {}
    for number in count():
        name = f"app-{number}"
        if (other := seen.setdefault(app_letters(name), name)) != name:
            break

    ids = [runs.open_request(each).id for each in (name, other, name, other)]

    assert len(set(ids)) == 4


async def test_at_its_limit_the_gateway_takes_no_more(runs: RequestFactory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "settings", msgspec.structs.replace(runs.settings, max_inflight=1))
    run = runs.open_request("app")
    await run.submit(segment({"x": 1}), 0)

    with pytest.raises(Overloaded, match="1 requests are in flight here: try again later"):
        runs.open_request("app")
    run.end("cancelled")
    runs.open_request("app")


# The end


async def reading(run: ClientRequest) -> asyncio.Task[Any]:
    """Return a task that waits for a result that never arrives."""
    sources = await run.submit(segment({"x": 1}, outputs=("n", "no_such_output")), 0)
    assert await sources[0, "n"].next_items()
    lost = sources[0, "no_such_output"]
    lost.ended = False  # as if its executor were still running
    waiting = asyncio.get_running_loop().create_task(lost.next_items())
    await asyncio.sleep(0)
    return waiting


async def waited(task: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await task


@pytest.mark.parametrize("status", ["done", "failed", "cancelled", "expired"])
async def test_whoever_still_reads_at_the_end_is_not_left_waiting(place: Estate, status: str):
    run = place.runs.open_request("app")
    waiting = await reading(run)

    run.end(status)

    with pytest.raises(Fatal, match="the request is over: nothing of it runs any more"):
        await waited(waiting)
    assert (await ended(place, run.id)).status == status
    await place.settled()


async def test_a_request_ends_once(place: Estate):
    async with place.request() as run:
        await (await Chain()(1))
    run.end("failed")

    assert (await ended(place, run.id)).status == "done"
    with pytest.raises(Fatal, match="the request is over"):
        await run.submit(segment({"x": 1}), 9)


async def test_a_failure_reaches_all_who_wait(place: Estate):
    run = place.runs.open_request("app")
    waiting = await reading(run)

    run.fail(StageFailed("out of paper"))
    run.fail(StageFailed("too late"))

    with pytest.raises(StageFailed, match="out of paper"):
        await waited(waiting)
    run.end("failed")
    problem = (await ended(place, run.id)).problem
    assert problem is not None
    assert problem.message == "out of paper"


async def test_what_came_whole_stays_whole_when_something_beside_it_fails(place: Estate):
    async with place.request() as run:
        good, bad = await run.submit(segment({"x": 4}), 0), await run.submit(segment({"x": 3}, task=STRICT), 1)
        with pytest.raises(BadRequest, match="3 is odd"):
            await bad[0, "n"].next_items()
        stream = good[0, "n"]
        await until(lambda: stream.ended)

        run.fail(StageFailed("out of paper"))

        assert [item.data for item in await stream.next_items()] == [{"value": 4}]
        assert await stream.next_items() == []


async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(place: Estate):
    async def ask() -> None:
        with use(run):
            await (await Chain()(6))

    run = place.runs.open_request("app")
    asking = asyncio.get_running_loop().create_task(ask())
    while not run.segments:
        await asyncio.sleep(0)
    asking.cancel()
    run.end("cancelled")

    with pytest.raises(asyncio.CancelledError):
        await asking
    await place.settled()
