"""Verdicts on recorded calls of apps: equal, different, or inconclusive."""

import hashlib
from typing import Any

import msgspec
import pytest

from omnibus.app import protocol
from omnibus.graph import Invocation
from omnibus.recording.records import AppCall, Record, RecordedAnswer
from omnibus.structured.calls import call_head
from omnibus_gateway.apps.canary import ReplayedCall, has_comparison, is_as_recorded
from omnibus_gateway.dispatch.retention import RecordedChunk
from omnibus_gateway.rerun.app_call import RecordedCall, RecordedSegment
from omnibus_gateway.rerun.replayer import digest_chunks
from tests.unit.cli.documents import make_end, make_invocation

KEY = (0, 2, "text")
SAID = [RecordedChunk({"text": "hi"})]
CLOSED = [RecordedChunk({"finish_reason": "stop", "usage": {}}, last=True)]
CALLS = call_head("add") + "{}"
CALLED = [RecordedChunk({"calls": CALLS}), *CLOSED]


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_recorded(kind: str, outputs: dict[str, str], answer: str = "", **chat: Any) -> RecordedCall:
    begin: Invocation = make_invocation()
    over = msgspec.structs.replace(make_end(answer={}), outputs=outputs)
    call = AppCall("poems", kind, 1, 7, answer_sha256=answer)
    return RecordedCall(call, RecordedAnswer(**chat), (RecordedSegment(0, Record(begin, over)),))


def make_replayed(**fields: Any) -> ReplayedCall:
    return ReplayedCall(**{"components": {KEY: "thinker"}, **fields})


@pytest.mark.parametrize(
    ("replayed_call", "same"),
    [
        (make_replayed(parts=["hi"], digest="a", outputs={KEY: SAID}), True),
        (make_replayed(parts=["hi"], digest="b", outputs={KEY: SAID}), False),
        (make_replayed(parts=["hi"], digest="a", outputs={KEY: CLOSED}), False),
        (make_replayed(parts=["hi"], digest="a"), False),  # its component produced nothing in full
        (
            make_replayed(parts=["hi"], digest="a", components={KEY: "other"}),
            True,
        ),  # another graph with the same answer
        (make_replayed(digest="a", components={}), False),  # an empty answer, and no output of both
    ],
)
def test_a_call_is_as_recorded_where_something_was_compared(replayed_call: ReplayedCall, same: bool):
    before = make_recorded(protocol.JSON, {"2.text": digest_chunks(SAID)}, "a")

    assert is_as_recorded(before, replayed_call) is same


@pytest.mark.parametrize(
    ("answer", "streams", "same"),
    [
        ({"text_sha256": hash_text("hi")}, {"text": [*SAID, *CLOSED]}, True),
        ({"text_sha256": hash_text("hi")}, {"text": CLOSED}, False),
        ({"text_sha256": hash_text("")}, {"text": CLOSED}, False),
        ({"text_sha256": hash_text("")}, {}, False),
        ({"text_sha256": hash_text(""), "calls_sha256": hash_text(CALLS)}, {"text": CALLED}, True),
        ({"text_sha256": hash_text(""), "calls_sha256": hash_text(CALLS + " ")}, {"text": CALLED}, False),
        ({"text_sha256": hash_text("")}, {"text": CALLED}, False),  # a record of an earlier build
        ({"text_sha256": hash_text("hi"), "audio_sha256": hash_text("")}, {"text": SAID}, False),
    ],
)
def test_a_chat_is_as_recorded_with_its_calls_and_its_audio(
    answer: dict[str, str], streams: dict[str, list[RecordedChunk]], same: bool
):
    before = make_recorded(protocol.CHAT, {}, **answer)

    assert is_as_recorded(before, make_replayed(streams=streams, components={})) is same


@pytest.mark.parametrize(
    ("one", "other", "comparable"),
    [
        (make_replayed(), make_replayed(), False),
        (make_replayed(streams={"text": CLOSED}), make_replayed(streams={"text": CLOSED}), False),
        (make_replayed(outputs={KEY: SAID}), make_replayed(), False),
        (make_replayed(outputs={KEY: SAID}), make_replayed(outputs={KEY: SAID}), True),
        (make_replayed(parts=[""]), make_replayed(), True),
        (make_replayed(streams={"text": SAID}), make_replayed(streams={"text": CLOSED}), True),
    ],
)
def test_two_empty_answers_are_no_comparison(one: ReplayedCall, other: ReplayedCall, comparable: bool):
    assert has_comparison(one, other) is comparable
