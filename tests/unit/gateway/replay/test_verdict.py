"""Verdicts on replays: equal, different, or not compared."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.encoding.audio import to_pcm16
from omnibus.errors import StageFailed, StageUnavailable
from omnibus.graph import GraphNode, Invocation
from omnibus.recording.records import EndRecord, RecordedAnswer
from omnibus.structured.calls import call_head
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.streams import Fingerprint, ResultStream
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.request.accumulator import AnswerAccumulator
from omnibus_gateway.rerun.comparison import ReplayComparison, compare_failures, summarize
from tests.unit.cli.documents import make_end, make_invocation

EMPTY_TEXT = hashlib.sha256(b"").hexdigest()
SAMPLES = np.linspace(-0.5, 0.5, 240, dtype=np.float32)
CALLS = call_head("add") + '{"x": 1}'


@pytest.fixture
async def media_store(tmp_path: Path) -> AsyncIterator[MediaStore]:
    store = MediaStore(str(tmp_path / "kept"), 1 << 20)
    yield store
    store.close()


def graph_of(*outputs: str, app: str = "chat") -> Invocation:
    """Return a graph of one node for each of the ``outputs``; a vocoder makes the audio."""
    nodes = tuple(GraphNode(name, "vocoder" if name == "audio" else name, {}, "0") for name in outputs)
    route = tuple("x" for _ in nodes)
    return msgspec.structs.replace(
        make_invocation(), app=app, nodes=nodes, outputs=tuple(enumerate(outputs)), route=route, options=route
    )


def make_replay(invocation: Invocation, *items: list[Item], whole: bool = True) -> InflightInvocation:
    """Return a run of ``invocation`` with all outputs received. Without ``whole`` the last output has not ended."""
    running = InflightInvocation(invocation, (0.0,), lambda _: None, lambda _: None, None)  # type: ignore[arg-type, return-value]
    for number, (stream, came) in enumerate(zip(running.streams.values(), items, strict=True), 1):
        stream.fingerprint = Fingerprint()
        for item in came:
            stream.add_item(item)
        if whole or number < len(items):
            ResultStream.end(stream)
    return running


def accumulate_items(*items: list[Item]) -> AnswerAccumulator:
    got = AnswerAccumulator("m", 0.0)
    for item in (each for came in items for each in came):
        got.add_item("text" if item.array is None else "audio", item.data, item.array)
        if item.array is not None:
            got.add_pcm(to_pcm16(item.array))
    return got


async def compare_replay(
    keep: MediaStore, over: EndRecord | None, *items: list[Item], app: str = "chat", whole: bool = True
) -> dict[str, Any]:
    names = ["audio" if came and came[0].array is not None else "text" for came in items]
    invocation = graph_of(*names, app=app)
    running = make_replay(invocation, *items, whole=whole)
    return summarize([await ReplayComparison(invocation, over, keep).compare(running, accumulate_items(*items))])


def make_text_items(text: str = "", **more: Any) -> list[Item]:
    return [Item({"text": text, **more} if text else more), Item({"finish_reason": "stop", "usage": {}})]


def make_audio_items(samples: np.ndarray = SAMPLES, rate: int = 24000) -> list[Item]:
    return [Item({"rate": rate}, samples)]


def make_end_record(*items: list[Item], **changes: Any) -> EndRecord:
    answer = msgspec.structs.replace(accumulate_items(*items).to_answer(), **changes)
    return make_end(answer=msgspec.to_builtins(answer))


def without_calls(over: EndRecord) -> EndRecord:
    """Return the record as an earlier build wrote it."""
    answer = msgspec.structs.replace(over.answer, calls="", calls_sha256="", reasoning="", reasoning_sha256="")
    return msgspec.structs.replace(over, answer=answer)


@pytest.mark.parametrize(
    ("before", "now", "identical", "why"),
    [
        (make_text_items("hi"), make_text_items("hi"), True, ""),
        (make_text_items("hi"), make_text_items("ho"), False, "text.text differs: text from character 1 on"),
        (make_text_items("hi"), make_text_items("hi there"), False, "text.text differs: text from character 2 on"),
        (make_text_items("hi"), make_text_items(), False, "text.text differs: text from character 0 on"),
        (make_text_items(), make_text_items("hi"), False, "text.text differs: text from character 0 on"),
        (make_text_items(), make_text_items(), None, "there was nothing to compare: the outputs are empty in the record and in the replay"),
        (make_text_items(calls=CALLS), make_text_items(calls=CALLS), True, ""),
        (make_text_items(calls=CALLS), make_text_items(), False, "text.text differs: 0 tool calls came, and 1 are recorded"),
        (
            make_text_items(calls=CALLS), make_text_items(calls=CALLS.replace("1", "2")), False,
            "text.text differs: arguments of tool call 0 (add) from character 6 on",
        ),
        (
            make_text_items(calls=CALLS), make_text_items(calls=CALLS.replace("add", "sub")), False,
            "text.text differs: tool call 0 is sub, and was add",
        ),
        (make_text_items("hi", reasoning="so"), make_text_items("hi", reasoning="so"), True, ""),
        (
            make_text_items("hi", reasoning="so"), make_text_items("hi", reasoning="no"), False,
            "text.text differs: reasoning from character 0 on",
        ),
    ],
)  # fmt: skip
async def test_the_texts_of_a_chat_are_compared(
    media_store: MediaStore, before: list[Item], now: list[Item], identical: bool | None, why: str
):
    summary = await compare_replay(media_store, make_end_record(before), now)

    assert (summary["identical"], summary.get("why", "")) == (identical, why)


async def test_what_an_earlier_build_did_not_record_is_not_called_equal(media_store: MediaStore):
    call_summary = await compare_replay(
        media_store, without_calls(make_end_record(make_text_items(calls=CALLS))), make_text_items(calls=CALLS)
    )
    reason_summary = await compare_replay(
        media_store, without_calls(make_end_record(make_text_items(), finish_reason="tool_calls")), make_text_items()
    )

    assert (call_summary["identical"], reason_summary["identical"]) == (None, None)
    assert "the record has no digest" in call_summary["why"]
    assert "it called tools" in reason_summary["why"]


async def test_a_record_of_digests_alone_is_compared_and_names_no_place_in_the_text(media_store: MediaStore):
    over = make_end_record(make_text_items("hi"), text="")

    same, other = (
        await compare_replay(media_store, over, make_text_items("hi")),
        await compare_replay(media_store, over, make_text_items("ho")),
    )

    assert (same["identical"], other["identical"]) == (True, False)
    assert other["why"] == "text.text differs: text after the part that the record contains"


@pytest.mark.parametrize(
    ("over", "why"),
    [
        (None, "no finished answer"),
        (make_end(status="cancelled"), "no finished answer"),
        (make_end(answer=msgspec.to_builtins(RecordedAnswer())), "the record has no digest of it"),
    ],
)
async def test_a_record_without_an_answer_is_not_compared(media_store: MediaStore, over: EndRecord | None, why: str):
    summary = await compare_replay(media_store, over, make_text_items("hi"))

    assert summary["identical"] is None
    assert why in summary["why"]


async def test_a_stream_that_ended_early_is_not_compared(media_store: MediaStore):
    summary = await compare_replay(
        media_store, make_end_record(make_text_items("hi")), make_text_items("hi"), whole=False
    )

    assert (summary["identical"], summary["why"]) == (None, "text.text: it ended early")


@pytest.mark.parametrize(
    ("now", "kept", "identical", "why"),
    [
        (make_audio_items(), True, True, ""),
        (make_audio_items(SAMPLES + 0.5 / 32767), True, True, ""),
        (make_audio_items(SAMPLES + 9 / 32767), True, False, "vocoder.audio differs: from sample 0 on"),
        (make_audio_items(SAMPLES[:-1]), True, False, "vocoder.audio differs: it has 239 samples, and had 240"),
        (make_audio_items(rate=16000), True, False, "vocoder.audio differs: it has 16000 samples/s, and had 24000"),
        (make_audio_items(SAMPLES[:0]), True, False, "vocoder.audio differs: one side has no samples"),
        (make_audio_items(), False, True, ""),
        (
            make_audio_items(SAMPLES + 1 / 32767), False, None,
            "vocoder.audio: its bits differ, and the recorded samples are gone, so the difference is unknown",
        ),
    ],
)  # fmt: skip
async def test_the_samples_of_a_chat_are_compared(
    media_store: MediaStore, now: list[Item], kept: bool, identical: bool | None, why: str
):
    over = make_end_record(make_text_items("hi"), make_audio_items())
    if kept:
        media_store.put_nowait(over.answer.audio_sha256, to_pcm16(SAMPLES))

    summary = await compare_replay(media_store, over, make_text_items("hi"), now)

    assert (summary["identical"], summary.get("why", "")) == (identical, why)


async def test_an_output_that_is_empty_on_both_sides_counts_beside_one_that_is_not(media_store: MediaStore):
    summary = await compare_replay(
        media_store, make_end_record(make_text_items("hi"), []), make_text_items("hi"), make_audio_items(SAMPLES[:0])
    )

    assert summary["identical"] is True


def digest_of(*items: Item, cached: bool = False) -> str:
    fingerprint = Fingerprint()
    for item in items:
        fingerprint.add_item(item)
    return fingerprint.hexdigest(cached=cached)


def make_closing_item(**usage: int) -> Item:
    return Item({"finish_reason": "stop", "usage": usage})


@pytest.mark.parametrize(
    ("digest", "now", "identical"),
    [
        (digest_of(*make_text_items("hi")), make_text_items("hi"), True),
        (digest_of(*make_text_items("hi")), make_text_items("ho"), False),
        ("", make_text_items("hi"), False),
        (digest_of(*make_text_items("hi")), [], False),
        ("", [], None),
        (digest_of(*make_text_items()), make_text_items(), None),
        (digest_of(Item({"text": "hi"}), make_closing_item(n=2)), [Item({"text": "hi"}), make_closing_item(n=2, cached_tokens=1)], True),
        (  # of a build whose digests covered what a cache had
            digest_of(Item({"text": "hi"}), make_closing_item(cached_tokens=1), cached=True),
            [Item({"text": "hi"}), make_closing_item(cached_tokens=1)], True,
        ),
    ],
)  # fmt: skip
async def test_results_of_apps_are_compared_by_their_digests(
    media_store: MediaStore, digest: str, now: list[Item], identical: bool | None
):
    over = msgspec.structs.replace(make_end(answer={}), outputs={"0.text": digest})

    assert (await compare_replay(media_store, over, now, app="poems"))["identical"] is identical


async def test_an_output_without_a_recorded_digest_keeps_all_from_being_called_identical(media_store: MediaStore):
    over = msgspec.structs.replace(make_end(answer={}), outputs={"0.text": digest_of(*make_text_items("hi"))})

    summary = await compare_replay(media_store, over, make_text_items("hi"), make_text_items("hi"), app="poems")

    assert (summary["identical"], summary["why"]) == (None, "text.text: the record has no digest of it")
    assert summary["compared"] == ["text.text (2 characters of text)"]


def test_a_segment_that_failed_in_the_record_is_to_fail_in_the_same_way():
    failure, other = StageFailed("no", stage="thinker"), StageUnavailable("no", stage="thinker")
    before = failure.to_problem()

    assert compare_failures("a", None, failure) is None
    comparisons = [compare_failures("a", before, now) for now in (failure, other, None)]
    verdicts = [summarize([each]) for each in comparisons if each is not None]
    assert [each["identical"] for each in verdicts] == [True, False, False]
    assert verdicts[2]["why"] == "thinker differs: it does not fail, and failed as stage_failed"
