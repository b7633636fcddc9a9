"""Documents of bus, store and disk are read, or rejected by type.

A rejection is one typed error.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus import api_key, app_record, graph, plan, profile
from omnibus.app import protocol
from omnibus.app import protocol as array_codec
from omnibus.app import transport as framing
from omnibus.app.routes import ROUTES
from omnibus.bus import media_messages, messages
from omnibus.errors import BadRequest, ProblemDetails, ProtocolError
from omnibus.families import catalog
from omnibus.plan import Plan
from omnibus.recording import dead_letters, records
from omnibus.store import JobRecord
from omnibus.up import fork_client
from omnibus_gateway.apps import graph_submission as output_buffer
from omnibus_gateway.dispatch import retention as capture
from omnibus_gateway.request import continuing as event_ids
from omnibus_gateway.videos import job_payload
from omnibus_planner.declared import declarations_file
from tests.fuzz import corpus
from tests.fuzz.mutate import make_bodies, mutate_bytes
from tests.fuzz.profile import limit_examples
from tests.golden import corpus as golden

Decode = Callable[[bytes], Any]

#: A refusal travels as a message itself, and people read it.
MAX_REFUSAL = 2000


def decode_typed(decode: Decode, data: bytes, errors: tuple[type[Exception], ...] = (ProtocolError,)) -> Any:
    """Value of ``decode``, or None for one of ``errors``; other exceptions are faults."""
    try:
        return decode(data)
    except errors as error:
        refusal = str(error)
    assert 0 < len(refusal) < MAX_REFUSAL
    return None


# The bus

GOLDEN = {path.name: path.read_bytes().rstrip(b"\n") for path in golden.list_messages()}
ENDS = [each.end_body for each in golden.read_recorded()]


def find_golden(*words: str) -> list[bytes]:
    return [body for name, body in GOLDEN.items() if name.startswith(words)]


LOAD = messages.encode(
    messages.LoadEvent("gw", 1, 1.0, 2, {"m": {"chat": messages.LoadCounts(1, 1, quantities={"a": 1.0})}})
)
GATEWAY = messages.encode(messages.GatewayStatus("gw", 1, 1.0))
LETTER = messages.encode(
    dead_letters.DeadLetter(1, "a-0-1", "failed", 1.0, 1.0, "chat", "m", "t", "p", ProblemDetails("stage_failed", "x"))
)
NODE = messages.encode(
    messages.NodeStatus("n", "127.0.0.1", 7400, 1, unreachable=("m",), pulled={"m": 1}, seconds={"m": 0.5}, now=1.0)
)
MEDIA_PART = messages.encode(media_messages.MediaPart(problem=ProblemDetails("not_found", "x")))
BUS: dict[str, tuple[Decode, list[bytes]]] = {
    "invocations": (graph.decode_invocation, list(golden.read_invocations().values())),
    "replies": (messages.decode_replies, find_golden("reply_")),
    "edges": (messages.decode_edges, find_golden("edge_")),
    "ends": (messages.decode_end, find_golden("end")),
    "statuses": (messages.decode_status, find_golden("status")),
    "gateways": (messages.decode_gateway, [GATEWAY]),
    "loads": (messages.decode_load, [LOAD]),
    "plan_events": (messages.decode_plan_event, find_golden("plan_event")),
    "ended": (records.decode_end, ENDS),
    "dead_letters": (dead_letters.decode_dead_letter, [LETTER]),
    "nodes": (messages.decode_node, [NODE]),
    "media_queries": (media_messages.decode_query, [messages.encode(media_messages.MediaQuery("g", "video", "v"))]),
    "media_answers": (media_messages.decode_answer, [messages.encode(media_messages.MediaAnswer("g", 9, "1"))]),
    "media_reads": (media_messages.decode_read, [messages.encode(media_messages.MediaRead("video", "v", "1", 0, 9))]),
    "media_parts": (media_messages.decode_part, [MEDIA_PART]),
}


@pytest.mark.parametrize("parser", BUS)
def test_a_message_of_the_bus_is_read_or_refused(parser: str):
    decode, documents = BUS[parser]

    @corpus.try_saved(parser)
    @limit_examples(150)
    @given(data=make_bodies(documents))
    def any_body(data: bytes) -> None:
        with corpus.save_failing(parser, data):
            decode_typed(decode, data)

    any_body()


@limit_examples(150)
@given(data=make_bodies(BUS["invocations"][1]))
def test_the_references_of_an_invocation_are_checked_or_refused(data: bytes):
    invocation = decode_typed(graph.decode_invocation, data)
    if invocation is not None:
        decode_typed(lambda _: graph.verify_uses(invocation.nodes), data)
        [invocation.seed_of(node) for node in range(len(invocation.nodes))]


@limit_examples(100)
@given(data=st.binary(max_size=200) | make_bodies(ENDS))
def test_a_record_is_an_end_or_none(data: bytes):
    assert records.is_end(data) in (True, False)


# The store

_DECLARED = msgspec.convert(
    {"m": catalog.model_declaration("qwen2_5_omni", "")}, dict[str, declarations_file.DeclaredModel]
)
PLAN = plan.encode_plan(Plan(1, 0, 1000.0, declarations_file.build_static_plans(_DECLARED)))
APP = app_record.encode_app_record(
    app_record.AppRecord(
        "shout", 1, app_record.AppSource("directory", "shout", "/apps"), "", "",
        (app_record.TaskRecord("a", "k", "m", "c", "llm", True, "a:B", {"times": 2}),),
        {"type": "object"}, {}, True, "doc", 1.0, 1.0,
    )
)  # fmt: skip
PROFILE = (Path(__file__).parents[2] / "examples" / "simulated" / "profile.json").read_bytes()
JOB = job_payload.encode(
    job_payload.VideoJobSpec(model="m", wish={"prompt": "a boat", "seconds": 1.0, "width": 64, "height": 32})
)


def read_job(data: bytes) -> Any:
    return job_payload.decode_job(JobRecord(id="video_1", request=data, created=1.0, until=2.0, expires=3.0))


STORE: dict[str, tuple[Decode, list[bytes]]] = {
    "plans": (plan.decode_plan, [PLAN]),
    "apps": (app_record.decode_app_record, [APP]),
    "profiles": (profile.decode_profile, [PROFILE]),
    "keys": (
        api_key.decode_key_record,
        [api_key.encode_key_record(api_key.KeyRecord("0" * 64, "alice", rate=2.0, note="x"))],
    ),
    "jobs": (read_job, [JOB]),
}


@pytest.mark.parametrize("parser", STORE)
def test_a_document_of_the_store_is_read_or_refused(parser: str):
    decode, documents = STORE[parser]

    @corpus.try_saved(parser)
    @limit_examples(150, cost=2)
    @given(data=make_bodies(documents))
    def any_body(data: bytes) -> None:
        with corpus.save_failing(parser, data):
            decode_typed(decode, data, (ProtocolError, BadRequest))

    any_body()


# The link to an app's process

_PIECE = array_codec.PackedItem({"text": "a"}, array_codec.Array("float32", (2, 1), bytes(8)))
_NODE = graph.GraphNode("spell", "spell", {"text": "ab"}, graph.call_digest("spell", {"text": "ab"}))
FRAMES = [
    framing.encode_message(message)
    for message in (
        protocol.LoadApp(app_record.AppSource("upload", "poet", sha256="ab"), "async def serve(request): ...", 1 << 30),
        protocol.Serve(1, "gw-1", b'{"a": 1}', protocol.JSON, 7, 12.5),
        protocol.Items(1, 0, 2, "text", (_PIECE,), True),
        protocol.Submit(1, 0, protocol.Segment((_NODE,), ((0, "letters"),), (3,), ("apart",), (1, 0))),
        protocol.ServeAnswer(1, b"[]", {"text": (0, 1, "text")}),
        protocol.Give(1, "text", (_PIECE,), True),
        protocol.AnswerPart(1, b"1"),
        protocol.AppReady(protocol.Description("poet", "doc", (), "chat", "poet", {"a": {}}, {}, True, ("limits",))),
    )
]


def read_link(data: bytes) -> None:
    """Bytes of both directions, as both ends receive them."""
    for body in framing.Frames().feed(data):
        decode_typed(framing.to_worker, body)
        message = decode_typed(framing.from_worker, body)
        if isinstance(message, protocol.ServeAnswer):
            for kind in ROUTES:
                decode_typed(partial(output_buffer.output_names, kind), message.body)
            decode_typed(output_buffer.check_json_line, message.body)
        if isinstance(message, protocol.Give):
            decode_typed(lambda _, items=message.items: array_codec.unpack_items(items), body)


@corpus.try_saved("app_frames")
@limit_examples(400)
@given(data=st.lists(mutate_bytes(FRAMES), max_size=3).map(b"".join) | st.binary(max_size=64))
def test_a_frame_of_an_app_is_read_or_refused(data: bytes):
    with corpus.save_failing("app_frames", data):
        decode_typed(read_link, data)


@limit_examples(200)
@given(
    dtype=st.sampled_from(["float32", "bfloat16", "bool", "int64", "object", "", "U9999999", "V8"]),
    shape=st.lists(st.sampled_from([0, 1, 2, -1, 2**31, 2**62, 2**63 - 1]), max_size=9),
    data=st.binary(max_size=32),
)
def test_an_array_of_an_app_is_taken_or_refused(dtype: str, shape: list[int], data: bytes):
    array = array_codec.Array(dtype, tuple(shape), data)

    decode_typed(lambda _: array_codec.unpack_items([array_codec.PackedItem({}, array)]), data)


# Outputs on the disk, and requests to the fork server

_ROWS = capture.RecordedChunk({"tokens": 2}, np.ones((2, 3), "float32"))
OUTPUTS = [
    capture.pack_chunks([]),
    capture.pack_chunks([_ROWS, capture.RecordedChunk({}, last=True)]),
    capture.pack_chunks([capture.RecordedChunk({"ids": [1]}, empty=True)]),
]


@corpus.try_saved("outputs")
@limit_examples(400)
@given(data=mutate_bytes(OUTPUTS) | st.binary(max_size=64))
def test_a_recorded_output_is_read_or_refused(data: bytes):
    with corpus.save_failing("outputs", data):
        decode_typed(capture.unpack_chunks, data)


@limit_examples(300)
@given(
    entries=st.lists(
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["float32", "bfloat16", "bool", "object", "", "float8_e4m3fn", "int64"]),
                "shape": st.lists(st.sampled_from([0, 1, 2, -1, 2**31, 2**62, 2**63 - 1, 2**64]), max_size=40),
            }
        ),
        max_size=3,
    ),
    rest=st.binary(max_size=64),
)
def test_a_recorded_output_of_any_shape_is_read_or_refused(entries: list[Any], rest: bytes):
    head = json.dumps(entries).encode()

    decode_typed(capture.unpack_chunks, len(head).to_bytes(8, "big") + head + rest)


@corpus.try_saved("births")
@limit_examples(300)
@given(
    data=mutate_bytes(
        [fork_client.pack_request(["a.b", "-c"], {b"A": b"1"}, "/tmp"), fork_client.pack_request(["a"], {}, "")]
    )
)
def test_a_request_to_the_fork_server_is_read_or_refused(data: bytes):
    with corpus.save_failing("births", data):
        decode_typed(fork_client.unpack_request, data, (ValueError,))


# What a client gives back

EVENT_IDS = [b"abc_-9.12.0123abcd.0.00000000.0", b"abc.12.0123abcd.99.0123abcd.2.5.0123abcd.7.0123abcd"]


@limit_examples(300)
@given(data=mutate_bytes(EVENT_IDS) | st.binary(max_size=64))
def test_the_id_of_an_event_is_read_or_refused(data: bytes):
    text = data.decode("latin-1")  # as headers are

    event_id = decode_typed(lambda _: event_ids.parse_event_id(text), data, (BadRequest,))

    if event_id is not None:
        token, position = event_id
        assert text.startswith(f"{token}.{position.text}") or not position.text
        assert all(0 <= number < 10**15 for number in position if isinstance(number, int))
