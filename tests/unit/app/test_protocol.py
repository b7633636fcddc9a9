"""Messages between a gateway and a worker: round trips over the socket, and rejection of anything else."""

import asyncio
import socket
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.app import protocol
from omnibus.app import transport as framing
from omnibus.app.protocol import Array, PackedItem, pack_items, unpack_items
from omnibus.app.transport import WorkerLink
from omnibus.app_record import AppSource
from omnibus.errors import ProblemDetails, ProtocolError, TooLarge
from omnibus.graph import GraphNode, call_digest
from omnibus.task import Segment
from omnibus.tensors.handle import Item

NODE = GraphNode(
    "spell", "spell", {"text": "ab", "deep": [{"$handle": {"id": 1}}]}, call_digest("spell", {"text": "ab"}), (), "", 3
)
PROBLEM = ProblemDetails("app_failed", "what happened", stage="poet")
PIECE = PackedItem({"text": "a"}, Array("float32", (2, 1), np.ones((2, 1), np.float32).tobytes()))
TO_WORKER = [
    protocol.LoadApp(AppSource("upload", "poet", sha256="ab"), "async def serve(request): ...", 1 << 30),
    protocol.Serve(1, "gw-1", b'{"a": 1}', protocol.JSON, 7, 12.5),
    protocol.Submitted(1, 0, "gw-1"),
    protocol.SegmentRefused(1, 0, PROBLEM),
    protocol.Items(1, 0, 2, "text", (PIECE,), True, PROBLEM),
    protocol.More(1, 100),
    protocol.Cancel(1),
    protocol.StopWorker(),
]
FROM_WORKER = [
    protocol.AppReady(protocol.Description("poet", "doc", (), "chat", "poet", {"a": {}}, {}, True, ("limits",))),
    protocol.Broken(PROBLEM),
    protocol.Submit(1, 0, Segment((NODE,), ((0, "letters"),), (3,), ("apart",), (1, 0))),
    protocol.Read(1, 0, 2, "text"),
    protocol.ServeAnswer(1, b"[]", {"text": (0, 1, "text")}),
    protocol.Give(1, "text", (PIECE,), True),
    protocol.AnswerPart(1, b"1"),
    protocol.RequestEnd(1),
    protocol.RequestFailed(1, PROBLEM),
]


def split_frames(data: bytes) -> list[bytes]:
    return list(framing.Frames().feed(data))


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_a_worker_reads_what_a_gateway_wrote(message):
    (body,) = split_frames(framing.encode_message(message))

    assert framing.to_worker(body) == message


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
def test_a_gateway_reads_what_a_worker_wrote(message):
    (body,) = split_frames(framing.encode_message(message))

    assert framing.from_worker(body) == message


@given(st.lists(st.integers(0, 400), max_size=8))
def test_frames_survive_any_cut_of_the_stream(cuts):
    data = b"".join(framing.encode_message(message) for message in FROM_WORKER)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    frames = framing.Frames()

    frame_bodies = [body for start, end in pairwise(edges) for body in frames.feed(data[start:end])]

    assert [framing.from_worker(body) for body in frame_bodies] == FROM_WORKER


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe garbage",
        msgspec.msgpack.encode(["nonsense", 1]),
        msgspec.msgpack.encode(["end"]),
        msgspec.msgpack.encode(["end", "one"]),
        msgspec.msgpack.encode(["end", 1, "more"]),
        msgspec.msgpack.encode(["serve", 1, "r", b"{}", "json", 0, 1.0]),
        b"\x91" * 100_000,
    ],
    ids=["empty", "garbage", "unknown", "short", "mistyped", "long", "other-direction", "deep"],
)
def test_what_is_no_message_is_refused(body):
    with pytest.raises(ProtocolError, match="not a message"):
        framing.from_worker(body)


def test_a_frame_over_the_limit_is_not_sent_and_not_awaited():
    head = (protocol.MAX_FRAME_BYTES + 1).to_bytes(4, "little")

    with pytest.raises(TooLarge):
        framing.encode_message(protocol.AnswerPart(1, bytes(protocol.MAX_FRAME_BYTES)))
    with pytest.raises(ProtocolError, match="must have at most"):
        split_frames(head + b"x")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_arrays_arrive_as_they_were(dtype, shape):
    array = (np.arange(int(np.prod(shape))).reshape(shape) % 2).astype(dtype)

    ((data, copy),) = unpack_items(pack_items([Item({"n": 1}, array)]))

    assert data == {"n": 1}
    assert copy.shape == shape
    assert copy.dtype.name == array.dtype.name
    assert np.array_equal(copy, array)
    assert not copy.flags.writeable


def test_an_array_that_is_not_in_order_arrives_in_order():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T

    ((_, copy),) = unpack_items(pack_items([Item({}, array)]))

    assert np.array_equal(copy, array)


@pytest.mark.parametrize(
    "array",
    [
        Array("object", (1,), bytes(8)),
        Array("bfloat16", (1,), bytes(2)),
        Array("float32", (2,), bytes(4)),
        Array("float32", (-1, -1), bytes(4)),
        Array("float32", (1,) * 9, bytes(4)),
        Array("V4", (1,), bytes(4)),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_that_does_not_add_up_is_refused(array):
    with pytest.raises(ProtocolError):
        unpack_items([PackedItem({}, array)])


@pytest.mark.parametrize(
    "array", [np.array([None]), np.array(["a"]), np.zeros(1, complex)], ids=["object", "text", "complex"]
)
def test_an_array_that_may_not_travel_is_refused_before_it_leaves(array):
    with pytest.raises(ProtocolError, match="cannot (send|receive) an array"):
        pack_items([Item({}, array)])


def test_a_gateway_begins_with_what_to_load():
    gateway_end, worker_end = socket.socketpair()
    with gateway_end, worker_end:
        gateway_end.sendall(framing.encode_message(TO_WORKER[0]) + framing.encode_message(protocol.Cancel(1)))
        gateway_end.shutdown(socket.SHUT_WR)

        assert framing.read_load_message(worker_end) == TO_WORKER[0]
        with pytest.raises(ProtocolError, match="must be LoadApp, not Cancel"):
            framing.read_load_message(worker_end)
        assert framing.read_load_message(worker_end) is None


@pytest.mark.parametrize(
    ("message", "most"),
    [
        (protocol.AnswerPart(1, b"x" * (2 << 20)), protocol.MAX_FRAME_BYTES),
        (protocol.ServeAnswer(1, b"x" * (2 << 20)), protocol.MAX_FRAME_BYTES),
        (
            protocol.Give(1, "audio", (PackedItem({}, Array("uint8", (2 << 20,), bytes(2 << 20))),)),
            protocol.MAX_GIVE_BYTES,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_worker_may_send_much_of_what_is_bytes(message, most):
    assert framing.from_worker(split_frames(framing.encode_message(message))[0]) == message
    assert message.most == most


@pytest.mark.parametrize(
    "message",
    [
        protocol.Submit(1, 0, Segment((GraphNode("t", "c", {"x": [0] * (2 << 20)}, ""),), ())),
        protocol.RequestFailed(1, ProblemDetails("a", "x" * (2 << 20))),
        protocol.Give(1, "text", (PackedItem({"text": "x" * (9 << 20)}),)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_worker_may_not_make_its_gateway_build_much(message):
    body = msgspec.msgpack.encode(message)

    with pytest.raises(TooLarge, match="it must have at most"):
        framing.encode_message(message)
    with pytest.raises(ProtocolError, match="exceeds the limit of its kind"):
        framing.from_worker(body)


# Links


class Ends:
    """Two links on one socket pair, and the messages that each received."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.lost: list[object] = []
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()

    async def open(self) -> "tuple[WorkerLink, WorkerLink]":
        near_end, far_end = socket.socketpair()
        for end in (near_end, far_end):
            end.setblocking(False)
        return await WorkerLink.open(near_end, lambda _: None, lambda _: None), await WorkerLink.open(
            far_end, self._receive_body, self._note_loss
        )

    def _receive_body(self, body: bytes) -> None:
        if body == b"bad":
            raise ProtocolError("that was bad")
        self.heard.append(body)
        self.arrived.set()

    def _note_loss(self, error: object) -> None:
        self.lost.append(error)
        self.gone.set()


def make_frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


async def test_a_link_carries_frames_and_ends_once():
    ends = Ends()
    link, _ = await ends.open()

    link.send(make_frame(b"one"))
    link.send(make_frame(b"two"))
    link.close()
    await ends.gone.wait()

    assert ends.heard == [b"one", b"two"]
    assert ends.lost == [None]
    link.send(make_frame(b"late"))
    await link.drain()


async def test_a_link_closes_at_the_first_frame_that_is_refused():
    ends = Ends()
    link, _ = await ends.open()

    link.send(make_frame(b"bad") + make_frame(b"after"))
    await ends.gone.wait()

    assert ends.heard == []
    assert [str(error) for error in ends.lost] == ["that was bad"]


async def test_a_sender_can_wait_until_the_other_end_has_room():
    ends = Ends()
    sender, receiver = await ends.open()
    receiver._transport.pause_reading()

    for _ in range(64):
        sender.send(make_frame(bytes(64 << 10)))
    draining = asyncio.create_task(sender.drain())
    await asyncio.sleep(0)
    waits = not draining.done()
    receiver._transport.resume_reading()
    await draining

    assert waits
    await ends.arrived.wait()


async def test_senders_that_wait_for_room_share_a_write():
    class CountingTransport:
        def __init__(self, transport: Any) -> None:
            self.written: list[bytes] = []
            self._transport = transport

        def write(self, data: bytes) -> None:
            self.written.append(data)
            self._transport.write(data)

    ends = Ends()
    link, _ = await ends.open()
    counting_transport: Any = CountingTransport(link._transport)
    link._transport = counting_transport

    async def send_body(body: bytes) -> None:
        link.send(make_frame(body))
        await link.drain()

    await asyncio.gather(send_body(b"one"), send_body(b"two"), send_body(bytes(64 << 10)), send_body(b"three"))
    while len(ends.heard) < 4:
        ends.arrived.clear()
        await ends.arrived.wait()

    assert [len(data) for data in counting_transport.written] == [
        len(make_frame(b"onetwo")) + 4 + 4 + (64 << 10),
        len(make_frame(b"three")),
    ]
