"""Result streams: awaiting ready items, reusing the first item, and parts repeated after a restart."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

from omnibus.bus.messages import Chunk
from omnibus.errors import StageFailed
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.streams import ItemStream, ResultStream
from tests.unit.sidecar.node import PATIENCE


def make_stream(*said: dict[str, Any], ended: bool = True) -> ResultStream:
    result_stream = ResultStream(0, "n", lambda _: np.ones(1))
    feed_stream(result_stream, *said, ended=ended)
    return result_stream


def feed_stream(result_stream: ResultStream, *said: dict[str, Any], ended: bool = True) -> None:
    for seq, data in enumerate(said):
        result_stream.feed_chunk(Chunk("i", 0, "n", seq, data=data))
    if ended:
        result_stream.feed_chunk(Chunk("i", 0, "n", len(said), last=True, empty=True))


async def wait_briefly(waiting: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await waiting


async def read_rest(item_stream: ItemStream) -> list[Any]:
    values = []
    while items := await wait_briefly(item_stream.next_items()):
        values += [item.data for item in items]
    return values


# Reading


async def test_all_that_is_ready_comes_at_once_and_nothing_after_the_last():
    item_stream = make_stream({"n": 1}, {"n": 2})

    assert [item.data for item in await item_stream.next_items()] == [{"n": 1}, {"n": 2}]
    assert await item_stream.next_items() == []
    assert await item_stream.next_items() == []


async def test_a_reader_waits_for_more():
    item_stream = make_stream(ended=False)
    reading = asyncio.ensure_future(item_stream.next_items())
    await asyncio.sleep(0)
    assert not reading.done()

    feed_stream(item_stream, {"n": 1})

    assert [item.data for item in await wait_briefly(reading)] == [{"n": 1}]
    assert await wait_briefly(item_stream.next_items()) == []


async def test_a_reader_that_gave_up_does_not_stop_the_others():
    item_stream = ItemStream()
    cancelled_wait, other = (
        asyncio.ensure_future(item_stream.next_items()),
        asyncio.ensure_future(item_stream.wait_first()),
    )
    await asyncio.sleep(0)
    cancelled_wait.cancel()

    item_stream.add_item(Item({"n": 1}))
    item_stream.wake_reader()

    assert (await wait_briefly(other)).data == {"n": 1}
    assert [item.data for item in await item_stream.next_items()] == [{"n": 1}]


async def test_a_failure_comes_after_what_came_before_it():
    item_stream = make_stream({"n": 1}, ended=False)
    item_stream.fail(StageFailed("no more"))

    assert [item.data for item in await item_stream.next_items()] == [{"n": 1}]
    with pytest.raises(StageFailed, match="no more"):
        await item_stream.next_items()


async def test_what_is_whole_does_not_fail_any_more():
    item_stream = make_stream({"n": 1})
    item_stream.fail(StageFailed("something else"))

    assert await read_rest(item_stream) == [{"n": 1}]


# The first item, for graphs that use it later


async def test_the_first_item_is_there_also_when_it_was_read():
    item_stream = make_stream({"n": 1}, {"n": 2})

    assert (await item_stream.wait_first()).data == {"n": 1}
    await read_rest(item_stream)
    assert (await item_stream.wait_first()).data == {"n": 1}


async def test_the_first_item_is_waited_for():
    item_stream = make_stream(ended=False)
    waiting = [asyncio.ensure_future(item_stream.wait_first()) for _ in range(2)]
    await asyncio.sleep(0)

    feed_stream(item_stream, {"n": 1}, ended=False)

    assert [(await wait_briefly(each)).data for each in waiting] == [{"n": 1}] * 2


async def test_a_value_that_never_comes_is_an_error():
    with pytest.raises(StageFailed, match="an output that a later step needs ended without a value: retry the request"):
        await make_stream().wait_first()
    failed_stream = make_stream(ended=False)
    failed_stream.fail(StageFailed("no more"))
    with pytest.raises(StageFailed, match="no more"):
        await failed_stream.wait_first()


# Repeated parts after a move


@pytest.mark.parametrize(
    "parts",
    [
        [{"word": "a", "score": 0.5}, {"word": "b", "score": 0.7}, {"word": "c", "score": 0.9}],
        [{"value": "a"}, {"value": [1]}, {"value": "b"}, {"value": 3}],
        [{"value": [1, 2]}, {"value": [1, 2]}, {"value": []}, {"value": [3]}],
        [{"n": 1}, {"n": 1}, {"n": 2}],
        [{"word": "", "score": 1.0}, {"word": "a", "score": 2.0}, {"word": "", "score": 3.0}],
        [{"box": {"x": 1}}, {"box": {"x": 1}}, {"box": {"x": 2}}],
        [{"value": None}, {"value": True}, {"value": False}],
    ],
    ids=["text and number", "of several types", "lists", "numbers", "empty text and number", "dicts", "no numbers"],
)
async def test_no_part_is_told_twice_wherever_the_first_attempt_stopped(parts: list[dict[str, Any]]):
    whole = await read_rest(make_stream(*parts))

    for before in range(len(parts) + 1):
        item_stream = make_stream(*parts[:before], ended=False)
        item_stream.restart()
        feed_stream(item_stream, *parts)
        assert await read_rest(item_stream) == whole


async def test_a_part_that_differs_the_second_time_is_found_out():
    for before, after in (
        ({"word": "a", "n": 1}, {"word": "b", "n": 1}),
        ({"value": [1]}, {"value": [2]}),
        ({"n": 1}, {"n": 2}),
    ):
        item_stream = make_stream(before, ended=False)
        item_stream.restart()
        feed_stream(item_stream, after, {"n": 3})

        with pytest.raises(StageFailed, match="continued differently"):
            await read_rest(item_stream)
