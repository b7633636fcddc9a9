"""An answer's fields as streams: results unchanged, and other values read and passed on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from omnibus.errors import Fatal, OmnibusError, StageFailed, StreamConsumed
from omnibus.task import Audio, ChatOutput, Result, TextChunk
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.streams import ItemStream, merge_streams
from omnibus_gateway.tasks.chat_response import as_item_stream, open_output_streams


def make_source(*items: Item, ended: bool = True) -> ItemStream:
    item_stream = ItemStream()
    for item in items:
        item_stream.add_item(item)
    if ended:
        item_stream.end()
    return item_stream


def make_result(stream: ItemStream, kind: str = "stream", element: Any = TextChunk) -> Result:
    return Result("think", (0, "text"), kind, element).bind(stream)


async def yield_parts(*given: Any) -> AsyncIterator[Any]:
    for part in given:
        yield part


async def read_items(stream: ItemStream) -> list[Any]:
    values = []
    while items := await stream.next_items():
        values += [item.data if item.array is None else (item.data, item.array.tolist()) for item in items]
    return values


async def test_a_result_arrives_as_it_is():
    there = make_source(Item({"text": "a"}))

    assert open_output_streams(ChatOutput(text=make_result(there))) == {"text": there}


async def test_only_what_there_is_arrives():
    there = make_source()

    assert open_output_streams(ChatOutput(text=None, audio=there)) == {"audio": there}


async def test_a_result_that_was_read_does_not_arrive_again():
    read_before = make_result(make_source(Item({"text": "a"})))
    await read_before

    with pytest.raises(StreamConsumed, match="was read already"):
        as_item_stream("text", read_before)
    with pytest.raises(StreamConsumed):
        fields = make_result(make_source(Item({"text": "a"})))
        open_output_streams(ChatOutput(text=fields, audio=None))
        await fields


#: The other fields of a chunk, empty.
MORE = {"reasoning": "", "calls": "", "logprobs": {}}
TEXTS: dict[str, tuple[Any, list[Any]]] = {
    "text": ("hello", [{"text": "hello"}]),
    "a chunk": (TextChunk(text="a", finish_reason="stop"), [{"text": "a", "ids": [], "tokens": [], "finish_reason": "stop", "usage": {}, **MORE}]),
    "an item": (Item({"text": "a"}), [{"text": "a"}]),
}  # fmt: skip


@pytest.mark.parametrize(("value", "expected_items"), TEXTS.values(), ids=TEXTS.keys())
async def test_one_part_is_a_stream_of_one(value: Any, expected_items: list[Any]):
    assert await read_items(as_item_stream("text", value)) == expected_items


async def test_what_is_made_part_by_part_arrives_part_by_part():
    assert await read_items(as_item_stream("text", yield_parts("a", TextChunk(text="b")))) == [
        {"text": "a"}, {"text": "b", "ids": [], "tokens": [], "finish_reason": "", "usage": {}, **MORE},
    ]  # fmt: skip


async def test_a_stream_that_is_transformed_is_read_here():
    there = make_source(Item({"text": "a"}), Item({"text": "b"}))

    assert await read_items(as_item_stream("text", make_result(there).transform(lambda chunk: chunk.text.upper()))) == [
        {"text": "A"}, {"text": "B"},
    ]  # fmt: skip


async def test_a_stream_of_plain_text_is_text():
    assert await read_items(as_item_stream("text", make_result(make_source(Item({"value": "a"})), element=str))) == [
        {"text": "a"}
    ]


async def test_a_value_is_text():
    assert await read_items(
        as_item_stream("text", make_result(make_source(Item({"value": "loud"})), "value", str))
    ) == [{"text": "loud"}]


async def test_samples_are_sound():
    assert await read_items(as_item_stream("audio", yield_parts(np.ones(2), Audio(rate=8000, array=np.zeros(1, np.float32))))) == [
        ({"rate": 24000}, [1.0, 1.0]), ({"rate": 8000}, [0.0]),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "part"), [("text", 3), ("text", np.ones(1)), ("audio", "la"), ("text", Audio())])
async def test_a_part_of_another_kind_fails_the_answer(name: str, part: Any):
    with pytest.raises(Fatal, match=f"the answer's {name} holds a {type(part).__name__}: it must be"):
        await read_items(as_item_stream(name, yield_parts(part)))


async def test_a_failure_comes_after_what_was_made_before():
    async def fail_after_part(error: Exception) -> AsyncIterator[str]:
        yield "a"
        raise error

    for error, expected_text in (
        (StageFailed("no more"), "no more"),
        (KeyError("x"), r"the answer's text failed \(KeyError\)"),
    ):
        stream, values = as_item_stream("text", fail_after_part(error)), []
        with pytest.raises(OmnibusError, match=expected_text):
            while items := await stream.next_items():
                values += [item.data for item in items]
        assert values == [{"text": "a"}]


async def test_nothing_is_made_any_more_once_nobody_reads():
    close_event = asyncio.Event()

    async def yield_endlessly() -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
                await asyncio.sleep(0)
        finally:
            close_event.set()

    merging = merge_streams(open_output_streams(ChatOutput(text=yield_endlessly())))
    async for _ in merging:
        break
    await merging.aclose()  # type: ignore[attr-defined]

    async with asyncio.timeout(20):
        await close_event.wait()
