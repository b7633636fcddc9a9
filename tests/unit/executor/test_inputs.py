"""Channels: chunks in order, gaps as errors, one end."""

import asyncio

import pytest

from omnibus.errors import DeadlineExceeded, SequenceGap
from omnibus.executor.edges import Channel, ChannelChunk
from omnibus.executor.runner import Item


def make_piece(seq: int, last: bool = False) -> ChannelChunk:
    return ChannelChunk(seq, Item({"n": seq}), last=last)


@pytest.fixture
def channel() -> Channel:
    return Channel("think-m-thinker", (1, "rows"))


async def read_channel(channel: Channel) -> list[int]:
    numbers = []
    while (each := await channel.next_chunk()) is not None:
        numbers.append(each.seq)
    return numbers


async def test_chunks_come_in_their_order_until_the_last(channel: Channel):
    for seq in range(4):
        channel.add_chunk(make_piece(seq, last=seq == 3))

    assert await read_channel(channel) == [0, 1, 2, 3]
    assert await channel.next_chunk() is None


async def test_a_reader_waits_for_what_has_not_come(channel: Channel):
    reading = asyncio.ensure_future(read_channel(channel))
    for seq in range(3):
        await asyncio.sleep(0)
        channel.add_chunk(make_piece(seq, last=seq == 2))

    assert await asyncio.wait_for(reading, 5) == [0, 1, 2]


@pytest.mark.parametrize("wrong", [1, 3, 0])
async def test_a_gap_fails_the_reader_and_names_the_stream(channel: Channel, wrong: int):
    for seq in range(2 if wrong != 1 else 0):
        channel.add_chunk(make_piece(seq))

    channel.add_chunk(make_piece(wrong))

    with pytest.raises(SequenceGap, match=rf"think-m-thinker: rows of node 1: chunk {wrong} arrived instead of"):
        await read_channel(channel)


async def test_what_came_before_a_gap_is_read_first(channel: Channel):
    channel.add_chunk(make_piece(0))
    channel.add_chunk(make_piece(2))

    first = await channel.next_chunk()

    assert first is not None
    assert first.seq == 0
    with pytest.raises(SequenceGap):
        await channel.next_chunk()


async def test_nothing_follows_a_gap(channel: Channel):
    channel.add_chunk(make_piece(1))
    channel.add_chunk(make_piece(0, last=True))

    with pytest.raises(SequenceGap):
        await channel.next_chunk()


async def test_a_repeated_end_is_harmless(channel: Channel):
    channel.add_chunk(make_piece(0, last=True))
    channel.add_chunk(make_piece(1, last=True))
    channel.add_chunk(make_piece(0))

    assert await read_channel(channel) == [0]


async def test_a_failure_wakes_the_reader(channel: Channel):
    reading = asyncio.ensure_future(read_channel(channel))
    await asyncio.sleep(0)

    channel.fail(DeadlineExceeded("too late"))

    with pytest.raises(DeadlineExceeded, match="too late"):
        await asyncio.wait_for(reading, 5)


async def test_a_reader_that_gives_up_can_come_back(channel: Channel):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(channel.next_chunk(), 0.01)

    channel.add_chunk(make_piece(0, last=True))

    assert await asyncio.wait_for(read_channel(channel), 5) == [0]
