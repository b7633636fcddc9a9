"""Malformed messages on an executor's subjects: it serves the next request and holds nothing of them."""

import json
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk
from omnibus.graph import HANDLE
from omnibus.tensors.handle import Handle
from tests.unit.executor.arithmetic import NODE, Place, make_call, make_invocation, put_number, put_sum, task_name
from tests.unit.sidecar.node import wait_until

GARBAGE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\x00\xff\xfe",
    b'{"v":1}',
    b'{"v":99,"msgs":[]}',
    b"[" * 10_000,
    b'"' + b"a" * 999,
]


async def check_alive(here: Place) -> None:
    request = here.office.send(make_invocation([make_call("number", x=1)], ["a"], [(0, "y")]))
    assert len(await here.office.done(request)) == 1
    here.office.tensors.end_invocation(request.id)
    await here.emptied()


def encode_changed(**changes: Any) -> bytes:
    """Return a valid invocation with ``changes``."""
    good = json.loads(graph.encode_invocation(make_invocation([make_call("number", x=1)], ["a"], [(0, "y")])))
    return json.dumps({**good, **changes}).encode()


def make_node(**changes: Any) -> dict[str, Any]:
    good = json.loads(encode_changed())["nodes"][0]
    return {**good, **changes}


WRONG = {
    "another version": encode_changed(v=99),
    "an unknown field": encode_changed(command="ls"),
    "no nodes": encode_changed(nodes=[]),
    "a route that is too short": encode_changed(route=[]),
    "a route that is too long": encode_changed(route=["a", "a"]),
    "an input of a node that is not there": encode_changed(
        nodes=[make_node(inputs={"x": {"$ref": [7, "y"]}}, uses=[[7, "y"]])]
    ),
    "an input of itself": encode_changed(nodes=[make_node(inputs={"x": {"$ref": [0, "y"]}}, uses=[[0, "y"]])]),
    "an output of a node that is not there": encode_changed(outputs=[[9, "y"]]),
    "a negative output": encode_changed(outputs=[[-1, "y"]]),
    "a reply with a line break": encode_changed(reply="omnibus.reply.x\r\nPUB omnibus.end.y 0"),
    "a node of a wrong type": encode_changed(nodes=["rm"]),
    "a deadline that is no number": encode_changed(deadline="tomorrow"),
}


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
async def test_what_is_no_message_harms_nobody(here: Place, body: bytes):
    await here.executor("a", {"number": put_number})

    for subject in (
        subjects.task_subject(task_name("number"), "a"),
        subjects.edge_subject("a"),
        f"{subjects.no_responders_prefix('a')}.x",
        subjects.event_subject(subjects.CENSUS),
    ):
        here.bus.publish(subject, body, reply=subjects.reply_subject("nobody"))

    await check_alive(here)
    assert here.status("a").state == "ready"


@pytest.mark.parametrize("name", WRONG)
async def test_an_invocation_that_cannot_be_holds_nothing(here: Place, name: str):
    await here.executor("a", {"number": put_number})

    for _ in range(here.status("a").credits + 1):  # were one held each time, no credit would be left
        here.bus.publish(
            subjects.task_subject(task_name("number"), "a"), WRONG[name], reply=subjects.reply_subject("nobody")
        )

    await wait_until(lambda: here.status("a").inflight == 0)
    await check_alive(here)


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1 << 40},
        {"nbytes": 1 << 40, "shape": [1 << 37]},
        {"generation": 12345},
        {"arena": "../../etc/passwd"},
        {"node": "another-node"},
    ],
    ids=str,
)
async def test_a_handle_out_of_bounds_fails_its_request_alone(here: Place, changes: dict[str, Any]):
    await here.executor("a", {"number": put_number, "add": put_sum})
    good = Handle(1, NODE, here.sidecar.settings.arena, 0, 8, "float64", (1,), 1)
    handle = {**json.loads(messages.encode(good)), **changes}
    request = make_invocation([make_call("add", items=[{HANDLE: handle}])], ["a"], [(0, "y")])

    here.bus.publish(subjects.task_subject(task_name("add"), "a"), graph.encode_invocation(request))
    await wait_until(lambda: here.status("a").inflight == 0)

    await check_alive(here)


async def test_chunks_for_nobody_are_forgotten(here: Place):
    await here.executor("a", {"number": put_number})
    for count in range(50):
        [frame] = messages.join_frames([messages.encode(Chunk(f"made-up-{count}", 0, "y", 0, data={"n": 1}))], 1 << 16)
        here.bus.publish(subjects.edge_subject("a"), frame)

    await check_alive(here)
