"""An answer's fields as streams: results unchanged, and other values read and passed on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from omnibus.errors import Fatal, OmnibusError, StageFailed, StreamConsumed
from omnibus.task import Audio, ChatOutput, Result, TextChunk
from omnibus.tensors.item import Item
from omnibus_gateway.dispatch.streams import ItemStream, merge_streams
from omnibus_gateway.tasks.output_streams import as_item_stream, open_output_streams


def source(*items: Item, ended: bool = True) -> ItemStream:
    made = ItemStream()
    for item in items:
        made.add_item(item)
    if ended:
        made.end()
    return made


def result(given: ItemStream, kind: str = "stream", element: Any = TextChunk) -> Result:
    return Result("think", (0, "text"), kind, element).bind(given)


async def parts(*given: Any) -> AsyncIterator[Any]:
    for part in given:
        yield part


async def read(stream: ItemStream) -> list[Any]:
    found = []
    while items := await stream.next_items():
        found += [item.data if item.array is None else (item.data, item.array.tolist()) for item in items]
    return found


async def test_a_result_arrives_as_it_is():
    there = source(Item({"text": "a"}))

    assert open_output_streams(ChatOutput(text=result(there))) == {"text": there}


async def test_only_what_there_is_arrives():
    there = source()

    assert open_output_streams(ChatOutput(text=None, audio=there)) == {"audio": there}


async def test_a_result_that_was_read_does_not_arrive_again():
    read_before = result(source(Item({"text": "a"})))
    await read_before

    with pytest.raises(StreamConsumed, match="was read already"):
        as_item_stream("text", read_before)
    with pytest.raises(StreamConsumed):
        fields = result(source(Item({"text": "a"})))
        open_output_streams(ChatOutput(text=fields, audio=None))
        await fields


#: The other fields of a chunk, empty.
MORE = {"reasoning": "", "calls": "", "logprobs": {}}
TEXTS: dict[str, tuple[Any, list[Any]]] = {
    "text": ("hello", [{"text": "hello"}]),
    "a chunk": (TextChunk(text="a", finish_reason="stop"), [{"text": "a", "ids": [], "finish_reason": "stop", "usage": {}, **MORE}]),
    "an item": (Item({"text": "a"}), [{"text": "a"}]),
}  # fmt: skip


@pytest.mark.parametrize(("value", "arrived"), TEXTS.values(), ids=TEXTS.keys())
async def test_one_part_is_a_stream_of_one(value: Any, arrived: list[Any]):
    assert await read(as_item_stream("text", value)) == arrived


async def test_what_is_made_part_by_part_arrives_part_by_part():
    assert await read(as_item_stream("text", parts("a", TextChunk(text="b")))) == [
        {"text": "a"}, {"text": "b", "ids": [], "finish_reason": "", "usage": {}, **MORE},
    ]  # fmt: skip


async def test_a_stream_that_is_transformed_is_read_here():
    there = source(Item({"text": "a"}), Item({"text": "b"}))

    assert await read(as_item_stream("text", result(there).transform(lambda chunk: chunk.text.upper()))) == [
        {"text": "A"}, {"text": "B"},
    ]  # fmt: skip


async def test_a_stream_of_plain_text_is_text():
    assert await read(as_item_stream("text", result(source(Item({"value": "a"})), element=str))) == [{"text": "a"}]


async def test_a_value_is_text():
    assert await read(as_item_stream("text", result(source(Item({"value": "loud"})), "value", str))) == [
        {"text": "loud"}
    ]


async def test_samples_are_sound():
    assert await read(as_item_stream("audio", parts(np.ones(2), Audio(rate=8000, array=np.zeros(1, np.float32))))) == [
        ({"rate": 24000}, [1.0, 1.0]), ({"rate": 8000}, [0.0]),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "part"), [("text", 3), ("text", np.ones(1)), ("audio", "la"), ("text", Audio())])
async def test_a_part_of_another_kind_fails_the_answer(name: str, part: Any):
    with pytest.raises(Fatal, match=f"the answer's {name} holds a {type(part).__name__}: it must be"):
        await read(as_item_stream(name, parts(part)))


async def test_a_failure_comes_after_what_was_made_before():
    async def broken(error: Exception) -> AsyncIterator[str]:
        yield "a"
        raise error

    for error, said in ((StageFailed("no more"), "no more"), (KeyError("x"), r"the answer's text failed \(KeyError\)")):
        stream, found = as_item_stream("text", broken(error)), []
        with pytest.raises(OmnibusError, match=said):
            while items := await stream.next_items():
                found += [item.data for item in items]
        assert found == [{"text": "a"}]


async def test_nothing_is_made_any_more_once_nobody_reads():
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
                await asyncio.sleep(0)
        finally:
            closed.set()

    merging = merge_streams(open_output_streams(ChatOutput(text=endless())))
    async for _ in merging:
        break
    await merging.aclose()  # type: ignore[attr-defined]

    async with asyncio.timeout(20):
        await closed.wait()
