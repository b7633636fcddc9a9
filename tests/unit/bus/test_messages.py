"""Messages: frame size limits, round trips and rejections."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.bus import messages
from omnibus.bus.messages import (
    Accepted,
    BusyReply,
    Chunk,
    ExecutorStatus,
    Hop,
    InvocationEnd,
    NodeFailed,
    PlanEvent,
    PullCost,
    decode_edges,
    decode_end,
    decode_plan_event,
    decode_replies,
    decode_status,
    encode,
    join_frames,
    to_handle,
)
from omnibus.errors import ProblemDetails, ProtocolError
from omnibus.tensors.handle import Handle

HANDLE = Handle(7, "n1", "arena", 4096, 24, "float32", (2, 3), 99)
REPLIES = [
    Chunk("g-0-1", 2, "text", 0, data={"text": "hi", "ids": [1, 2]}),
    Chunk("g-0-1", 2, "rows", 5, 1, {}, HANDLE, (0, 2), True, True),
    Accepted("g-0-1", "l-0", 1),
    BusyReply("g-0-1", "l-0", 1, 2.5),
    Hop("g-0-1", 0, "l-0", 1.0, 2.0, 3.0, 4.0, 1),
    Hop("g-0-1", 2, "l-0", 1.0, 2.0, 3.0, 4.0, 1, pulls=(PullCost(0, "embedding", "n1", "n2", 4096, 0.002),)),
    NodeFailed("g-0-1", 3, ProblemDetails("stage_failed", "broke", "vocoder", "v-0", "", 1), 1),
]
STATUS = ExecutorStatus("l-0", "m", "L", ("thinker",), ("think-m-thinker",), "n1", "ready", 8, 3, 1000, 42)


@pytest.mark.parametrize("message", REPLIES, ids=lambda message: type(message).__name__)
def test_a_reply_survives_the_wire(message: Any):
    [frame] = join_frames([encode(message)], 1000)

    assert decode_replies(frame) == [message]


@pytest.mark.parametrize("message", REPLIES[:2])
def test_an_edge_survives_the_wire(message: Chunk):
    [frame] = join_frames([encode(message)], 1000)

    assert decode_edges(frame) == [message]


def test_an_end_a_status_and_a_plan_event_survive_the_wire():
    end = InvocationEnd("g-0-1", "cancelled", 2)

    assert decode_end(encode(end)) == end
    assert decode_status(encode(STATUS)) == STATUS
    assert decode_plan_event(encode(PlanEvent(7))) == PlanEvent(7)


def test_messages_that_are_ready_together_share_a_frame_in_their_order():
    [frame] = join_frames([encode(message) for message in REPLIES], 10_000)

    assert decode_replies(frame) == REPLIES
    assert json.loads(frame)["v"] == 1


def test_no_messages_make_no_frame():
    assert list(join_frames([], 100)) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("x", max_size=60), max_size=30), st.integers(150, 600))
def test_frames_stay_under_the_limit_and_lose_nothing(texts: list[str], limit: int):
    chunks = [Chunk("i", 0, "text", seq, data={"text": text}) for seq, text in enumerate(texts)]

    frames = list(join_frames([encode(chunk) for chunk in chunks], limit))

    assert all(len(frame) <= limit for frame in frames)
    assert [chunk for frame in frames for chunk in decode_replies(frame)] == chunks


def test_a_message_that_just_fits_travels_alone():
    body = encode(Chunk("i", 0, "text", 0, data={"text": "x" * 100}))
    alone = len(next(join_frames([body], 10_000)))

    assert [len(frame) for frame in join_frames([body, body], alone)] == [alone, alone]
    with pytest.raises(ProtocolError, match=f"{len(body)} bytes is over the bus limit of {alone - 1}"):
        list(join_frames([body], alone - 1))


DECODERS = [decode_replies, decode_edges, decode_end, decode_status, decode_plan_event]


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize("body", [b"", b"null", b"{}", b"[]", b'{"v":1', b"\xff\xfe", b'"x"'])
def test_what_is_no_message_is_refused(decode: Any, body: bytes):
    with pytest.raises(ProtocolError, match="wire version 1"):
        decode(body)


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (decode_replies, b'{"v":2,"msgs":[]}'),
        (decode_edges, b'{"v":2,"msgs":[]}'),
        (decode_end, b'{"v":2,"inv":"i","status":"done"}'),
        (decode_status, encode(STATUS).replace(b'"v":1', b'"v":2')),
        (decode_plan_event, b'{"v":2,"epoch":1}'),
    ],
)
def test_another_version_is_refused_by_number(decode: Any, body: bytes):
    with pytest.raises(ProtocolError, match="version 2, this build reads 1"):
        decode(body)


@pytest.mark.parametrize("body", [b'{"v":1,"msgs":[{"t":"nonsense"}]}', b'{"v":1,"msgs":[{"t":"accepted","inv":"i"}]}'])
def test_an_unknown_or_incomplete_message_is_refused(body: bytes):
    with pytest.raises(ProtocolError):
        decode_replies(body)


def test_unknown_fields_are_refused_where_a_request_depends_on_them():
    with pytest.raises(ProtocolError, match="hue"):
        decode_replies(b'{"v":1,"msgs":[{"t":"accepted","inv":"i","executor":"e","hue":1}]}')
    with pytest.raises(ProtocolError, match="hue"):
        decode_end(b'{"inv":"i","status":"done","hue":1}')


def test_a_status_may_say_more_than_this_build_knows():
    assert decode_status(encode(STATUS)[:-1] + b',"load":0.5}') == STATUS


@pytest.mark.parametrize("id", ["", "a b", "x\r\n", "*", "a.>"])
def test_an_executor_that_cannot_be_addressed_is_refused(id: str):
    with pytest.raises(ProtocolError, match="cannot be addressed"):
        decode_status(encode(msgspec.structs.replace(STATUS, id=id)))


def test_an_executor_takes_nothing_but_chunks_on_its_edge():
    with pytest.raises(ProtocolError):
        decode_edges(next(join_frames([encode(Accepted("i", "e"))], 1000)))


def test_a_handle_is_read_from_plain_json():
    assert to_handle(json.loads(encode(HANDLE))) == HANDLE


@pytest.mark.parametrize(
    "change", [{"dtype": "object"}, {"nbytes": 23}, {"shape": [-2, -3]}, {"shape": "2"}, {"id": None}, {"extra": 1}]
)
def test_a_handle_that_does_not_add_up_is_refused(change: dict[str, Any]):
    with pytest.raises(ProtocolError):
        to_handle({**json.loads(encode(HANDLE)), **change})


def test_what_is_usual_is_not_said():
    assert encode(Chunk("i", 0, "text", 0)) == b'{"t":"chunk","inv":"i","node":0,"output":"text","seq":0}'
    assert messages.encode(Accepted("i", "e")) == b'{"t":"accepted","inv":"i","executor":"e"}'
