"""Results as the app reads them: in order, once, and the same after a change of executor."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.bus.messages import Chunk
from omnibus.errors import SequenceGap, StageFailed
from omnibus.tensors.handle import Handle
from omnibus_gateway.dispatch.streams import ResultStream, merge_streams


class Memory:
    """Arrays by handle, each returned once."""

    def __init__(self) -> None:
        self.arrays: dict[int, np.ndarray] = {}

    def fetch(self, handle: Handle) -> np.ndarray:
        return self.arrays.pop(handle.id)

    def put(self, *values: float) -> Handle:
        array = np.array(values, np.float32)
        id = len(self.arrays) + 1000
        self.arrays[id] = array
        return Handle(id, "n", "a", 0, array.nbytes, "float32", array.shape, 1)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def stream(memory: Memory) -> ResultStream:
    return ResultStream(1, "out", memory.fetch)


def text(seq: int, said: str, last: bool = False) -> Chunk:
    return Chunk("i", 1, "out", seq, data={"text": said}, last=last)


def end(seq: int, data: dict[str, Any] | None = None) -> Chunk:
    return Chunk("i", 1, "out", seq, data=data or {}, last=True, empty=data is None)


def said(stream: ResultStream) -> list[str]:
    return [item.data["text"] for item in stream.take_ready()]


def heard(stream: ResultStream) -> list[float]:
    arrays = [item.array for item in stream.take_ready() if item.array is not None]
    return [float(value) for array in arrays for value in array]


def test_chunks_are_taken_in_order_until_the_end(stream: ResultStream):
    stream.feed_chunk(text(0, "a"))
    stream.feed_chunk(text(1, "b"))
    assert said(stream) == ["a", "b"]
    assert not stream.is_exhausted

    stream.feed_chunk(text(2, "c", last=True))

    assert stream.ended
    assert not stream.is_exhausted
    assert said(stream) == ["c"]
    assert stream.is_exhausted


def test_an_empty_end_is_no_item(stream: ResultStream):
    stream.feed_chunk(end(0))

    assert stream.take_ready() == []
    assert stream.is_exhausted


def test_an_end_may_say_something(stream: ResultStream):
    stream.feed_chunk(end(0, {"text": "usage"}))

    assert said(stream) == ["usage"]


def test_nothing_follows_the_end(stream: ResultStream):
    stream.feed_chunk(text(0, "a", last=True))
    stream.feed_chunk(text(0, "a", last=True))
    stream.feed_chunk(text(7, "z"))

    assert said(stream) == ["a"]


@pytest.mark.parametrize("seq", [2, 0])
def test_a_lost_or_repeated_chunk_is_a_gap(stream: ResultStream, seq: int):
    stream.feed_chunk(text(0, "a"))

    with pytest.raises(SequenceGap, match=f"out of node 1: chunk {seq}, expected 1"):
        stream.feed_chunk(text(seq, "x"))

    assert said(stream) == ["a"]


def test_after_a_restart_nothing_is_said_twice(stream: ResultStream):
    for seq, word in enumerate("abc"):
        stream.feed_chunk(text(seq, word))
    assert said(stream) == ["a", "b", "c"]

    stream.restart()
    for seq, word in enumerate("abcde"):
        stream.feed_chunk(text(seq, word, last=word == "e"))

    assert said(stream) == ["d", "e"]
    assert stream.is_exhausted


def test_what_was_not_yet_read_before_a_restart_is_read_once(stream: ResultStream):
    stream.feed_chunk(text(0, "a"))
    stream.feed_chunk(text(1, "b"))
    stream.restart()
    for seq, word in enumerate("abc"):
        stream.feed_chunk(text(seq, word))

    assert said(stream) == ["a", "b", "c"]


def test_another_continuation_is_detected(stream: ResultStream):
    stream.feed_chunk(text(0, "a"))
    stream.feed_chunk(text(1, "b"))
    said(stream)

    stream.restart()
    stream.feed_chunk(text(0, "a"))
    stream.feed_chunk(text(1, "x"))
    stream.feed_chunk(text(2, "y"))

    with pytest.raises(StageFailed, match="continued differently"):
        stream.take_ready()
    assert stream.ended
    assert not stream.is_exhausted


def test_a_second_attempt_that_ends_earlier_is_detected(stream: ResultStream):
    stream.feed_chunk(text(0, "a"))
    stream.feed_chunk(text(1, "b"))
    said(stream)

    stream.restart()
    stream.feed_chunk(text(0, "a"))
    stream.feed_chunk(end(1))

    with pytest.raises(StageFailed):
        stream.take_ready()


def test_several_restarts_are_one_answer(stream: ResultStream):
    found = []
    for attempt in range(1, 5):
        for seq, word in enumerate("abcdefgh"[: 2 * attempt]):
            stream.feed_chunk(text(seq, word))
        found += said(stream)
        stream.restart()

    assert "".join(found) == "abcdefgh"


CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def tokens(seq: int, said: str, *ids: int, last: bool = False) -> Chunk:
    return Chunk("i", 1, "out", seq, data={"text": said, "ids": list(ids)}, last=last)


def test_tokens_may_share_chunks_in_another_way_after_a_restart(stream: ResultStream):
    stream.feed_chunk(tokens(0, "ab", 1, 2))
    stream.feed_chunk(tokens(1, "c", 3))
    stream.restart()
    stream.feed_chunk(tokens(0, "a", 1))
    stream.feed_chunk(tokens(1, "bcd", 2, 3, 4))
    stream.feed_chunk(tokens(2, "e", 5))
    stream.restart()
    stream.feed_chunk(tokens(0, "abcdef", 1, 2, 3, 4, 5, 6))

    found = [item.data for item in stream.take_ready()]

    assert "".join(data["text"] for data in found) == "abcdef"
    assert [id for data in found for id in data["ids"]] == [1, 2, 3, 4, 5, 6]


@settings(max_examples=60, deadline=None)
@given(st.lists(CUTS, min_size=1, max_size=4))
def test_any_attempts_in_any_chunks_tell_every_token_once(attempts: list[list[int]]):
    stream = ResultStream(0, "out", Memory().fetch)
    whole = max(sum(cuts) for cuts in attempts)

    for cuts in [*attempts, [whole]]:
        at = 0
        for seq, length in enumerate(cuts):
            ids = list(range(at, at + length))
            stream.feed_chunk(tokens(seq, "".join(chr(97 + id) for id in ids), *ids))
            at += length
        stream.restart()

    found = [item.data for item in stream.take_ready()]
    assert [id for data in found for id in data.get("ids", [])] == list(range(whole))
    assert "".join(data.get("text", "") for data in found) == "".join(chr(97 + id) for id in range(whole))


def test_fewer_samples_after_a_restart_are_detected(stream: ResultStream, memory: Memory):
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1, 2)))
    heard(stream)

    stream.restart()
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1)))
    stream.feed_chunk(end(1))

    with pytest.raises(StageFailed, match="ended the answer earlier"):
        stream.take_ready()


def test_samples_are_skipped_exactly_whatever_the_chunks(stream: ResultStream, memory: Memory):
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1, 2)))
    stream.feed_chunk(Chunk("i", 1, "out", 1, handle=memory.put(3, 4)))
    assert heard(stream) == [0, 1, 2, 3, 4]

    stream.restart()
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1)))
    stream.feed_chunk(Chunk("i", 1, "out", 1, handle=memory.put(2, 3, 4, 5)))
    stream.feed_chunk(Chunk("i", 1, "out", 2, handle=memory.put(6), last=True))

    assert heard(stream) == [5, 6]
    assert stream.is_exhausted
    assert memory.arrays == {}


@settings(max_examples=60, deadline=None)
@given(st.lists(CUTS, min_size=1, max_size=4), st.booleans())
def test_any_attempts_in_any_chunks_give_every_sample_once(attempts: list[list[int]], read: bool):
    memory = Memory()
    stream = ResultStream(0, "audio", memory.fetch)
    whole = max(sum(cuts) for cuts in attempts)
    found: list[float] = []

    for cuts in [*attempts, [whole]]:
        at = 0
        for seq, length in enumerate(cuts):
            stream.feed_chunk(Chunk("i", 0, "audio", seq, handle=memory.put(*range(at, at + length))))
            at += length
        found += heard(stream) if read else []
        stream.restart()
    found += heard(stream)

    assert found == list(range(whole))


def test_a_failure_comes_after_what_came_before_it(stream: ResultStream):
    stream.feed_chunk(text(0, "a"))
    stream.fail(StageFailed("broken"))
    stream.feed_chunk(text(1, "b"))

    assert said(stream) == ["a"]
    with pytest.raises(StageFailed, match="broken"):
        stream.take_ready()


# Several streams together


async def collect(streams: dict[str, ResultStream]) -> list[list[tuple[str, str]]]:
    return [[(name, item.data["text"]) for name, item in batch] async for batch in merge_streams(streams)]


def pair() -> dict[str, ResultStream]:
    return {"text": ResultStream(0, "out", Memory().fetch), "audio": ResultStream(1, "out", Memory().fetch)}


async def test_what_is_ready_together_comes_together():
    streams = pair()
    streams["text"].feed_chunk(text(0, "a"))
    streams["text"].feed_chunk(text(1, "b", last=True))
    streams["audio"].feed_chunk(text(0, "x", last=True))

    assert await asyncio.wait_for(collect(streams), 5) == [[("text", "a"), ("text", "b"), ("audio", "x")]]


async def test_streams_are_merged_as_they_come_until_all_have_ended():
    streams = pair()
    reading = asyncio.ensure_future(collect(streams))
    for name, chunk in (("text", text(0, "a")), ("audio", text(0, "x")), ("text", end(1)), ("audio", end(1))):
        await asyncio.sleep(0)
        streams[name].feed_chunk(chunk)
    found = await asyncio.wait_for(reading, 5)

    assert [each for batch in found for each in batch] == [("text", "a"), ("audio", "x")]


async def test_a_stream_that_had_ended_before_is_read_too():
    streams = pair()
    for stream in streams.values():
        stream.feed_chunk(end(0))

    assert await asyncio.wait_for(collect(streams), 5) == []


async def test_a_failure_of_one_stream_ends_the_answer():
    streams = pair()
    reading = asyncio.ensure_future(collect(streams))
    await asyncio.sleep(0)

    streams["audio"].fail(StageFailed("vocoder broke"))

    with pytest.raises(StageFailed, match="vocoder broke"):
        await asyncio.wait_for(reading, 5)


async def test_no_streams_are_no_answer():
    assert await asyncio.wait_for(collect({}), 5) == []
