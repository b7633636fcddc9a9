"""Unit tasks requested by hand: frames stream back, then an empty message ends them."""

import asyncio
import json
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, Hop, NodeFailed
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import Place, make_call, make_invocation, put_number, task_name
from tests.unit.sidecar.node import wait_until

PATIENCE = 10.0  # seconds


async def request_task(here: Place, component: str, body: bytes) -> list[Any]:
    """Send one request and return all replies, decoded as frames."""
    parts = [
        part async for part in here.bus.request_stream(subjects.task_subject(task_name(component)), body, PATIENCE)
    ]
    return [message for part in parts for message in messages.decode_replies(part)]


async def send_counts(job: Job) -> None:
    for n in range(job.inputs["to"]):
        await job.send("said", {"n": n})


async def test_frames_stream_back_until_the_empty_message(here: Place):
    await here.executor("a", {"count": send_counts})
    recording = make_invocation([make_call("count", to=3)], ["whoever"], [(0, "said")])

    replies = await request_task(here, "count", graph.encode_invocation(recording))

    chunks = [reply for reply in replies if isinstance(reply, Chunk)]
    assert [chunk.data for chunk in chunks] == [{"n": 0}, {"n": 1}, {"n": 2}, {}]
    assert isinstance(replies[-1], Hop)
    assert {reply.inv for reply in replies} == {chunks[0].inv}
    assert chunks[0].inv != recording.id
    assert here.office.replies == []
    await wait_until(lambda: here.status("a").inflight == 0)


async def test_only_the_nodes_of_the_asked_executor_are_run(here: Place):
    await here.executor("a", {"number": put_number})
    calls = [
        make_call("number", x=2),
        make_call("number", x=3),
        make_call("elsewhere", items=[make_ref(0, "y"), make_ref(1, "y")]),
    ]
    recording = make_invocation(calls, ["x", "x", "y"], [(2, "said")])

    replies = await request_task(here, "number", graph.encode_invocation(recording))

    assert [(reply.node, reply.data) for reply in replies if isinstance(reply, Chunk)] == [(0, {"n": 2}), (1, {"n": 3})]


async def test_the_same_recording_may_be_asked_at_the_same_time(here: Place):
    await here.executor("a", {"count": send_counts})
    body = graph.encode_invocation(make_invocation([make_call("count", to=2)], ["x"], [(0, "said")]))

    answers = await asyncio.gather(*(request_task(here, "count", body) for _ in range(5)))

    assert [[reply.data for reply in replies if isinstance(reply, Chunk)] for replies in answers] == [
        [{"n": 0}, {"n": 1}, {}]
    ] * 5


async def test_a_failure_is_one_of_the_replies(here: Place):
    await here.executor("a", {"count": send_counts})
    body = graph.encode_invocation(make_invocation([make_call("count")], ["x"], [(0, "said")]))

    [node_failure] = await request_task(here, "count", body)

    assert isinstance(node_failure, NodeFailed)
    assert (node_failure.problem.code, node_failure.problem.stage) == ("stage_failed", "count")


async def test_an_input_that_nobody_will_send_ends_at_the_deadline(here: Place):
    async def wait_for_item(job: Job) -> None:
        await job.value("item")

    await here.executor("a", {"wait": wait_for_item})
    recording = make_invocation(
        [make_call("elsewhere"), make_call("wait", item=make_ref(0, "y"))], ["x", "y"], [(1, "y")], within=1.0
    )

    [node_failure] = await request_task(here, "wait", graph.encode_invocation(recording))

    assert node_failure.problem.code == "deadline_exceeded"


@pytest.mark.parametrize("body", [b"", b"hello", b"{}", b'{"v":7}'])
async def test_what_is_no_invocation_is_answered_with_a_problem(here: Place, body: bytes):
    await here.executor("a", {"count": send_counts})

    [answer] = [
        part async for part in here.bus.request_stream(subjects.task_subject(task_name("count")), body, PATIENCE)
    ]

    assert json.loads(answer)["code"] == "protocol_error"


async def test_asking_without_a_reply_subject_disturbs_nobody(here: Place):
    await here.executor("a", {"count": send_counts})
    empty: list[str] = []
    await here.bus.subscribe(">", lambda delivery: empty.append(delivery.subject))
    body = graph.encode_invocation(make_invocation([make_call("count", to=2)], ["x"], [(0, "said")]))

    here.bus.publish(subjects.task_subject(task_name("count")), body)
    await request_task(here, "count", body)

    assert "" not in empty
    await wait_until(lambda: here.status("a").inflight == 0)
