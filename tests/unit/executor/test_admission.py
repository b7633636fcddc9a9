"""Admission of work: credits, draining, attempts, and the executor's status."""

import asyncio

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import Accepted, BusyReply, Chunk, ExecutorStatus, Hop, NodeFailed
from omnibus.executor import loop as acks
from omnibus.executor.runner import Job
from tests.unit.executor.arithmetic import Does, Place, make_call, make_invocation, put_number, wait_forever
from tests.unit.sidecar.node import wait_until


class Gate:
    """Work that waits until opened, with records of starts, finishes and cancellations."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.began: list[str] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []

    async def __call__(self, job: Job) -> None:
        self.began.append(job.invocation)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.invocation)
            raise
        self.finished.append(job.invocation)
        await job.put("y", {})


@pytest.fixture
def gate() -> Gate:
    return Gate()


def make_request(**more) -> dict:
    return {"calls": [make_call("gate")], "route": ["a"], "outputs": [(0, "y")], **more}


async def test_without_a_credit_left_the_answer_is_busy(here: Place, gate: Gate):
    await here.executor("a", {"gate": gate}, credits=2)
    requests = [here.office.send(make_invocation(**make_request())) for _ in range(2)]
    await wait_until(lambda: len(gate.began) == 2)

    late = here.office.send(make_invocation(**make_request()))

    assert await here.office.until(BusyReply, late) == [BusyReply(late.id, "a", 0)]
    assert here.status("a").inflight == 2
    gate.opened.set()
    for request in requests:
        await here.office.done(request)
    assert late.id not in gate.began


async def test_what_goes_on_from_elsewhere_is_confirmed_at_once_with_all_that_wait(
    here: Place, gate: Gate, monkeypatch
):
    monkeypatch.setattr(acks, "ACK_DELAY_SECONDS", 1000.0)
    await here.executor("a", {"gate": gate})
    first = here.office.send(make_invocation(**make_request()))
    await wait_until(lambda: gate.began == [first.id])

    resumed_request = here.office.send(
        msgspec.structs.replace(make_invocation(**make_request()), resumes=((0, "y", {"ids": [1]}),))
    )

    for request in (first, resumed_request):
        assert await here.office.until(Accepted, request) == [Accepted(request.id, "a", 0)]


async def test_a_credit_comes_back_when_work_is_done(here: Place, gate: Gate):
    gate.opened.set()
    await here.executor("a", {"gate": gate}, credits=1)

    for _ in range(5):
        await here.office.done(here.office.send(make_invocation(**make_request())))

    assert here.status("a").inflight == 0
    assert not [reply for reply in here.office.replies if isinstance(reply, BusyReply)]


async def test_a_draining_executor_refuses_finishes_and_leaves_in_this_order(here: Place, gate: Gate):
    executor = await here.executor("a", {"gate": gate})
    request = here.office.send(make_invocation(**make_request()))
    await wait_until(lambda: gate.began == [request.id])

    leaving = asyncio.ensure_future(executor.drain(10))
    late = here.office.send(make_invocation(**make_request()))
    await here.office.until(BusyReply, late)
    gate.opened.set()
    await asyncio.wait_for(leaving, 10)
    await wait_until(lambda: here.office.events[-1:] != [] and getattr(here.office.events[-1], "state", "") == "gone")

    kinds = [(type(event).__name__, getattr(event, "state", "")) for event in here.office.events]
    assert kinds.index(("Hop", "")) > kinds.index(("ExecutorStatus", "draining"))
    assert kinds[-1] == ("ExecutorStatus", "gone")
    assert here.office.events[-1].inflight == 0
    assert gate.finished == [request.id]


async def test_an_executor_whose_engine_is_away_is_not_ready_and_refuses(here: Place, gate: Gate):
    gate.opened.set()
    executor = await here.executor("a", {"gate": gate})
    [runner] = executor._runners.values()
    assert isinstance(runner, Does)

    runner.serving = False
    refused_request = here.office.send(make_invocation(**make_request()))
    assert await here.office.until(BusyReply, refused_request) == [BusyReply(refused_request.id, "a", 0)]
    assert here.status("a").state == "loading"
    runner.serving = True
    request = here.office.send(make_invocation(**make_request()))
    await here.office.done(request)

    assert here.status("a").state == "ready"
    assert gate.began == [request.id]


async def test_draining_does_not_wait_for_ever(here: Place):
    executor = await here.executor("a", {"gate": wait_forever})
    here.office.send(make_invocation(**make_request()))
    await wait_until(lambda: here.status("a").inflight == 1)

    await asyncio.wait_for(executor.drain(0.05), 10)

    assert executor.status().state == "gone"


async def test_runners_are_loaded_before_and_closed_after(here: Place):
    executor = await here.executor("a", {"gate": wait_forever})
    [runner] = executor._runners.values()
    assert isinstance(runner, Does)
    assert (runner.loaded, runner.closed) == (True, False)

    await executor.drain(0)

    assert runner.closed


async def test_a_repeated_dispatch_is_run_once(here: Place, gate: Gate):
    await here.executor("a", {"gate": gate})
    request = make_invocation(**make_request())
    for _ in range(3):
        here.office.send(request)
    await wait_until(lambda: bool(gate.began))

    gate.opened.set()

    assert len(await here.office.done(request)) == 1
    assert gate.began == [request.id]


async def test_a_later_attempt_takes_the_place_of_an_earlier_one(here: Place, gate: Gate):
    await here.executor("a", {"gate": gate}, credits=1)
    request = make_invocation(**make_request())
    here.office.send(request)
    await wait_until(lambda: len(gate.began) == 1)

    again = msgspec.structs.replace(request, attempt=1)
    here.office.send(again)
    await wait_until(lambda: len(gate.began) == 2)
    here.office.send(request)  # the first one again, late
    gate.opened.set()

    [chunk] = await here.office.done(again)
    assert (chunk.attempt, gate.cancelled, gate.finished) == (1, [request.id], [request.id])
    assert {hop.attempt for hop in here.office.of(Hop, again)} == {~0, 1}  # the first one reports its computed work
    assert here.status("a").inflight == 0


async def test_edges_of_another_attempt_are_not_mixed_in(here: Place):
    async def collect_stream(job: Job) -> None:
        await job.put("y", {"got": [item.data["n"] async for item in job.stream("x")]})

    await here.executor("a", {"number": put_number, "take": collect_stream})
    calls = [make_call("number", x=1), make_call("take", x={"$ref": [0, "said"]})]
    request = make_invocation(calls, ["elsewhere", "a"], [(1, "y")], attempt=1)
    here.office.send(request, "a")
    await wait_until(lambda: here.status("a").inflight == 1)

    def make_chunk(attempt: int, seq: int, last: bool = False) -> bytes:
        message = Chunk(request.id, 0, "said", seq, attempt, {"n": 10 * attempt + seq}, last=last)
        return b'{"v":1,"msgs":[' + msgspec.json.encode(message) + b"]}"

    for attempt, seq, last in ((0, 0, False), (1, 0, False), (0, 1, True), (1, 1, True)):
        here.bus.publish(subjects.edge_subject("a"), make_chunk(attempt, seq, last))

    [answer] = await here.office.until(Chunk, request)
    assert answer.data == {"got": [10, 11]}


# Status


async def test_its_status_says_who_it_is_and_what_it_holds(here: Place, gate: Gate):
    await here.executor("a", {"gate": gate, "number": put_number}, option="GN", credits=5)
    here.office.send(make_invocation(**make_request()))
    await wait_until(lambda: bool(gate.began))

    status = here.status("a")

    assert (status.id, status.model, status.option, status.components) == ("a", "m", "GN", ("gate", "number"))
    assert (status.state, status.credits, status.inflight) == ("ready", 5, 1)


async def test_it_is_heard_of_without_being_asked_and_at_once_when_asked(here: Place):
    await here.executor("a", {"gate": wait_forever})

    def count_statuses() -> int:
        return len([event for event in here.office.events if isinstance(event, ExecutorStatus)])

    await wait_until(lambda: count_statuses() >= 2)
    before = count_statuses()
    here.bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert count_statuses() == before + 1


async def test_steps_grow_with_work(here: Place, gate: Gate):
    gate.opened.set()
    await here.executor("a", {"gate": gate})
    before = here.status("a").steps

    await here.office.done(here.office.send(make_invocation(**make_request())))
    await wait_until(lambda: here.status("a").inflight == 0)

    assert here.status("a").steps > before


@pytest.mark.parametrize("body", [b"", b"{}", b"nonsense", b'{"v":9}'])
async def test_what_is_no_invocation_disturbs_nobody(here: Place, gate: Gate, body: bytes):
    gate.opened.set()
    await here.executor("a", {"gate": gate})

    here.bus.publish(subjects.task_subject("do-m-gate", "a"), body)
    here.bus.publish(subjects.edge_subject("a"), body)

    assert await here.office.done(here.office.send(make_invocation(**make_request())))
    assert here.office.replies == [each for each in here.office.replies if isinstance(each, Chunk | Hop | Accepted)]
    assert not [reply for reply in here.office.replies if isinstance(reply, NodeFailed)]


async def test_an_executor_that_leaves_tells_first_what_it_has_finished(here: Place, gate: Gate):
    """Otherwise its gateway would treat finished work as lost and rerun it."""
    encoder = await here.executor("e", {"number": put_number})
    await here.executor("a", {"gate": gate})
    calls = [make_call("number", x=1), make_call("gate", item={"$ref": [0, "y"]})]
    request = here.office.send(make_invocation(calls, ["e", "a"], [(1, "y")]))
    await wait_until(lambda: bool(gate.began) and not here.status("e").inflight)

    await encoder.drain(5)
    await wait_until(lambda: getattr(here.office.events[-1], "state", "") == "gone")

    assert [hop.node for hop in here.office.of(Hop, request)] == [0]
