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


class StreamMemory:
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
def memory() -> StreamMemory:
    return StreamMemory()


@pytest.fixture
def stream(memory: StreamMemory) -> ResultStream:
    return ResultStream(1, "out", memory.fetch)


def make_text_chunk(seq: int, content: str, last: bool = False) -> Chunk:
    return Chunk("i", 1, "out", seq, data={"text": content}, last=last)


def make_end_chunk(seq: int, data: dict[str, Any] | None = None) -> Chunk:
    return Chunk("i", 1, "out", seq, data=data or {}, last=True, empty=data is None)


def take_texts(stream: ResultStream) -> list[str]:
    return [item.data["text"] for item in stream.take_ready()]


def take_samples(stream: ResultStream) -> list[float]:
    arrays = [item.array for item in stream.take_ready() if item.array is not None]
    return [float(value) for array in arrays for value in array]


def test_chunks_are_taken_in_order_until_the_end(stream: ResultStream):
    stream.feed_chunk(make_text_chunk(0, "a"))
    stream.feed_chunk(make_text_chunk(1, "b"))
    assert take_texts(stream) == ["a", "b"]
    assert not stream.is_exhausted

    stream.feed_chunk(make_text_chunk(2, "c", last=True))

    assert stream.ended
    assert not stream.is_exhausted
    assert take_texts(stream) == ["c"]
    assert stream.is_exhausted


def test_an_empty_end_is_no_item(stream: ResultStream):
    stream.feed_chunk(make_end_chunk(0))

    assert stream.take_ready() == []
    assert stream.is_exhausted


def test_an_end_may_say_something(stream: ResultStream):
    stream.feed_chunk(make_end_chunk(0, {"text": "usage"}))

    assert take_texts(stream) == ["usage"]


def test_nothing_follows_the_end(stream: ResultStream):
    stream.feed_chunk(make_text_chunk(0, "a", last=True))
    stream.feed_chunk(make_text_chunk(0, "a", last=True))
    stream.feed_chunk(make_text_chunk(7, "z"))

    assert take_texts(stream) == ["a"]


@pytest.mark.parametrize("seq", [2, 0])
def test_a_lost_or_repeated_chunk_is_a_gap(stream: ResultStream, seq: int):
    stream.feed_chunk(make_text_chunk(0, "a"))

    with pytest.raises(SequenceGap, match=f"out of node 1: chunk {seq}, expected 1"):
        stream.feed_chunk(make_text_chunk(seq, "x"))

    assert take_texts(stream) == ["a"]


def test_after_a_restart_nothing_is_said_twice(stream: ResultStream):
    for seq, word in enumerate("abc"):
        stream.feed_chunk(make_text_chunk(seq, word))
    assert take_texts(stream) == ["a", "b", "c"]

    stream.restart()
    for seq, word in enumerate("abcde"):
        stream.feed_chunk(make_text_chunk(seq, word, last=word == "e"))

    assert take_texts(stream) == ["d", "e"]
    assert stream.is_exhausted


def test_what_was_not_yet_read_before_a_restart_is_read_once(stream: ResultStream):
    stream.feed_chunk(make_text_chunk(0, "a"))
    stream.feed_chunk(make_text_chunk(1, "b"))
    stream.restart()
    for seq, word in enumerate("abc"):
        stream.feed_chunk(make_text_chunk(seq, word))

    assert take_texts(stream) == ["a", "b", "c"]


def test_another_continuation_is_detected(stream: ResultStream):
    stream.feed_chunk(make_text_chunk(0, "a"))
    stream.feed_chunk(make_text_chunk(1, "b"))
    take_texts(stream)

    stream.restart()
    stream.feed_chunk(make_text_chunk(0, "a"))
    stream.feed_chunk(make_text_chunk(1, "x"))
    stream.feed_chunk(make_text_chunk(2, "y"))

    with pytest.raises(StageFailed, match="continued differently"):
        stream.take_ready()
    assert stream.ended
    assert not stream.is_exhausted


def test_a_second_attempt_that_ends_earlier_is_detected(stream: ResultStream):
    stream.feed_chunk(make_text_chunk(0, "a"))
    stream.feed_chunk(make_text_chunk(1, "b"))
    take_texts(stream)

    stream.restart()
    stream.feed_chunk(make_text_chunk(0, "a"))
    stream.feed_chunk(make_end_chunk(1))

    with pytest.raises(StageFailed):
        stream.take_ready()


def test_several_restarts_are_one_answer(stream: ResultStream):
    texts = []
    for attempt in range(1, 5):
        for seq, word in enumerate("abcdefgh"[: 2 * attempt]):
            stream.feed_chunk(make_text_chunk(seq, word))
        texts += take_texts(stream)
        stream.restart()

    assert "".join(texts) == "abcdefgh"


CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def make_token_chunk(seq: int, content: str, *ids: int, last: bool = False) -> Chunk:
    return Chunk("i", 1, "out", seq, data={"text": content, "ids": list(ids)}, last=last)


def test_tokens_may_share_chunks_in_another_way_after_a_restart(stream: ResultStream):
    stream.feed_chunk(make_token_chunk(0, "ab", 1, 2))
    stream.feed_chunk(make_token_chunk(1, "c", 3))
    stream.restart()
    stream.feed_chunk(make_token_chunk(0, "a", 1))
    stream.feed_chunk(make_token_chunk(1, "bcd", 2, 3, 4))
    stream.feed_chunk(make_token_chunk(2, "e", 5))
    stream.restart()
    stream.feed_chunk(make_token_chunk(0, "abcdef", 1, 2, 3, 4, 5, 6))

    payloads = [item.data for item in stream.take_ready()]

    assert "".join(data["text"] for data in payloads) == "abcdef"
    assert [id for data in payloads for id in data["ids"]] == [1, 2, 3, 4, 5, 6]


@settings(max_examples=60, deadline=None)
@given(st.lists(CUTS, min_size=1, max_size=4))
def test_any_attempts_in_any_chunks_tell_every_token_once(attempts: list[list[int]]):
    stream = ResultStream(0, "out", StreamMemory().fetch)
    whole = max(sum(cuts) for cuts in attempts)

    for cuts in [*attempts, [whole]]:
        at = 0
        for seq, length in enumerate(cuts):
            ids = list(range(at, at + length))
            stream.feed_chunk(make_token_chunk(seq, "".join(chr(97 + id) for id in ids), *ids))
            at += length
        stream.restart()

    payloads = [item.data for item in stream.take_ready()]
    assert [id for data in payloads for id in data.get("ids", [])] == list(range(whole))
    assert "".join(data.get("text", "") for data in payloads) == "".join(chr(97 + id) for id in range(whole))


def test_fewer_samples_after_a_restart_are_detected(stream: ResultStream, memory: StreamMemory):
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1, 2)))
    take_samples(stream)

    stream.restart()
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1)))
    stream.feed_chunk(make_end_chunk(1))

    with pytest.raises(StageFailed, match="ended the answer earlier"):
        stream.take_ready()


def test_samples_are_skipped_exactly_whatever_the_chunks(stream: ResultStream, memory: StreamMemory):
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1, 2)))
    stream.feed_chunk(Chunk("i", 1, "out", 1, handle=memory.put(3, 4)))
    assert take_samples(stream) == [0, 1, 2, 3, 4]

    stream.restart()
    stream.feed_chunk(Chunk("i", 1, "out", 0, handle=memory.put(0, 1)))
    stream.feed_chunk(Chunk("i", 1, "out", 1, handle=memory.put(2, 3, 4, 5)))
    stream.feed_chunk(Chunk("i", 1, "out", 2, handle=memory.put(6), last=True))

    assert take_samples(stream) == [5, 6]
    assert stream.is_exhausted
    assert memory.arrays == {}


@settings(max_examples=60, deadline=None)
@given(st.lists(CUTS, min_size=1, max_size=4), st.booleans())
def test_any_attempts_in_any_chunks_give_every_sample_once(attempts: list[list[int]], read: bool):
    memory = StreamMemory()
    stream = ResultStream(0, "audio", memory.fetch)
    whole = max(sum(cuts) for cuts in attempts)
    samples: list[float] = []

    for cuts in [*attempts, [whole]]:
        at = 0
        for seq, length in enumerate(cuts):
            stream.feed_chunk(Chunk("i", 0, "audio", seq, handle=memory.put(*range(at, at + length))))
            at += length
        samples += take_samples(stream) if read else []
        stream.restart()
    samples += take_samples(stream)

    assert samples == list(range(whole))


def test_a_failure_comes_after_what_came_before_it(stream: ResultStream):
    stream.feed_chunk(make_text_chunk(0, "a"))
    stream.fail(StageFailed("broken"))
    stream.feed_chunk(make_text_chunk(1, "b"))

    assert take_texts(stream) == ["a"]
    with pytest.raises(StageFailed, match="broken"):
        stream.take_ready()


# Several streams together


async def collect_batches(streams: dict[str, ResultStream]) -> list[list[tuple[str, str]]]:
    return [[(name, item.data["text"]) for name, item in batch] async for batch in merge_streams(streams)]


def make_stream_pair() -> dict[str, ResultStream]:
    return {"text": ResultStream(0, "out", StreamMemory().fetch), "audio": ResultStream(1, "out", StreamMemory().fetch)}


async def test_what_is_ready_together_comes_together():
    streams = make_stream_pair()
    streams["text"].feed_chunk(make_text_chunk(0, "a"))
    streams["text"].feed_chunk(make_text_chunk(1, "b", last=True))
    streams["audio"].feed_chunk(make_text_chunk(0, "x", last=True))

    assert await asyncio.wait_for(collect_batches(streams), 5) == [[("text", "a"), ("text", "b"), ("audio", "x")]]


async def test_streams_are_merged_as_they_come_until_all_have_ended():
    streams = make_stream_pair()
    reading = asyncio.ensure_future(collect_batches(streams))
    for name, chunk in (
        ("text", make_text_chunk(0, "a")),
        ("audio", make_text_chunk(0, "x")),
        ("text", make_end_chunk(1)),
        ("audio", make_end_chunk(1)),
    ):
        await asyncio.sleep(0)
        streams[name].feed_chunk(chunk)
    batches = await asyncio.wait_for(reading, 5)

    assert [each for batch in batches for each in batch] == [("text", "a"), ("audio", "x")]


async def test_a_stream_that_had_ended_before_is_read_too():
    streams = make_stream_pair()
    for stream in streams.values():
        stream.feed_chunk(make_end_chunk(0))

    assert await asyncio.wait_for(collect_batches(streams), 5) == []


async def test_a_failure_of_one_stream_ends_the_answer():
    streams = make_stream_pair()
    reading = asyncio.ensure_future(collect_batches(streams))
    await asyncio.sleep(0)

    streams["audio"].fail(StageFailed("vocoder broke"))

    with pytest.raises(StageFailed, match="vocoder broke"):
        await asyncio.wait_for(reading, 5)


async def test_no_streams_are_no_answer():
    assert await asyncio.wait_for(collect_batches({}), 5) == []
