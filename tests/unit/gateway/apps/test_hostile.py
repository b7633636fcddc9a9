"""A worker that breaks the protocol is stopped and replaced. Its requests fail."""

import msgspec
import pytest

from omnibus.errors import AppFailed, OmnibusError, ProtocolError
from omnibus.graph import HANDLE, GraphNode, call_digest, make_ref
from omnibus.task import ChatInput, Segment
from omnibus_gateway.apps import graph_submission
from tests.unit.gateway.apps.workers import Abacus, run_worker, wait_until_true, write_app

SPEAKS = """
from omnibus.app import protocol, transport
from omnibus.app.protocol import Array, PackedItem
from omnibus.graph import GraphNode, call_digest
from omnibus.task import Segment

def say(*messages):
    link = int(sys.argv[1])
    os.set_blocking(link, True)  # a link that is full would take a part of a message, and the rest would never come
    for message in messages:
        data = message if isinstance(message, bytes) else transport.encode_message(message)
        os.write(link, data)
    os.set_blocking(link, False)

NODE = GraphNode("spell", "spell", {"text": "ab"}, call_digest("spell", {"text": "ab"}))
SEGMENT = Segment((NODE,), ((0, "count"),), (1,), ("",))
"""
CHAT = "app = App(model='m')\nasync def serve(request: ChatInput) -> ChatOutput:\n"
PLAIN = "async def serve(request):\n"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("b'\\xff' * 64", "a frame must have at most .* bytes"),
        ("b'\\x04\\x00\\x00\\x00junk'", "not a message"),
        ("transport.encode_message(protocol.Cancel(1))", "not a message"),
        (
            "protocol.AppReady(protocol.Description('a', '', (), '', '', {}, {}, False))",
            "the worker reports twice that it is ready",
        ),
        ("protocol.Read(1, 0, 0, 'count')", "'count' of call 0 cannot be read now"),
        ("protocol.Submit(1, -1, SEGMENT)", "segment -1 comes"),
        ("protocol.Submit(1, 5, SEGMENT), protocol.Submit(1, 5, SEGMENT)", "segment 5 comes twice"),
        ("protocol.ServeAnswer(1, b'1'), protocol.ServeAnswer(1, b'2')", "answered twice"),
        ("protocol.ServeAnswer(1, b'{')", "the answer is not valid JSON"),
        ("protocol.ServeAnswer(1, b'\"\\xff\"')", "the answer is not valid JSON"),
        ("protocol.ServeAnswer(1, b'[1,\\n2]')", "an answer has several lines"),
        ("protocol.AnswerPart(1, b'1 2')", "the answer is not valid JSON"),
        (
            "protocol.AnswerPart(1, b'\"' + b'x' * 200_000 + b'\"'), protocol.AnswerPart(1, b'\"' + b'x' * 200_000 + b'\"')",
            "faster than they are read",
        ),
        ("protocol.Give(1, 'text', ())", "'text' is not an expected output"),
        ("protocol.PlaceMedia(1, 3, '', b'a'), protocol.PlaceMedia(1, 3, '', b'a')", "file 3 comes twice"),
    ],
)
async def test_what_no_app_sends_ends_its_worker(tmp_path, says, why):
    async with run_worker(
        write_app(
            tmp_path,
            SPEAKS
            + PLAIN
            + f"    if request:\n        say({says})\n        await asyncio.sleep(1000)\n    return 'fine'\n",
        )
    ) as host:
        pid, run = host.pid, Abacus()

        with pytest.raises(AppFailed, match=f"ended: it sent an invalid message .*{why}"):
            await host.invoke(run, b"1").read_answer()

        assert run.status == "failed"
        await wait_until_true(lambda: host.is_ready and host.pid != pid)
        assert await host.invoke(Abacus(), b"0").read_answer() == b'"fine"'


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (
            "protocol.ServeAnswer(1, b'[\"text\"]', {'text': (0, 0, 'text')})",
            "the output .0, 0, 'text'. cannot be handed on",
        ),
        ("protocol.ServeAnswer(1, b'[\"video\"]')", "the answer of chat must name text, audio, not 'video'"),
        ('protocol.ServeAnswer(1, b\'["text","text"]\')', "the answer of chat must name text, audio, not 'text, text'"),
        ("protocol.ServeAnswer(1, b'7')", "the answer of chat names no outputs"),
        (
            "protocol.ServeAnswer(1, b'[\"text\"]'), protocol.Give(1, 'audio', ())",
            "'audio' is not an expected output",
        ),
        (
            "protocol.ServeAnswer(1, b'[\"text\"]'), protocol.Give(1, 'text', (PackedItem({}, Array('object', (1,), b'12345678')),))",
            "cannot receive an array",
        ),
    ],
)
async def test_what_no_chat_sends_ends_its_worker(tmp_path, says, why):
    async with run_worker(
        write_app(tmp_path, SPEAKS + CHAT + f"    say({says})\n    await asyncio.sleep(1000)\n")
    ) as host:
        pid = host.pid

        with pytest.raises(AppFailed, match=f"ended: it sent an invalid message .*{why}"):
            for output in (await host.invoke_chat(Abacus(), ChatInput(messages=[])).wait_for_outputs()).values():
                while await output.next_items():
                    pass

        await wait_until_true(lambda: host.is_ready and host.pid != pid)


async def test_messages_about_requests_that_are_over_are_ignored(tmp_path):
    says = "protocol.AnswerPart(99, b'1'), protocol.RequestEnd(99), protocol.Submit(99, 0, SEGMENT), protocol.Read(99, 0, 0, 'x'), protocol.Give(99, 'x', ())"
    async with run_worker(write_app(tmp_path, SPEAKS + PLAIN + f"    say({says})\n    return 'fine'\n")) as host:
        pid = host.pid

        assert [await host.invoke(Abacus(), b"1").read_answer() for _ in range(2)] == [b'"fine"'] * 2
        assert host.pid == pid


async def test_a_worker_that_closes_its_link_is_replaced(tmp_path):
    async with run_worker(
        write_app(tmp_path, PLAIN + "    os.close(int(sys.argv[1]))\n    time.sleep(1000)\n")
    ) as host:
        pid = host.pid

        with pytest.raises(AppFailed):
            await host.invoke(Abacus(2.0), b"1").read_answer()

        await wait_until_true(lambda: host.is_ready and host.pid != pid)


async def test_a_chat_that_ends_before_its_outputs_do_fails(tmp_path):
    text = (
        SPEAKS
        + CHAT
        + "    say(protocol.ServeAnswer(1, b'[\"text\"]'), protocol.RequestEnd(1))\n    await asyncio.sleep(1000)\n"
    )
    async with run_worker(write_app(tmp_path, text)) as host:
        outputs = await host.invoke_chat(Abacus(), ChatInput(messages=[])).wait_for_outputs()

        with pytest.raises(AppFailed, match="ended in the middle of its answer"):
            while await outputs["text"].next_items():
                pass


# Segments

MEDIA = {HANDLE: {"id": 7}, "modality": "image", "sha256": "ab"}
ISSUED = frozenset(graph_submission.handle_literals([MEDIA]))


def make_node(**inputs) -> GraphNode:
    return GraphNode("encode", "vision", inputs, call_digest("encode", inputs))


def make_segment(*nodes: GraphNode, **more) -> Segment:
    usual = {"outputs": ((0, "y"),), "work": (1,) * len(nodes), "pins": ("",) * len(nodes)}
    return Segment(nodes, **{**usual, **more})


@pytest.mark.parametrize(
    "good",
    [
        make_segment(make_node(media=MEDIA)),
        make_segment(make_node(x=1), make_node(items=[make_ref(0, "y"), {"deep": [MEDIA]}])),
        make_segment(make_node(x=1), work=(), pins=()),
        make_segment(make_node(x=1), pins=("path:E>L",), choices=(1, 0), work=(0,)),
        make_segment(make_node(x=1), msgspec.structs.replace(make_node(x=1), salt=1)),
    ],
)
def test_what_record_makes_is_accepted(good):
    graph_submission.check_segment(good, ISSUED)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (make_segment(outputs=()), "a segment of 0 calls"),
        (make_segment(make_node(x=1), work=(1, 1)), "with 2 loads"),
        (make_segment(make_node(x=1), pins=("", "")), "and 2 pins"),
        (make_segment(make_node(x=1), work=(-1,)), "out of bounds"),
        (make_segment(make_node(x=1), work=(10**9,)), "out of bounds"),
        (make_segment(make_node(x=1), pins=("x" * 300,)), "out of bounds"),
        (make_segment(make_node(x=1), choices=(0,) * 5000), "out of bounds"),
        (make_segment(make_node(x=1), outputs=((1, "y"),)), "outputs of unknown calls"),
        (make_segment(make_node(x=1), outputs=((-1, "y"),)), "outputs of unknown calls"),
        (make_segment(make_node(media={**MEDIA, "sha256": "cd"})), "names media"),
        (make_segment(make_node(media={HANDLE: {"id": 8}})), "names media"),
        (make_segment(make_node(x=[{"y": {**MEDIA, "more": 1}}])), "names media"),
        (make_segment(make_node(x={**MEDIA, "inner": {HANDLE: {"id": 9}}})), "names media"),
        (
            make_segment(GraphNode("encode", "vision", {"x": 1}, call_digest("encode", {"x": 2}))),
            "does not match its digest",
        ),
        (
            make_segment(GraphNode("encode", "vision", {"x": 1}, call_digest("encode", {"x": 1}), salt=-1)),
            "does not match its digest",
        ),
    ],
)
def test_what_record_does_not_make_is_refused(bad, fault):
    with pytest.raises(ProtocolError, match=fault):
        graph_submission.check_segment(bad, ISSUED)


async def test_a_forged_graph_is_refused_and_its_worker_lives(tmp_path):
    text = (
        SPEAKS
        + PLAIN
        + (
            "    from omnibus.task.runtime import _request\n"
            "    forged = Segment((GraphNode('spell', 'spell', {'text': 'ab'}, '0' * 16),), ((0, 'count'),), (1,), ('',))\n"
            "    return await _request.get().submit(forged, 0)\n"
        )
    )
    async with run_worker(write_app(tmp_path, text)) as host:
        run, pid = Abacus(), host.pid

        with pytest.raises(OmnibusError, match="a call of spell does not match its digest"):
            await host.invoke(run, b"1").read_answer()

        assert run.segments == {}
        assert host.pid == pid
